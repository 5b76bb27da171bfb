"""Checksums of records, as functions of C extensions over any buffer: CRC-32C of batches, CRC-32 of messages.

CRC-32 comes from ISA-L where it is installed: each old message has its own, and for such short data zlib
takes several times as long.

``import crc32c`` reads the installed package's metadata for its version, which takes 40 ms of a broker's
start; so the extension module inside is loaded directly. Where it has moved, the package is imported as
usual. This module is not compiled: it runs once.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import zlib
from collections.abc import Callable
from typing import Any

PACKAGE = "crc32c"
EXTENSION = "crc32c._crc32c"


def _load() -> Callable[..., int]:
    try:
        module: Any = sys.modules.get(EXTENSION) or _load_extension()
        function: Callable[..., int] = module.crc32c
        if function(b"123456789") == 0xE3069283:
            return function
    except Exception:  # noqa: BLE001 - another layout of the package: fall back to its public import
        sys.modules.pop(EXTENSION, None)
    from crc32c import crc32c as public

    return public  # type: ignore[no-any-return]


def _load_extension() -> Any:
    package = importlib.machinery.PathFinder.find_spec(PACKAGE)
    if package is None or package.submodule_search_locations is None:
        raise ImportError(f"{PACKAGE} is not installed")
    spec = importlib.machinery.PathFinder.find_spec(EXTENSION, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{EXTENSION} is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[EXTENSION] = module
    spec.loader.exec_module(module)
    return module


crc32c = _load()
"""``crc32c(buffer, value=0) -> int``: the checksum, or its continuation over another buffer."""


def _load_crc32() -> Callable[..., int]:
    try:
        from isal import isal_zlib

        fast: Callable[..., int] = isal_zlib.crc32
        if fast(b"123456789") == 0xCBF43926:
            return fast
    except Exception:  # noqa: BLE001 - not built for this machine: zlib computes the same
        pass
    return zlib.crc32


crc32 = _load_crc32()
"""``crc32(buffer, value=0) -> int``, likewise."""
