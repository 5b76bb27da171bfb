"""A minimal compiled module: if it loads, the others load, too.

librt checks its ABI at the import of a module that uses it, and raises ImportError, AttributeError or
ValueError. For the modules imported before it would be too late to select the plain source.
"""

from __future__ import annotations

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64


def probe() -> bool:
    """Passes a number through both parts of librt."""
    writer = BytesWriter()
    write_i64_be(writer, -2)
    items = append(vec[i64](), read_i64_be(writer.getvalue(), 0))
    return len(items) == 1 and items[0] == -2
