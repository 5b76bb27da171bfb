"""Generates decoders: straight-line Python, one function per class and version.

A run of fields of fixed size becomes one call of :mod:`struct`. The length of the following item (a string,
an array, the tagged fields) is part of the run; in flexible versions, the run has the first byte of its
varint. Nested messages are inlined. The generated code for two integers and a string:

.. code-block:: python

    if p + 7 > end:
        short("FetchRequest v12 topics.topic", p, 7, end)
    m1.a, m1.b, n2 = u_hiB(data, p)
    p += 7
    if n2 > 127:
        n2, p = uvarint(data, p - 1, end)
    n2 -= 1
    if n2 < 0:
        null("FetchRequest v12 topics.topic", n2, p)
    else:
        if n2 > 32767:
            too_long("FetchRequest v12 topics.topic", n2, p)
        q = p + n2
        if q > end:
            short("FetchRequest v12 topics.topic", p, n2, end)
        m1.topic = data[p:q].decode()
        p = q

The cost of hostile bytes is bounded: an array's count is checked against the remaining bytes before anything
is created, and all arrays of one message together have at most ``ELEMENTS_MAX`` items, or
``REQUEST_ELEMENTS_MAX`` in clients' requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tidemill.model.errors import ProtocolError
from tidemill.wire.codegen import STRING_BYTES_MAX, CodeWriter, allows_null
from tidemill.wire.primitives import TAGS_MAX, read_uvarint, skip_tags
from tidemill.wire.schema import STRING, UUID, ElementType, Field, Struct, WireType

ELEMENTS_MAX: Final = 4_000_000
"""Items in all arrays of one message: each uses some 200 B of objects, and may take only one byte on the
wire.

The metadata of a cluster of 200,000 partitions with three replicas needs 1.4 million items.
"""

REQUEST_ELEMENTS_MAX: Final = 100_000
"""The same for clients' requests: each item is work for the broker, which does it in one go.

The largest legitimate request lists the partitions of one group or broker.
"""

BETWEEN_BROKERS: Final = frozenset({"LeaderAndIsrRequest", "StopReplicaRequest", "UpdateMetadataRequest"})
"""Requests that contain the state of a whole cluster."""


def make_decoder(cls: type[Struct], version: int, *, paced: bool = False) -> Callable[..., Any]:
    """Returns a function (data, position, end) that returns the message and the position after it.

    ``paced``: a generator function, which pauses after every few items.
    """
    return _DecoderWriter(cls, version, paced).build()


def elements_max(cls: type[Struct]) -> int:
    """Returns the maximum number of items in all arrays of one message together."""
    if cls.__name__.endswith("Request") and cls.__name__ not in BETWEEN_BROKERS:
        return REQUEST_ELEMENTS_MAX
    return ELEMENTS_MAX


class _DecoderWriter(CodeWriter):
    def __init__(self, cls: type[Struct], version: int, paced: bool) -> None:
        super().__init__(cls, version, paced)
        self.run: list[tuple[str, int, str]] = []
        self.end = "end"
        self.names.update(
            uvarint=read_uvarint,
            skip_tags=skip_tags,
            new=object.__new__,
            short=_short,
            null=_null,
            bad_count=_bad_count,
            wrong_tag=_wrong_tag,
            too_many=_too_many,
            too_long=_too_long,
            unpack=struct.unpack_from,
        )

    def build(self) -> Callable[..., Any]:
        self.emit(f"left = {elements_max(self.cls)}")
        self.begin_pacing()
        message = self.struct(self.cls, "")
        self.emit(f"return {message}, p")
        return self.compile("decode", "def decode(data, p, end):")

    def struct(self, cls: type[Struct], path: str) -> str:
        message = self.name("m")
        self.emit(f"{message} = new({self.bind(cls.__name__, cls)})")
        plain, tagged, absent = self.parts(cls)
        for one in (*tagged, *absent):
            self.emit(f"{message}.{one.name} = {self.default(one)}")
        for one in plain:
            self.field(one, f"{message}.{one.name}", f"{path}.{one.name}".lstrip("."))
        if self.flexible:
            self.tags(tagged, message, path)
        self.flush(path)
        return message

    def default(self, one: Field) -> str:
        value = one.default_value()
        if one.fresh:
            return "[]" if one.is_array else f"{self.bind(type(value).__name__, type(value))}()"
        return repr(value)

    def fixed(self, code: str, size: int, target: str) -> None:
        self.run.append((code, size, target))

    def flush(self, path: str) -> None:
        if not self.run:
            return
        size = sum([size for _, size, _ in self.run])
        layout = self.layout([code for code, _, _ in self.run])
        targets = ", ".join([target for _, _, target in self.run])
        self.emit(f"if p + {size} > {self.end}: short({self.where(path)}, p, {size}, {self.end})")
        if layout.format == ">B":
            self.emit(f"{targets} = data[p]")
        else:
            key = "u_" + layout.format[1:].replace("?", "t")
            self.names.setdefault(key, layout.unpack_from)
            comma = "," if len(self.run) == 1 else ""
            self.emit(f"{targets}{comma} = {key}(data, p)")
        self.emit(f"p += {size}")
        self.run.clear()

    def field(self, one: Field, target: str, path: str) -> None:
        nullable = allows_null(one, self.version)
        if one.is_array:
            self.array(one.element, nullable, target, path)
        elif isinstance(one.type, WireType) and one.type.size:
            self.fixed(one.type.code, one.type.size, target)
        elif isinstance(one.type, WireType):
            self.sized(one.type, nullable, target, path)
        else:
            self.inner(one.element, nullable, target, path)

    def length(self, code: str, size: int, path: str) -> str:
        """Reads a length of 2 or 4 bytes, or a compact one; -1 means null in both forms."""
        count = self.name("n")
        if self.flexible:
            self.uvarint(count, path)
            self.emit(f"{count} -= 1")
        else:
            self.fixed(code, size, count)
            self.flush(path)
        return count

    def uvarint(self, target: str, path: str) -> None:
        self.fixed("B", 1, target)
        self.flush(path)
        self.emit(f"if {target} > 127: {target}, p = uvarint(data, p - 1, {self.end})")

    def absent(self, count: str, nullable: bool, target: str, path: str) -> None:
        """Handles a negative length: null, where it is allowed."""
        self.emit(f"if {count} < 0:")
        self.depth += 1
        if nullable:
            self.emit(f"if {count} < -1: null({self.where(path)}, {count}, p)")
            self.emit(f"{target} = None")
        else:
            self.emit(f"null({self.where(path)}, {count}, p)")
        self.depth -= 1

    def sized(self, kind: WireType, nullable: bool, target: str, path: str) -> None:
        count = self.length("h", 2, path) if kind is STRING else self.length("i", 4, path)
        self.absent(count, nullable, target, path)
        self.emit("else:")
        self.depth += 1
        if kind is STRING and self.flexible:
            self.emit(f"if {count} > {STRING_BYTES_MAX}: too_long({self.where(path)}, {count}, p)")
        self.emit(f"q = p + {count}")
        self.emit(f"if q > {self.end}: short({self.where(path)}, p, {count}, {self.end})")
        self.emit(f"{target} = data[p:q]" + (".decode()" if kind is STRING else ""))
        self.emit("p = q")
        self.depth -= 1

    def inner(self, cls: ElementType, nullable: bool, target: str, path: str) -> None:
        if not isinstance(cls, type):
            raise TypeError(f"{path}: {cls!r} is not a message")
        self.flush(path)
        if not nullable:
            self.emit(f"{target} = {self.struct(cls, path)}")
            return
        flag = self.name("n")
        self.fixed("b", 1, flag)
        self.flush(path)
        self.emit(f"if {flag} < 0: {target} = None")
        self.emit("else:")
        self.depth += 1
        self.emit(f"{target} = {self.struct(cls, path)}")
        self.depth -= 1

    def array(self, element: ElementType, nullable: bool, target: str, path: str) -> None:
        count = self.length("i", 4, path)
        self.absent(count, nullable, target, path)
        self.emit("else:")
        self.depth += 1
        size = self.size_min(element)
        self.emit(
            f"if {count} * {size} > {self.end} - p: bad_count({self.where(path)}, {count}, p, {self.end})"
        )
        self.emit(f"left -= {count}")
        self.emit(f"if left < 0: too_many({self.where(path)}, {count}, {elements_max(self.cls)})")
        self.items(element, count, target, path)
        self.depth -= 1

    def items(self, element: ElementType, count: str, target: str, path: str) -> None:
        if isinstance(element, WireType) and element.size and element is not UUID:
            self.emit(f"{target} = list(unpack(f'>{{{count}}}{element.code}', data, p))")
            self.emit(f"p += {count} * {element.size}")
            return
        if element is UUID:
            self.emit(f"{target} = [data[q:q + 16] for q in range(p, p + 16 * {count}, 16)]")
            self.emit(f"p += {count} * 16")
            return
        items, item = self.name("a"), self.name("i")
        self.emit(f"{target} = {items} = []")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.pace()
        if isinstance(element, WireType):
            self.sized(element, False, item, path)
        else:
            item = self.struct(element, path)
        self.emit(f"{items}.append({item})")
        self.depth -= 1

    def tags(self, tagged: list[Field], message: str, path: str) -> None:
        count = self.name("n")
        self.uvarint(count, path)
        if not tagged:
            self.emit(f"if {count}: p = skip_tags(data, p, {self.end}, {count})")
            return
        tag, size, stop, outer = self.name("t"), self.name("s"), self.name("e"), self.end
        self.emit(f"if {count} > {TAGS_MAX}: too_many({self.where(path)}, {count}, {TAGS_MAX})")
        self.emit(f"if {count} * 2 > {outer} - p: bad_count({self.where(path)}, {count}, p, {outer})")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.emit(f"{tag}, p = uvarint(data, p, {outer})")
        self.emit(f"{size}, p = uvarint(data, p, {outer})")
        self.emit(f"{stop} = p + {size}")
        self.emit(f"if {stop} > {outer}: short({self.where(path)}, p, {size}, {outer})")
        self.end = stop
        for number, one in enumerate(tagged):
            inner_path = f"{path}.{one.name}".lstrip(".")
            self.emit(f"{'el' if number else ''}if {tag} == {one.tag}:")
            self.depth += 1
            self.field(one, f"{message}.{one.name}", inner_path)
            self.flush(inner_path)
            self.emit(f"if p != {stop}: wrong_tag({self.where(inner_path)}, p, {stop})")
            self.depth -= 1
        self.end = outer
        self.emit(f"p = {stop}")
        self.depth -= 1


def _short(where: str, position: int, size: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: {size} bytes are due at byte {position}, but the message ends at {end}")


def _null(where: str, length: int, position: int) -> NoReturn:
    what = "null, which it may not be" if length == -1 else f"of the negative length {length}"
    raise ProtocolError(f"{where}: the value before byte {position} is {what}")


def _bad_count(where: str, count: int, position: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: {count} items cannot be in the {end - position} bytes from {position} on")


def _too_many(where: str, count: int, count_max: int) -> NoReturn:
    raise ProtocolError(f"{where}: {count} more items make over {count_max} in one message")


def _too_long(where: str, length: int, position: int) -> NoReturn:
    raise ProtocolError(f"{where}: a string of {length} bytes at {position}; {STRING_BYTES_MAX} are allowed")


def _wrong_tag(where: str, position: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: the tagged field ends at byte {position}, its size says {end}")
