"""The part of librt that the data path uses, in plain Python, for systems on which librt does not load.

Integers are checked as in librt: an index outside the bytes raises IndexError, and a number that does
not fit raises an error. ``vec`` stores its items in an ``array``, whose memory is available as
``vec.array`` (before Python 3.12 a Python class cannot implement the buffer protocol).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

LAYOUTS = {"i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
ITEM_CODES = {"i64": "q", "i32": "i", "i16": "h", "u8": "B", "float": "d"}


class BytesWriter:
    """A growing byte string: ``librt.strings.BytesWriter``."""

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, x: int) -> None:
        self._data.append(x)

    def write(self, b: bytes | bytearray) -> None:
        if not isinstance(b, (bytes, bytearray)):
            raise TypeError(f"bytes or bytearray expected, not {type(b).__name__}")
        self._data += b

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def truncate(self, size: int) -> None:
        if not 0 <= size <= len(self._data):
            raise ValueError(f"size {size} is not within the {len(self._data)} bytes written")
        del self._data[size:]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> int:
        return self._data[i]

    def __setitem__(self, i: int, x: int) -> None:
        self._data[i] = x


def _reader(layout: struct.Struct) -> Callable[[bytes, int], Any]:
    unpack, size = layout.unpack_from, layout.size

    def read(b: bytes, index: int) -> Any:
        if index < 0 or index + size > len(b):
            raise IndexError("index out of range")
        return unpack(b, index)[0]

    return read


def _writer(layout: struct.Struct) -> Callable[[BytesWriter, Any], None]:
    pack = layout.pack

    def write(b: BytesWriter, n: Any) -> None:
        b.write(pack(n))

    return write


class vec:  # noqa: N801 - librt's own name
    """``librt.vecs.vec`` of i64, i32, i16, u8 or float: ``vec[i64](items, capacity=n)``."""

    __slots__ = ("array",)

    def __init__(self, items: Iterable[Any] = (), *, capacity: int = 0, code: str = "q") -> None:
        self.array = array(code, items)

    def __class_getitem__(cls, item: Any) -> Callable[..., vec]:
        name = getattr(item, "__name__", str(item))
        if name not in ITEM_CODES:
            raise TypeError(f"vec of {name} is not provided without librt")
        code = ITEM_CODES[name]

        def make(items: Iterable[Any] = (), *, capacity: int = 0) -> vec:
            return cls(items, code=code)

        return make

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return vec(self.array[i], code=self.array.typecode)
        return self.array[i]

    def __setitem__(self, i: int, o: Any) -> None:
        self.array[i] = o

    def __contains__(self, o: object) -> bool:
        return o in self.array

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, vec) and self.array == other.array

    __hash__ = None  # type: ignore[assignment]


def _append(v: vec, o: Any) -> vec:
    v.array.append(o)
    return v


def _extend(v: vec, o: Iterable[Any]) -> vec:
    v.array.extend(o)
    return v


def _remove(v: vec, o: Any) -> vec:
    v.array.remove(o)
    return v


def _pop(v: vec, i: int = -1) -> tuple[vec, Any]:
    item = v.array.pop(i)
    return v, item


def modules() -> dict[str, ModuleType]:
    """The replacement modules by the names of librt."""
    package, strings, vecs = ModuleType("librt"), ModuleType("librt.strings"), ModuleType("librt.vecs")
    package.__path__ = []
    strings.BytesWriter = BytesWriter  # type: ignore[attr-defined]
    for width, code in LAYOUTS.items():
        for order, prefix in (("be", ">"), ("le", "<")):
            layout = struct.Struct(prefix + code)
            setattr(strings, f"read_{width}_{order}", _reader(layout))
            setattr(strings, f"write_{width}_{order}", _writer(layout))
    for name, value in (
        ("vec", vec),
        ("append", _append),
        ("extend", _extend),
        ("remove", _remove),
        ("pop", _pop),
    ):
        setattr(vecs, name, value)
    package.strings, package.vecs = strings, vecs  # type: ignore[attr-defined]
    return {"librt": package, "librt.strings": strings, "librt.vecs": vecs}
