"""Builds the compiled data path: the modules of ``compiled_modules.txt`` through mypyc.

Where no C compiler is, the package installs without them and runs from the same source, slower.
``TIDEMILL_BUILD=plain`` leaves them out, ``TIDEMILL_BUILD=compiled`` makes a failed build an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
MODE = os.environ.get("TIDEMILL_BUILD", "auto")
BUILDING = {"build", "build_ext", "bdist_wheel", "install", "develop", "editable_wheel"}
"""The commands that need the compiler; others (metadata, source archives) are spared its time."""


def compiled_sources() -> list[str]:
    lines = (ROOT / "compiled_modules.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def extensions() -> list[Extension]:
    if MODE == "plain" or not compiled_sources() or not BUILDING & set(sys.argv):
        return []
    os.chdir(ROOT)
    os.environ["MYPYPATH"] = str(ROOT / "src")
    try:
        from mypyc.build import mypycify

        modules = mypycify(
            ["--no-warn-unused-ignores", *compiled_sources()],
            opt_level="3",
            debug_level="0",
            group_name="tidemill",
        )
    except (ImportError, SystemExit) as problem:
        if MODE == "compiled":
            raise
        print(f"tidemill: building without compiled modules: {problem}", file=sys.stderr)
        return []
    for module in modules:
        module.optional = MODE != "compiled"
        if sys.platform.startswith("linux"):
            # Without this a function of the group is called through the linker's table, never inlined.
            module.extra_compile_args = [*module.extra_compile_args, "-fno-semantic-interposition"]
    return modules


def remove_stale() -> None:
    """Removes what an earlier build left: a shim without its part of the new library would not load."""
    for built in (ROOT / "src").rglob("*.so"):
        source = built.with_name(built.name.split(".")[0] + ".py").relative_to(ROOT)
        if not built.name.startswith("tidemill__mypyc") and str(source) not in compiled_sources():
            built.unlink()


def record_sources() -> None:
    """Notes what was compiled, so that a compiled file beside edited source is noticed."""
    digests = {
        source: hashlib.sha256((ROOT / source).read_bytes()).hexdigest() for source in compiled_sources()
    }
    (ROOT / "src/tidemill/_built.json").write_text(json.dumps(digests, indent=1))


modules = extensions()
remove_stale()
if modules:
    record_sources()
setup(ext_modules=modules)
