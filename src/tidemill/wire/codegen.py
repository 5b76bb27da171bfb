"""Shared parts of the codec generators.

Codecs are straight-line Python, one function per class, version and direction, generated on first use by
:mod:`tidemill.wire.decoding` and :mod:`tidemill.wire.encoding`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tidemill.wire.schema import STRING, ElementType, Field, Struct, WireType, carries, contains

STRING_BYTES_MAX: Final = 32767
"""Kafka's own limit: the length in the non-compact form is a signed INT16."""
INDENT: Final = "    "
SLICE_ITEMS: Final = 63
"""Code that works in slices pauses after this many array items plus one, so that its caller can check the
time."""


def allows_null(field: Field, version: int) -> bool:
    """Whether the field may be null in ``version``."""
    return contains(field.nullable, version)


def is_flexible(cls: type[Struct], version: int) -> bool:
    """Whether ``version`` of the message has compact lengths and tagged fields."""
    return contains(cls.flexible_, version)


class CodeWriter:
    """State of both directions: lines, the pending run of fields, names for the generated code."""

    def __init__(self, cls: type[Struct], version: int, paced: bool) -> None:
        self.cls = cls
        self.paced = paced
        """Whether the code is a generator that pauses in its loops."""
        self.version = version
        self.flexible = is_flexible(cls, version)
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.names: dict[str, Any] = {}

    def emit(self, line: str) -> None:
        """Adds a line at the current depth."""
        self.lines.append(INDENT * self.depth + line)

    def name(self, prefix: str) -> str:
        """Returns an unused variable name."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def bind(self, prefix: str, value: Any) -> str:
        """Returns the name of ``value`` in the generated code."""
        for known, bound in self.names.items():
            if bound is value:
                return known
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def pace(self) -> None:
        """In a loop body of code that works in slices: adds a pause after every few items."""
        if self.paced:
            self.emit("s -= 1")
            self.emit("if s < 0:")
            self.emit(f"    s = {SLICE_ITEMS}")
            self.emit("    yield")

    def begin_pacing(self) -> None:
        """At the start of code that works in slices: makes it a generator, even without loops."""
        if self.paced:
            self.emit(f"s = {SLICE_ITEMS}")
            self.emit("if s < 0: yield")

    def where(self, path: str) -> str:
        """Returns the literal that identifies a field in errors."""
        return repr(f"{self.cls.__name__} v{self.version} {path}".rstrip())

    def layout(self, codes: list[str]) -> struct.Struct:
        """Returns the struct of a run of fixed-width fields."""
        return struct.Struct(">" + "".join(codes))

    def compile(self, name: str, head: str) -> Callable[..., Any]:
        """Compiles the function ``name`` from ``head`` and the lines added so far."""
        source = head + "\n" + "\n".join(self.lines) + "\n"
        filename = f"<{name} {self.cls.__name__} v{self.version}>"
        exec(compile(source, filename, "exec"), self.names)
        compiled: Callable[..., Any] = self.names[name]
        return compiled

    def parts(self, cls: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """Returns the fields of ``cls`` in this version: untagged, tagged in tag order, and absent ones."""
        present = [one for one in cls.fields_ if carries(one, self.version)]
        absent = [one for one in cls.fields_ if one not in present]
        plain = [one for one in present if one.tag < 0]
        tagged = sorted([one for one in present if one.tag >= 0], key=lambda one: one.tag)
        if tagged and not self.flexible:
            raise TypeError(f"{cls.__name__}.{tagged[0].name} is tagged in version {self.version}")
        return plain, tagged, absent

    def size_min(self, element: ElementType) -> int:
        """Returns the minimum size of a value in bytes, with which an array's count is checked."""
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
