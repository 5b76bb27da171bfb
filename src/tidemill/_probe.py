"""The smallest compiled module: whether it loads tells whether the others will.

librt checks its ABI when a module that uses it is imported, with ImportError, AttributeError or ValueError,
and by then it would be too late to choose the plain source for the modules imported before.
"""

from __future__ import annotations

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64


def probe() -> bool:
    """Takes a number through both parts of librt."""
    writer = BytesWriter()
    write_i64_be(writer, -2)
    items = append(vec[i64](), read_i64_be(writer.getvalue(), 0))
    return len(items) == 1 and items[0] == -2
