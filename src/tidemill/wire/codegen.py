"""What the writers of codecs share, and the constructors of messages.

Codecs are straight-line Python, one function a class, version and direction, written on first use by
:mod:`tidemill.wire.decoding` and :mod:`tidemill.wire.encoding`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tidemill.wire.schema import MISSING, STRING, ElementType, Field, Struct, WireType, parse_versions

STRING_BYTES_MAX: Final = 32767
"""Kafka's own limit: the length of the not-compact form is a signed INT16."""
INDENT: Final = "    "
SLICE_ITEMS: Final = 63
"""After one more items of arrays, code that works in slices lets its caller look at the time."""


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


class CodeWriter:
    """What both directions share: lines, the pending run, names for the generated code."""

    def __init__(self, cls: type[Struct], version: int, paced: bool = False) -> None:
        self.cls = cls
        self.paced = paced
        """The code is a generator, which pauses in its loops."""
        self.version = version
        self.flexible = is_flexible(cls, version)
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.names: dict[str, Any] = {}

    def emit(self, line: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append(INDENT * self.depth + line)

    def name(self, prefix: str) -> str:
        """A name for a variable, which no other one has."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def bind(self, prefix: str, value: Any) -> str:
        """The name by which the generated code reaches ``value``."""
        for known, bound in self.names.items():
            if bound is value:
                return known
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def pace(self) -> None:
        """In the body of a loop: in code that works in slices, a pause after so many items."""
        if self.paced:
            self.emit("s -= 1")
            self.emit("if s < 0:")
            self.emit(f"    s = {SLICE_ITEMS}")
            self.emit("    yield")

    def begin_pacing(self) -> None:
        """At the start of code that works in slices: it is a generator, with loops or without."""
        if self.paced:
            self.emit(f"s = {SLICE_ITEMS}")
            self.emit("if s < 0: yield")

    def where(self, path: str) -> str:
        """The literal that names a field in errors."""
        return repr(f"{self.cls.__name__} v{self.version} {path}".rstrip())

    def layout(self, codes: list[str]) -> struct.Struct:
        """The struct of a run of fixed-width fields."""
        return struct.Struct(">" + "".join(codes))

    def compile(self, name: str, head: str) -> Any:
        """The function ``name`` from ``head`` and the lines added so far."""
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
