"""Descriptions of protocol messages: each is described once, as a typed class.

A message is a :class:`Struct` whose fields have a wire type, the versions that contain them, the versions
that allow null, the default, and the tag of a tagged field::

    class MetadataRequestTopic(Struct):
        topic_id: bytes = field(UUID, "10+")
        name: str | None = field(STRING, nullable="10+")


    class MetadataRequest(Struct, versions="0-13", flexible="9+"):
        topics: list[MetadataRequestTopic] | None = field([MetadataRequestTopic], nullable="1+")

Only the description is built at import. The constructor of a class is compiled on its first call, the codec
of a class, version and direction on its first use: see :mod:`tidemill.wire.codec`.

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
UNSIGNED_VARINT           7 bits per byte, low ones first, the top bit means that more follow; 1-5 bytes
tagged fields             UNSIGNED_VARINT count, then each: tag and size as UNSIGNED_VARINT, size bytes
========================  ============================================================================

Source of the encoding rules: the protocol guide, KIP-482 (flexible versions) and KIP-893 (nullable structs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, Final, TypeAlias, dataclass_transform

from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.types import ZERO_ID

VERSION_MAX: Final = 32767
REPR_BYTES_MAX: Final = 64
RELEASED_ITEMS_PER_SLICE: Final = 100


class EncodeError(TidemillError, ValueError):
    """A value in an outgoing message does not fit the wire type of its field."""


class UnsupportedByVersion(KafkaError):
    """A field is set that the negotiated version of the message does not contain."""

    code = ErrorCode.UNSUPPORTED_VERSION


class WireType:
    """A type of one value on the wire.

    ``code`` is the format letter of :mod:`struct` for types of a fixed size, ``size`` is that size in bytes;
    strings and byte strings have neither, and are distinguished by identity.
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
INT64: Final = WireType("INT64", "q", 8, 0)
FLOAT64: Final = WireType("FLOAT64", "d", 8, 0.0)
UUID: Final = WireType("UUID", "16s", 16, ZERO_ID)
STRING: Final = WireType("STRING", "", 0, "")
BYTES: Final = WireType("BYTES", "", 0, b"")
RECORDS: Final = WireType("RECORDS", "", 0, None)

ElementType: TypeAlias = "WireType | type[Struct]"
FieldType: TypeAlias = "ElementType | Sequence[WireType] | Sequence[type[Struct]]"


class _Missing:
    """Represents a default that the type determines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Field:
    """The description of one field of a message."""

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
        """Whether every message needs a new default object: a list, or a nested message."""
        return self.default is MISSING and (self.is_array or isinstance(self.type, type))

    def default_value(self) -> Any:
        """Returns the value of an unset field; a new object each time where it is mutable."""
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
    ``nullable`` are ranges such as ``"3+"``, ``"0-12"`` or ``"7"``. ``tag`` makes it a tagged field. A field
    that is absent in a version of the message is dropped when it is ``ignorable``; otherwise encoding raises
    :class:`UnsupportedByVersion` unless it has its default value. ``secret`` values stay out of ``repr``.
    """
    return Field(type, versions, nullable, default, tag, ignorable, secret)


Encoder: TypeAlias = Callable[[Any, Callable[[Any], None]], None]
Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the fields of a class body into slots, and stores their descriptions."""

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


class Struct(metaclass=StructMeta):
    """A message, or a part of one. Fields are keyword arguments, each with its default."""

    fields_: ClassVar[tuple[Field, ...]]
    versions_: ClassVar[str]
    flexible_: ClassVar[str]
    encoders_: ClassVar[dict[int, Encoder]]
    decoders_: ClassVar[dict[int, Decoder]]
    paced_: ClassVar[dict[tuple[str, int], Any]]
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
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


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    """Generates the ``__init__`` of a class, with its fields as keyword-only parameters."""
    names: dict[str, Any] = {"fresh": MISSING}
    parameters, lines = [], []
    for number, one in enumerate(cls.fields_):
        names[f"d{number}"] = MISSING if one.fresh else one.default_value()
        parameters.append(f"{one.name}=d{number}")
        if one.is_array and one.fresh:
            lines.append(f"self.{one.name} = [] if {one.name} is fresh else {one.name}")
        elif one.fresh:
            names[f"c{number}"] = one.type
            lines.append(f"self.{one.name} = c{number}() if {one.name} is fresh else {one.name}")
        else:
            lines.append(f"self.{one.name} = {one.name}")
    star = "*, " if parameters else ""
    body = "\n".join([f"    {line}" for line in lines or ["pass"]])
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n{body}\n"
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)
    built: Callable[..., None] = names["__init__"]
    built.__qualname__ = f"{cls.__qualname__}.__init__"
    built.__module__ = cls.__module__
    return built


def _shown(value: Any, secret: bool) -> str:
    if secret:
        return "<secret>"
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > REPR_BYTES_MAX:
        return f"<{len(value)} bytes>"
    return repr(value)


def parse_versions(text: str) -> tuple[int, int]:
    """Returns the first and last version of a range in the format of ``field``; (0, -1) for an empty one."""
    if not text:
        return 0, -1
    if text.endswith("+"):
        return int(text[:-1]), VERSION_MAX
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def contains(versions: str, version: int) -> bool:
    """Whether a range in the format of ``field`` contains ``version``."""
    first, last = parse_versions(versions)
    return first <= version <= last


def carries(field: Field, version: int) -> bool:
    """Whether the field exists in ``version`` of a message."""
    return contains(field.versions, version)


def release_in_slices(message: Struct) -> Generator[None, None, None]:
    """Empties the arrays of nested messages in ``message``, with a pause after every few items.

    Freeing a message of 100,000 items at once blocks its thread for as long as creating it does. Arrays of
    plain values stay: they may be shared, such as a partition's replicas.
    """
    for one in message.fields_:
        if not one.is_array or isinstance(one.element, WireType):
            continue
        items = getattr(message, one.name)
        if not isinstance(items, list):
            continue
        if any(field.is_array and isinstance(field.element, type) for field in one.element.fields_):
            for number, item in enumerate(items):
                if number % RELEASED_ITEMS_PER_SLICE == 0:
                    yield
                yield from release_in_slices(item)
        while items:
            del items[-RELEASED_ITEMS_PER_SLICE:]
            yield


def has_many_items(message: Struct, most: int) -> bool:
    """Whether the arrays of nested messages in ``message`` have more than ``most`` items in total."""
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
