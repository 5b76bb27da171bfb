"""The part of librt that the data path uses, in plain Python, for where librt does not load."""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class BytesWriter:
    """A growing byte string: ``librt.strings.BytesWriter``."""

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, x: int) -> None:
        self._data.append(x)

    def write(self, b: bytes | bytearray) -> None:
        self._data += b

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def truncate(self, size: int) -> None:
        del self._data[size:]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> int:
        return self._data[i]

    def __setitem__(self, i: int, x: int) -> None:
        self._data[i] = x


def _reader(layout: struct.Struct) -> Any:
    unpack = layout.unpack_from

    def read(b: bytes, index: int) -> int:
        if index < 0 or index + layout.size > len(b):
            raise IndexError("index out of range")
        value: int = unpack(b, index)[0]
        return value

    return read


def _writer(layout: struct.Struct) -> Any:
    pack = layout.pack

    def write(b: BytesWriter, n: int) -> None:
        b.write(pack(n))

    return write


class vec:  # noqa: N801 - librt's own name
    """``librt.vecs.vec`` of i64, i32 or u8, over ``array``."""

    def __init__(self, items: Any = (), *, capacity: int = 0, code: str = "q") -> None:
        self.array = array(code, items)

    def __class_getitem__(cls, item: Any) -> Any:
        code = {"i64": "q", "i32": "i", "u8": "B"}.get(getattr(item, "__name__", str(item)), "q")

        def make(items: Any = (), *, capacity: int = 0) -> vec:
            return cls(items, code=code)

        return make

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> Any:
        return self.array[i]

    def __setitem__(self, i: int, o: Any) -> None:
        self.array[i] = o

    def __iter__(self) -> Any:
        return iter(self.array)


def _append(v: vec, o: Any) -> vec:
    v.array.append(o)
    return v


def modules() -> dict[str, ModuleType]:
    """The modules to put under librt's names, by name."""
    package, strings, vecs = ModuleType("librt"), ModuleType("librt.strings"), ModuleType("librt.vecs")
    strings.BytesWriter = BytesWriter  # type: ignore[attr-defined]
    for width, layout in (("i16", _I16), ("i32", _I32), ("i64", _I64)):
        setattr(strings, f"read_{width}_be", _reader(layout))
        setattr(strings, f"write_{width}_be", _writer(layout))
    vecs.vec, vecs.append = vec, _append  # type: ignore[attr-defined]
    package.strings, package.vecs = strings, vecs  # type: ignore[attr-defined]
    return {"librt": package, "librt.strings": strings, "librt.vecs": vecs}
