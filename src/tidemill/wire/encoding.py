"""Generates encoders: straight-line Python, one function per class and version.

An encoder appends the parts of the message: runs of fixed-size fields packed by one call of :mod:`struct`,
strings, and byte strings without a copy. It checks the limits of the wire format; a value of the wrong Python
type makes it fail, and :func:`first_bad_value` then finds the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tidemill.wire.codegen import STRING_BYTES_MAX, CodeWriter, allows_null
from tidemill.wire.primitives import encode_uvarint
from tidemill.wire.schema import (
    BYTES,
    RECORDS,
    STRING,
    UUID,
    ElementType,
    EncodeError,
    Field,
    Struct,
    UnsupportedByVersion,
    WireType,
    carries,
)

SMALL_UVARINTS: Final = tuple([encode_uvarint(value) for value in range(1024)])


def make_encoder(cls: type[Struct], version: int, *, paced: bool = False) -> Callable[..., Any]:
    """Returns a function (message, append) that appends the parts of the encoded message.

    ``paced``: a generator function, which pauses after every few items.
    """
    return _EncoderWriter(cls, version, paced).build()


class _EncoderWriter(CodeWriter):
    def __init__(self, cls: type[Struct], version: int, paced: bool) -> None:
        super().__init__(cls, version, paced)
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.names.update(
            absent=_absent,
            small=SMALL_UVARINTS,
            uvarint=encode_uvarint,
            pack=struct.pack,
            not_id=_not_id,
            long_string=_long_string,
        )

    def build(self) -> Callable[..., Any]:
        self.begin_pacing()
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
        """Returns an expression that is true if the field differs from its default."""
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
        self.pace()
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


def _absent(where: str, value: Any, versions: str) -> NoReturn:
    raise UnsupportedByVersion(f"{where} cannot carry {value!r}: the field is in versions {versions} only")


def _not_id(where: str, value: Any) -> NoReturn:
    raise EncodeError(f"{where}: {value!r} is not an id of 16 bytes")


def _long_string(where: str, value: bytes) -> NoReturn:
    raise EncodeError(f"{where}: the string of {len(value)} bytes is over {STRING_BYTES_MAX}")


def first_bad_value(message: Struct, version: int, path: str = "") -> str:
    """Describes a value in the message that does not fit its field's type; empty when all fit."""
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
            return f"{name} = {value!r} is not a list"
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
