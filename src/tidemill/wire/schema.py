"""How a message of the protocol is described: once, as a typed class.

A message is a :class:`Struct` whose fields say their wire type, the versions that carry them, where null is
allowed, the default, and the tag where they travel tagged::

    class MetadataRequestTopic(Struct):
        topic_id: bytes = field(UUID, "10+")
        name: str | None = field(STRING, nullable="10+")


    class MetadataRequest(Struct, versions="0-13", flexible="9+"):
        topics: list[MetadataRequestTopic] | None = field([MetadataRequestTopic], nullable="1+")

Nothing but the description is built at import. The constructor of a class is compiled on its first call, the
codec of a class, version and direction on its first use: see :mod:`tidemill.wire.decoding` and
:mod:`tidemill.wire.encoding`.

========================  ============================================================================
type                      on the wire
========================  ============================================================================
BOOL                      1 byte, 0 is false
INT8 .. INT64, UINT16     big-endian, two's complement
FLOAT64                   IEEE 754, big-endian
UUID                      16 bytes, most significant first
STRING                    INT16 length (-1 is null), then UTF-8
BYTES, RECORDS, arrays    INT32 length or count (-1 is null), then the bytes or items
the same, compact         UNSIGNED_VARINT length or count + 1 (0 is null): in flexible versions
UNSIGNED_VARINT           7 bits a byte, low ones first, the top bit says that more follows; 1-5 bytes
tagged fields             UNSIGNED_VARINT count, then each: tag and size as UNSIGNED_VARINT, size bytes
========================  ============================================================================

Source of the encoding rules: the protocol guide, KIP-482 (flexible versions) and KIP-893 (nullable structs).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError, TidemillError
from tidemill.model.types import ZERO_ID

VERSION_MAX: Final = 32767
REPR_BYTES_MAX: Final = 64
LET_GO_ITEMS: Final = 100


class EncodeError(TidemillError, ValueError):
    """A value in a message of our own that the wire type of its field cannot hold."""


class UnsupportedByVersion(KafkaError):
    """A field was set that the negotiated version of the message cannot carry."""

    code = ErrorCode.UNSUPPORTED_VERSION


class WireType:
    """A type of one value on the wire.

    ``code`` is the format letter of :mod:`struct` where the size is fixed, ``size`` its bytes; strings and
    byte strings have neither, and are told apart by identity.
    """

    __slots__ = ("code", "default", "name", "size")

    def __init__(self, name: str, code: str, size: int, default: Any) -> None:
        self.name = name
        self.code = code
        self.size = size
        self.default = default

    def __repr__(self) -> str:
        return self.name


BOOL: Final = WireType("BOOL", "?", 1, False)
INT8: Final = WireType("INT8", "b", 1, 0)
INT16: Final = WireType("INT16", "h", 2, 0)
UINT16: Final = WireType("UINT16", "H", 2, 0)
INT32: Final = WireType("INT32", "i", 4, 0)
UINT32: Final = WireType("UINT32", "I", 4, 0)
INT64: Final = WireType("INT64", "q", 8, 0)
FLOAT64: Final = WireType("FLOAT64", "d", 8, 0.0)
UUID: Final = WireType("UUID", "16s", 16, ZERO_ID)
STRING: Final = WireType("STRING", "", 0, "")
BYTES: Final = WireType("BYTES", "", 0, b"")
RECORDS: Final = WireType("RECORDS", "", 0, None)

ElementType: TypeAlias = "WireType | type[Struct]"
FieldType: TypeAlias = "ElementType | Sequence[WireType] | Sequence[type[Struct]]"


class _Missing:
    """Stands for a default that the description leaves to the type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Field:
    """One field of a message, as described."""

    __slots__ = ("default", "ignorable", "name", "nullable", "secret", "tag", "type", "versions")

    def __init__(
        self,
        type_: FieldType,
        versions: str,
        nullable: str,
        default: Any,
        tag: int,
        ignorable: bool,
        secret: bool,
    ) -> None:
        self.name = ""
        self.type = type_
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.tag = tag
        self.ignorable = ignorable
        self.secret = secret

    @property
    def is_array(self) -> bool:
        """Whether the field holds a list."""
        return not isinstance(self.type, WireType | type)

    @property
    def element(self) -> ElementType:
        """The type of the value, or of a list's items."""
        return self.type if isinstance(self.type, WireType | type) else self.type[0]

    @property
    def fresh(self) -> bool:
        """Whether every message needs a default of its own: a list, or a message inside a message."""
        return self.default is MISSING and (self.is_array or isinstance(self.type, type))

    def default_value(self) -> Any:
        """The value of a field that was not set; a new one each time where it can be changed."""
        if self.default is not MISSING:
            return self.default
        if isinstance(self.type, WireType):
            return self.type.default
        return self.type() if isinstance(self.type, type) else []


def field(
    type: FieldType,
    versions: str = "0+",
    *,
    nullable: str = "",
    default: Any = MISSING,
    tag: int = -1,
    ignorable: bool = False,
    secret: bool = False,
) -> Any:
    """Describes one field of a :class:`Struct`.

    ``type`` is a wire type, a Struct class, or either in a list of one for an array. ``versions`` and
    ``nullable`` are ranges as ``"3+"``, ``"0-12"`` or ``"7"``. ``tag`` makes it a tagged field. A field that
    the version of a message does not carry is dropped when it is ``ignorable``; otherwise encoding raises
    :class:`UnsupportedByVersion` unless it holds its default. ``secret`` values stay out of ``repr``.
    """
    return Field(type, versions, nullable, default, tag, ignorable, secret)


_Encoder: TypeAlias = Callable[[Any, Callable[[Any], None]], None]
_Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the fields of a class body into slots, and keeps their descriptions."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        versions: str = "",
        flexible: str = "",
    ) -> StructMeta:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__slots__"] = tuple([one.name for one in fields])
        namespace["fields_"] = tuple(fields)
        namespace["versions_"] = versions
        namespace["flexible_"] = flexible
        namespace["encoders_"] = {}
        namespace["decoders_"] = {}
        namespace["paced_"] = {}
        return super().__new__(mcs, name, bases, namespace)

    def __init__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        versions: str = "",
        flexible: str = "",
    ) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=StructMeta):
    """A message, or a part of one. Fields are keyword arguments, each with its default."""

    fields_: ClassVar[tuple[Field, ...]]
    versions_: ClassVar[str]
    flexible_: ClassVar[str]
    encoders_: ClassVar[dict[int, _Encoder]]
    decoders_: ClassVar[dict[int, _Decoder]]
    paced_: ClassVar[dict[tuple[str, int], Any]]
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        from tidemill.wire.codegen import constructor

        cls = type(self)
        cls.__init__ = constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, one.name) == getattr(other, one.name) for one in self.fields_)

    def __repr__(self) -> str:
        shown = []
        for one in self.fields_:
            value = getattr(self, one.name)
            if value != one.default_value():
                shown.append(f"{one.name}={_shown(value, one.secret)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: Any, secret: bool) -> str:
    if secret:
        return "<secret>"
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > REPR_BYTES_MAX:
        return f"<{len(value)} bytes>"
    return repr(value)


S = TypeVar("S", bound=Struct)


def parse_versions(text: str) -> tuple[int, int]:
    """The first and last version of a range as ``field`` takes it; an empty one gives (0, -1)."""
    if not text:
        return 0, -1
    if text.endswith("+"):
        return int(text[:-1]), VERSION_MAX
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def encode(message: Struct, version: int) -> bytes:
    """The bytes of ``message`` in ``version``.

    Raises :class:`UnsupportedByVersion` when a field is set that this version cannot carry (and that may not
    be dropped), :class:`EncodeError` when a value does not fit its type or the version does not exist.
    """
    return b"".join(encode_parts(message, version))


def encode_parts(message: Struct, version: int) -> list[bytes]:
    """As :func:`encode`, in pieces: records and other byte strings are the objects that the message holds."""
    parts: list[bytes] = []
    encoder = message.encoders_.get(version) or _make_encoder(type(message), version)
    try:
        encoder(message, parts.append)
    except (struct.error, AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, EncodeError):
            raise
        raise EncodeError(_explain(message, version, problem)) from problem
    return parts


def decode(cls: type[S], version: int, data: bytes, position: int = 0, end: int | None = None) -> S:
    """The message that ``data[position:end]`` holds, all of it.

    Raises :class:`ProtocolError`, and nothing else, when the bytes are no such message.
    """
    stop = len(data) if end is None else end
    message, position = decode_prefix(cls, version, data, position, stop)
    if position != stop:
        raise ProtocolError(
            f"{cls.__name__} v{version} ends at byte {position}, but {stop - position} bytes follow it"
        )
    return message


def decode_prefix(cls: type[S], version: int, data: bytes, position: int, end: int) -> tuple[S, int]:
    """As :func:`decode`, for a message that others may follow: it, and the position behind it."""
    decoder = cls.decoders_.get(version) or _make_decoder(cls, version)
    if not 0 <= position <= end <= len(data):
        raise ProtocolError(f"{cls.__name__} v{version}: no bytes {position} to {end} in {len(data)} bytes")
    try:
        return decoder(data, position, end)
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"{cls.__name__} v{version}: a string is not UTF-8: {problem}") from None


def decode_in_slices(
    cls: type[S], version: int, data: bytes, position: int, end: int
) -> Generator[None, None, tuple[S, int]]:
    """As :func:`decode_prefix`, with a pause after some items each: for messages of many."""
    from tidemill.wire.decoding import make_paced_decoder

    if not 0 <= position <= end <= len(data):
        raise ProtocolError(f"{cls.__name__} v{version}: no bytes {position} to {end} in {len(data)} bytes")
    decoder = cls.paced_.get(("decode", version))
    if decoder is None:
        _check_version(cls, version, ProtocolError)
        decoder = cls.paced_["decode", version] = make_paced_decoder(cls, version)
    try:
        found: tuple[S, int] = yield from decoder(data, position, end)
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"{cls.__name__} v{version}: a string is not UTF-8: {problem}") from None
    return found


def encode_in_slices(message: Struct, version: int, parts: list[bytes]) -> Generator[None, None, None]:
    """As :func:`encode_parts`, with a pause after some items each, in which ``parts`` may be emptied."""
    from tidemill.wire.encoding import make_paced_encoder

    cls = type(message)
    encoder = cls.paced_.get(("encode", version))
    if encoder is None:
        _check_version(cls, version, EncodeError)
        encoder = cls.paced_["encode", version] = make_paced_encoder(cls, version)
    try:
        yield from encoder(message, parts.append)
    except (struct.error, AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, EncodeError):
            raise
        raise EncodeError(_explain(message, version, problem)) from problem


def let_go_in_slices(message: Struct) -> Generator[None, None, None]:
    """Empties the arrays of messages in ``message``, with a pause after some items each.

    A message of 100,000 items that is dropped as a whole holds its thread as long as to make one does. Arrays
    of plain values stay: they may be another's, a partition's replicas for instance.
    """
    for one in message.fields_:
        if not one.is_array or isinstance(one.element, WireType):
            continue
        items = getattr(message, one.name)
        if not isinstance(items, list):
            continue
        if any(field.is_array and isinstance(field.element, type) for field in one.element.fields_):
            for number, item in enumerate(items):
                if number % LET_GO_ITEMS == 0:
                    yield
                yield from let_go_in_slices(item)
        while items:
            del items[-LET_GO_ITEMS:]
            yield


def has_many_items(message: Struct, most: int) -> bool:
    """Whether the arrays of messages in ``message`` hold more than ``most`` together."""
    return _items_left(message, most) < 0


def _items_left(message: Struct, left: int) -> int:
    for one in message.fields_:
        if not one.is_array or isinstance(one.element, WireType):
            continue
        items = getattr(message, one.name) or ()
        left -= len(items)
        for item in items:
            if left < 0:
                return left
            left = _items_left(item, left)
    return left


def _make_encoder(cls: type[Struct], version: int) -> _Encoder:
    from tidemill.wire.encoding import make_encoder

    _check_version(cls, version, EncodeError)
    encoder: _Encoder = make_encoder(cls, version)
    cls.encoders_[version] = encoder
    return encoder


def _make_decoder(cls: type[Struct], version: int) -> _Decoder:
    from tidemill.wire.decoding import make_decoder

    _check_version(cls, version, ProtocolError)
    decoder: _Decoder = make_decoder(cls, version)
    cls.decoders_[version] = decoder
    return decoder


def _check_version(cls: type[Struct], version: int, error: type[Exception]) -> None:
    first, last = parse_versions(cls.versions_)
    if not first <= version <= last:
        raise error(f"{cls.__name__} has no version {version}; it has {cls.versions_ or 'none of its own'}")


def _explain(message: Struct, version: int, problem: Exception) -> str:
    """Finds the field that an encoder stumbled over; encoders themselves stay free of such checks."""
    from tidemill.wire.encoding import first_bad_value

    found = first_bad_value(message, version)
    return f"{type(message).__name__} v{version}: {found or problem}"
