"""Writes the codecs of messages: straight-line Python, one function a class, version and direction.

A run of fields of fixed size becomes one call of :mod:`struct`; the length of what follows (a string, an
array, the tagged fields) is part of the run, in flexible versions by the first byte of its varint. Messages
inside messages are written inline. What a decoder for a string looks like, after two fixed fields::

    if p + 7 > end: short("FetchRequest v12 topics.topic", p, 7, end)
    m1.a, m1.b, n2 = u_hiB(data, p)
    p += 7
    if n2 > 127: n2, p = uvarint(data, p - 1, end)
    if n2 == 0: null(...)
    q = p + n2 - 1
    if q > end: short(..., p, n2 - 1, end)
    m1.topic = data[p:q].decode()
    p = q

What hostile bytes can cost is bounded: an array's count is held against the bytes that are left before
anything is made, and all arrays of one message together hold at most ``ELEMENTS_MAX`` items.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tidemill.model.errors import ProtocolError
from tidemill.wire.primitives import encode_uvarint, read_uvarint, skip_tags
from tidemill.wire.schema import (
    BYTES,
    MISSING,
    RECORDS,
    STRING,
    UUID,
    ElementType,
    EncodeError,
    Field,
    Struct,
    UnsupportedByVersion,
    WireType,
    parse_versions,
)

ELEMENTS_MAX: Final = 4_000_000
"""Items in all arrays of one message: some 200 B of objects each, for as little as one byte on the wire.

A cluster of 200,000 partitions with three replicas needs 1.4 million in its metadata.
"""

STRING_BYTES_MAX: Final = 32767
INDENT: Final = "    "

SMALL_UVARINTS: Final = tuple([encode_uvarint(value) for value in range(1024)])


def carries(field: Field, version: int) -> bool:
    """Whether ``version`` of a message has the field."""
    first, last = parse_versions(field.versions)
    return first <= version <= last


def allows_null(field: Field, version: int) -> bool:
    """Whether the field may be null in ``version``."""
    first, last = parse_versions(field.nullable)
    return first <= version <= last


def is_flexible(cls: type[Struct], version: int) -> bool:
    """Whether ``version`` of the message has compact lengths and tagged fields."""
    first, last = parse_versions(cls.flexible_)
    return first <= version <= last


def make_encoder(cls: type[Struct], version: int) -> Callable[[Any, Callable[[Any], None]], None]:
    """A function (message, append) that appends the parts of the message's bytes."""
    built: Callable[[Any, Callable[[Any], None]], None] = _EncoderWriter(cls, version).build()
    return built


def make_decoder(cls: type[Struct], version: int) -> Callable[[bytes, int, int], tuple[Any, int]]:
    """A function (data, position, end) that gives the message and the position behind it."""
    built: Callable[[bytes, int, int], tuple[Any, int]] = _DecoderWriter(cls, version).build()
    return built


def constructor(cls: type[Struct]) -> Callable[..., None]:
    """The ``__init__`` of a class, with its fields as keyword-only parameters."""
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
    body = "\n".join([INDENT + line for line in lines or ["pass"]])
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n{body}\n"
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)
    built: Callable[..., None] = names["__init__"]
    built.__qualname__ = f"{cls.__qualname__}.__init__"
    built.__module__ = cls.__module__
    return built


class _Writer:
    """What both directions share: lines, the pending run, names for the generated code."""

    def __init__(self, cls: type[Struct], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = is_flexible(cls, version)
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.names: dict[str, Any] = {}

    def emit(self, line: str) -> None:
        self.lines.append(INDENT * self.depth + line)

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def bind(self, prefix: str, value: Any) -> str:
        for known, bound in self.names.items():
            if bound is value:
                return known
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def where(self, path: str) -> str:
        return repr(f"{self.cls.__name__} v{self.version} {path}".rstrip())

    def layout(self, codes: list[str]) -> struct.Struct:
        return struct.Struct(">" + "".join(codes))

    def compile(self, name: str, head: str) -> Any:
        source = head + "\n" + "\n".join(self.lines) + "\n"
        filename = f"<{name} {self.cls.__name__} v{self.version}>"
        exec(compile(source, filename, "exec"), self.names)
        return self.names[name]

    def parts(self, cls: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """The fields of ``cls`` in this version: plain ones, tagged ones by tag, and those it lacks."""
        present = [one for one in cls.fields_ if carries(one, self.version)]
        absent = [one for one in cls.fields_ if one not in present]
        plain = [one for one in present if one.tag < 0]
        tagged = sorted([one for one in present if one.tag >= 0], key=lambda one: one.tag)
        if tagged and not self.flexible:
            raise TypeError(f"{cls.__name__}.{tagged[0].name} is tagged in version {self.version}")
        return plain, tagged, absent

    def size_min(self, element: ElementType) -> int:
        """The fewest bytes that a value takes; what an array's count is held against."""
        if isinstance(element, WireType):
            if element.size:
                return element.size
            return 1 if self.flexible else (2 if element is STRING else 4)
        plain, _, _ = self.parts(element)
        size = 1 if self.flexible else 0
        for one in plain:
            if one.is_array:
                size += 1 if self.flexible else 4
            elif isinstance(one.type, type) and allows_null(one, self.version):
                size += 1
            else:
                size += self.size_min(one.element)
        return max(size, 1)


class _DecoderWriter(_Writer):
    def __init__(self, cls: type[Struct], version: int) -> None:
        super().__init__(cls, version)
        self.run: list[tuple[str, int, str]] = []
        self.end = "end"
        self.names.update(
            uvarint=read_uvarint,
            skip_tags=skip_tags,
            new=object.__new__,
            short=_short,
            null=_null,
            lying=_lying,
        )
        self.names.update(
            wrong_tag=_wrong_tag, too_many=_too_many, too_long=_too_long, unpack=struct.unpack_from
        )

    def build(self) -> Any:
        self.emit(f"left = {ELEMENTS_MAX}")
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
        """Reads a length of 2 or 4 bytes, or a compact one; -1 for null in both."""
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

    def sized(self, kind: WireType, nullable: bool, target: str, path: str) -> None:
        count = self.length("h", 2, path) if kind is STRING else self.length("i", 4, path)
        self.emit(f"if {count} < 0:")
        self.depth += 1
        if nullable:
            self.emit(f"if {count} < -1: null({self.where(path)}, {count}, p)")
            self.emit(f"{target} = None")
        else:
            self.emit(f"null({self.where(path)}, {count}, p)")
        self.depth -= 1
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
            raise TypeError(f"{path}: {cls!r} is no message")
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
        self.emit(f"if {count} < 0:")
        self.depth += 1
        if nullable:
            self.emit(f"if {count} < -1: null({self.where(path)}, {count}, p)")
            self.emit(f"{target} = None")
        else:
            self.emit(f"null({self.where(path)}, {count}, p)")
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        size = self.size_min(element)
        self.emit(f"if {count} * {size} > {self.end} - p: lying({self.where(path)}, {count}, p, {self.end})")
        self.emit(f"left -= {count}")
        self.emit(f"if left < 0: too_many({self.where(path)}, {count})")
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
        self.emit(f"if {count} * 2 > {outer} - p: lying({self.where(path)}, {count}, p, {outer})")
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


class _EncoderWriter(_Writer):
    def __init__(self, cls: type[Struct], version: int) -> None:
        super().__init__(cls, version)
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.names.update(
            absent=_absent, small=SMALL_UVARINTS, uvarint=encode_uvarint, pack=struct.pack, not_id=_not_id
        )
        self.names.update(long_string=_long_string)

    def build(self) -> Any:
        self.struct(self.cls, "m", "")
        self.flush()
        if not self.lines:
            self.emit("pass")
        return self.compile("encode", "def encode(m, out):")

    def fixed(self, code: str, value: str) -> None:
        self.run.append((code, value))

    def flush(self) -> None:
        if not self.run:
            return
        codes = [code for code, _ in self.run]
        if set(codes) == {"x"}:
            self.emit(f"{self.out}({bytes(len(codes))!r})")
        else:
            layout = self.layout(codes)
            key = "p_" + layout.format[1:].replace("?", "t")
            self.names.setdefault(key, layout.pack)
            values = ", ".join([value for code, value in self.run if code != "x"])
            self.emit(f"{self.out}({key}({values}))")
        self.run.clear()

    def struct(self, cls: type[Struct], message: str, path: str) -> None:
        plain, tagged, absent = self.parts(cls)
        for one in absent:
            if not one.ignorable:
                where = self.where(f"{path}.{one.name}".lstrip("."))
                value = f"{message}.{one.name}"
                self.emit(f"if {self.differs(one, value)}: absent({where}, {value}, {one.versions!r})")
        for one in plain:
            self.field(one, f"{message}.{one.name}", f"{path}.{one.name}".lstrip("."))
        if self.flexible and tagged:
            self.tags(tagged, message, path)
        elif self.flexible:
            self.fixed("x", "")

    def differs(self, one: Field, value: str) -> str:
        """An expression: does the field hold something else than its default?"""
        default = one.default_value()
        if default is None:
            return f"{value} is not None"
        if one.is_array:
            return f"{value} is None or len({value}) != 0"
        if isinstance(default, Struct):
            inner = [self.differs(field, f"{value}.{field.name}") for field in default.fields_]
            return f"{value} is None or " + " or ".join(inner)
        return f"{value} != {default!r}"

    def field(self, one: Field, value: str, path: str) -> None:
        nullable = allows_null(one, self.version)
        if not one.is_array and isinstance(one.type, WireType) and one.type.size:
            if one.type is UUID:
                self.emit(f"if len({value}) != 16: not_id({self.where(path)}, {value})")
            self.fixed(one.type.code, value)
            return
        local = self.name("v")
        self.emit(f"{local} = {value}")
        if nullable:
            self.flush()
            self.emit(f"if {local} is None:")
            self.depth += 1
            self.null(one)
            self.depth -= 1
            self.emit("else:")
            self.depth += 1
        self.value(one, nullable, local, path)
        if nullable:
            self.flush()
            self.depth -= 1

    def null(self, one: Field) -> None:
        if isinstance(one.type, type):
            text = b"\xff"
        elif self.flexible:
            text = b"\0"
        else:
            text = b"\xff\xff" if one.type is STRING else b"\xff\xff\xff\xff"
        self.emit(f"{self.out}({text!r})")

    def value(self, one: Field, nullable: bool, value: str, path: str) -> None:
        if one.is_array:
            self.array(one.element, value, path)
        elif isinstance(one.type, WireType):
            self.sized(one.type, value, path)
        elif isinstance(one.type, type):
            if nullable:
                self.fixed("b", "1")
            self.struct(one.type, value, path)

    def length(self, code: str, count: str) -> None:
        if not self.flexible:
            self.fixed(code, count)
            self.flush()
            return
        self.flush()
        self.emit(f"n = {count} + 1")
        self.emit(f"{self.out}(small[n] if n < {len(SMALL_UVARINTS)} else uvarint(n))")

    def sized(self, kind: WireType, value: str, path: str) -> None:
        if kind is STRING:
            self.emit(f"{value} = {value}.encode()")
            self.emit(f"if len({value}) > {STRING_BYTES_MAX}: long_string({self.where(path)}, {value})")
        self.length("h" if kind is STRING else "i", f"len({value})")
        self.emit(f"{self.out}({value})")

    def array(self, element: ElementType, values: str, path: str) -> None:
        self.length("i", f"len({values})")
        if isinstance(element, WireType) and element.size and element is not UUID:
            self.emit(f"{self.out}(pack(f'>{{len({values})}}{element.code}', *{values}))")
            return
        item = self.name("m")
        self.emit(f"for {item} in {values}:")
        self.depth += 1
        if element is UUID:
            self.emit(f"if len({item}) != 16: not_id({self.where(path)}, {item})")
            self.emit(f"{self.out}({item})")
        elif isinstance(element, WireType):
            self.sized(element, item, path)
        else:
            self.struct(element, item, path)
            self.flush()
        self.depth -= 1

    def tags(self, tagged: list[Field], message: str, path: str) -> None:
        self.flush()
        section, outer = self.name("x"), self.out
        self.emit(f"{section} = []")
        for one in tagged:
            value = f"{message}.{one.name}"
            inner, body = self.name("y"), self.name("b")
            self.emit(f"if {self.differs(one, value)}:")
            self.depth += 1
            self.emit(f"{inner} = []")
            self.out = f"{inner}.append"
            self.field(one, value, f"{path}.{one.name}".lstrip("."))
            self.flush()
            self.emit(f"{body} = b''.join({inner})")
            self.emit(f"{section}.append({encode_uvarint(one.tag)!r} + uvarint(len({body})) + {body})")
            self.out = outer
            self.depth -= 1
        self.emit(f"{self.out}(small[len({section})])")
        self.emit(f"for part in {section}: {self.out}(part)")


def _short(where: str, position: int, size: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: {size} bytes are due at byte {position}, but the message ends at {end}")


def _null(where: str, length: int, position: int) -> NoReturn:
    what = "null, which it may not be" if length == -1 else f"of the negative length {length}"
    raise ProtocolError(f"{where}: the value before byte {position} is {what}")


def _lying(where: str, count: int, position: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: {count} items cannot be in the {end - position} bytes from {position} on")


def _too_many(where: str, count: int) -> NoReturn:
    raise ProtocolError(f"{where}: {count} more items make over {ELEMENTS_MAX} in one message")


def _too_long(where: str, length: int, position: int) -> NoReturn:
    raise ProtocolError(f"{where}: a string of {length} bytes at {position}; {STRING_BYTES_MAX} are allowed")


def _wrong_tag(where: str, position: int, end: int) -> NoReturn:
    raise ProtocolError(f"{where}: the tagged field ends at byte {position}, its size says {end}")


def _absent(where: str, value: Any, versions: str) -> NoReturn:
    raise UnsupportedByVersion(f"{where} cannot carry {value!r}: the field is in versions {versions} only")


def _not_id(where: str, value: Any) -> NoReturn:
    raise EncodeError(f"{where}: {value!r} is no id of 16 bytes")


def _long_string(where: str, value: bytes) -> NoReturn:
    raise EncodeError(f"{where}: the string of {len(value)} bytes is over {STRING_BYTES_MAX}")


def first_bad_value(message: Struct, version: int, path: str = "") -> str:
    """Where a message holds a value that its field's type cannot, in words; empty when nothing is found."""
    for one in message.fields_:
        if not carries(one, version):
            continue
        value, name = getattr(message, one.name), f"{path}{one.name}"
        if value is None:
            if not allows_null(one, version):
                return f"{name} is None, which version {version} cannot carry"
            continue
        items = value if one.is_array and isinstance(value, list | tuple) else [value]
        if one.is_array and items is not value:
            return f"{name} = {value!r} is no list"
        for number, item in enumerate(items):
            place = f"{name}[{number}]" if one.is_array else name
            if isinstance(one.element, type):
                found = (
                    first_bad_value(item, version, place + ".")
                    if isinstance(item, one.element)
                    else f"{place} = {item!r} is no {one.element.__name__}"
                )
            else:
                found = "" if _fits(one.element, item) else f"{place} = {item!r} is no {one.element.name}"
            if found:
                return found
    return ""


def _fits(kind: WireType, value: Any) -> bool:
    try:
        if kind is STRING:
            return len(value.encode()) <= STRING_BYTES_MAX
        if kind in (BYTES, RECORDS):
            return memoryview(value).nbytes >= 0
        struct.pack(">" + kind.code, value)
    except (struct.error, AttributeError, TypeError, ValueError):
        return False
    return True
