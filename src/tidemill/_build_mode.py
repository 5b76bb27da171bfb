"""Selects the compiled data path or the same source as plain Python.

mypyc compiles the modules of the data path at the installation, next to their source. They are used if they
load. If they do not (not built, or another ABI of librt), or with ``TIDEMILL_PLAIN=1``,
an import hook loads the source instead. ``tidemill --version`` and the metric
``tidemill_compiled`` report the mode.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

GROUP_LIBRARY = "tidemill__mypyc"
PROBE = "tidemill._build_probe"
ROOT = os.path.dirname(os.path.realpath(__file__))

compiled: bool = False
reason: str = ""


def select() -> None:
    """Selects the mode; called once, at the first import of the package."""
    global compiled, reason
    reason = _provide_librt() or _plain_reason()
    compiled = not reason
    if not compiled:
        sys.modules.pop(PROBE, None)
        sys.meta_path.insert(0, _SourceFinder())


def _plain_reason() -> str:
    """The reason for plain mode; empty in compiled mode."""
    if os.environ.get("TIDEMILL_PLAIN", "") not in ("", "0"):
        return "TIDEMILL_PLAIN is set"
    if not os.path.exists(os.path.join(ROOT, "_built.json")):
        return "built without compiled modules"
    try:
        importlib.import_module(GROUP_LIBRARY)
        probe = importlib.import_module(PROBE)
        works = probe.probe()
    except Exception as problem:  # noqa: BLE001 - an ABI mismatch is a ValueError, a missing file an ImportError
        return f"the compiled modules do not load: {problem}"
    if str(probe.__file__).endswith(".py"):
        return "the compiled modules are incomplete: build them again"
    return "" if works else "the compiled modules give wrong answers"


def _provide_librt() -> str:
    """Replaces librt by plain Python if it does not load.

    Returns the reason, or an empty string.
    """
    try:
        importlib.import_module("librt.strings")
        importlib.import_module("librt.vecs")
    except Exception as problem:  # noqa: BLE001 - a broken librt must not keep the broker from starting
        from tidemill import _librt_plain

        sys.modules.update(_librt_plain.modules())
        return f"librt does not load: {problem}"
    return ""


class _SourceFinder:
    """Finds only the source files of ``tidemill.*`` modules, not the compiled ones.

    It implements the protocol of a meta path finder without importlib.abc, which would double the time of
    this import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("tidemill."):
            return None
        source = os.path.join(os.path.dirname(ROOT), fullname.replace(".", os.sep) + ".py")
        if not os.path.isfile(source):
            return None
        return importlib.util.spec_from_file_location(fullname, source)
