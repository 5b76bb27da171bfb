"""Builds the compiled data path: the modules of ``compiled_modules.txt`` through mypyc.

A build without them is five times slower at runtime, so a failed build is an error that names the next step.
``TIDEMILL_BUILD=plain`` leaves them out on purpose: the same source then runs as plain Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
MODES = ("compiled", "plain")
MODE = os.environ.get("TIDEMILL_BUILD") or "compiled"
BUILDING = {"build", "build_ext", "bdist_wheel", "install", "develop", "editable_wheel"}
"""The commands that need the compiler; others (metadata, source archives) are spared its time."""
PLAIN = "or set TIDEMILL_BUILD=plain to install without compiled modules (five times slower)"
COMPILER_PACKAGES = (
    "install a C compiler and Python's headers (Debian, Ubuntu: apt-get install gcc libc6-dev python3-dev; "
    "Fedora: dnf install gcc python3-devel; Alpine: apk add gcc musl-dev python3-dev; "
    "macOS: xcode-select --install)"
)

LINUX_OPTIONS = ("-fno-semantic-interposition", "-fno-tree-slp-vectorize")
"""The first lets functions of the group be inlined: without it they are called through the linker's table.

The second keeps GCC from storing two attributes at once: it writes both values to the stack and reads them
back as one vector, which the processor can only do after both writes. Three such reads took 10 of the 34 ns
of a record's validation.
"""


def fail(problem: str, next_step: str) -> NoReturn:
    raise SystemExit(
        f"\ntidemill: the compiled modules cannot be built: {problem}.\nNext: {next_step}, {PLAIN}."
    )


def compiled_sources() -> list[str]:
    lines = (ROOT / "compiled_modules.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def check_compiler() -> None:
    """Compiles a file that includes ``Python.h``: what is missing is found before the minutes of a build."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(command[0]) is None:
        fail(f"there is no C compiler, '{command[0]}' is not on the PATH", COMPILER_PACKAGES)
    includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX; }\n")
        compiled = subprocess.run(
            [*command, *(f"-I{include}" for include in includes), "-c", str(source), "-o", f"{source}.o"],
            check=False,
            capture_output=True,
            text=True,
        )
    if compiled.returncode:
        fail(
            f"'{command[0]}' does not compile Python's headers:\n{compiled.stderr.strip()}\n",
            COMPILER_PACKAGES,
        )


def extensions() -> list[Extension]:
    """The extension modules to build; none in plain mode, and for commands that build nothing."""
    if MODE not in MODES:
        raise SystemExit(f"tidemill: TIDEMILL_BUILD={MODE} is none of {', '.join(MODES)}")
    if MODE == "plain" or not BUILDING & set(sys.argv):
        return []
    check_compiler()
    os.chdir(ROOT)
    os.environ["MYPYPATH"] = str(ROOT / "src")
    try:
        from mypyc.build import mypycify

        modules = mypycify(
            [
                "--no-warn-unused-ignores",
                # The Python that the modules are for, whatever version the type check of development names.
                f"--python-executable={sys.executable}",
                f"--python-version={sys.version_info.major}.{sys.version_info.minor}",
                *compiled_sources(),
            ],
            opt_level="3",
            debug_level="0",
            group_name="tidemill",
        )
    except ImportError as problem:
        fail(str(problem), "install what build-system.requires of pyproject.toml names")
    except SystemExit as problem:
        fail(f"mypyc refuses the sources ({problem}), with the messages above", "report them")
    if sys.platform.startswith("linux"):
        for module in modules:
            module.extra_compile_args = [*module.extra_compile_args, *LINUX_OPTIONS]
    return modules


class BuildCompiledModules(build_ext):
    """Compiles, and adds ``_built.json``: what was compiled, so that edited source beside it is noticed."""

    def run(self) -> None:
        if not self.extensions:
            return
        for stale in set(Path(self.build_lib).rglob("*.so")) - set(map(Path, super().get_outputs())):
            stale.unlink()
        try:
            super().run()
        except (BaseError, CCompilerError) as problem:
            fail(f"{problem}, with the compiler's messages above", COMPILER_PACKAGES)
        self.built_file().write_text(json.dumps(digests(), indent=1))

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), str(self.built_file())]

    def built_file(self) -> Path:
        return (ROOT / "src" if self.inplace else Path(self.build_lib)) / "tidemill/_built.json"


def digests() -> dict[str, str]:
    return {source: hashlib.sha256((ROOT / source).read_bytes()).hexdigest() for source in compiled_sources()}


def remove_stale() -> None:
    """Removes what an earlier build left beside the sources, all of it where plain is asked for there.

    A shim without its part of the new library would not load.
    """
    plain = MODE == "plain" and bool({"build_ext", "develop", "editable_wheel"} & set(sys.argv))
    for built in (ROOT / "src").rglob("*.so"):
        source = built.with_name(built.name.split(".")[0] + ".py").relative_to(ROOT)
        group = built.name.startswith("tidemill__mypyc")
        if plain or (not group and str(source) not in compiled_sources()):
            built.unlink()
    if plain:
        (ROOT / "src/tidemill/_built.json").unlink(missing_ok=True)


remove_stale()
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildCompiledModules})
