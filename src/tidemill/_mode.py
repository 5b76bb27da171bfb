"""Chooses between the compiled data path and the same source as plain Python.

The hot modules are compiled by mypyc at install and lie beside their source. They are used when they
load; where they do not (built without, another ABI of librt), or where ``TIDEMILL_PLAIN=1`` asks for it,
an import hook loads the source instead. ``tidemill --version`` and the metric
``tidemill_compiled`` say which it is.
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
PROBE = "tidemill._probe"
ROOT = os.path.dirname(os.path.realpath(__file__))

compiled: bool = False
reason: str = ""


def select() -> None:
    """Decides once, at the first import of the package."""
    global compiled, reason
    reason = _provide_librt() or _plain_reason()
    compiled = not reason
    if not compiled:
        sys.modules.pop(PROBE, None)
        sys.meta_path.insert(0, _SourceFinder())


def _plain_reason() -> str:
    """Why the compiled modules are not to be used; empty when they are."""
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
    """Plain mode runs without librt too: the same functions in plain Python take its name.

    Returns what keeps librt from loading, or nothing.
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
    """Finds ``tidemill.*`` modules as source files only, past compiled ones of the same name.

    A meta path finder by its shape: importlib.abc and pathlib would double the time of this import.
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
