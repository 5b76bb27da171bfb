"""Wheels that pip builds from the sources: compiled, or an error with the next step."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs" / "operations.md"
COMPILED = [
    line
    for line in (ROOT / "compiled_modules.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
BUILD_SECONDS_MAX = 1_500
"""Two minutes on a machine that does nothing else."""
LOADS = """
import importlib, json, sys
from pathlib import Path
import tidemill
built = json.loads(Path(tidemill.__file__).with_name("_built.json").read_text())
names = [source.removeprefix("src/").removesuffix(".py").replace("/", ".") for source in built]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def dockerfile() -> list[str]:
    """The lines of the container file that the documentation shows."""
    shown = re.search(r"```dockerfile\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    assert shown is not None
    return shown[1].splitlines()


def copied() -> list[str]:
    """Files and folders of the repository that the container file builds from."""
    return [
        name
        for line in dockerfile()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that a build needs, without what a build beside the sources left."""
    target = tmp_path / "source"
    target.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            left = shutil.ignore_patterns("*.so", "_built.json", "__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, target / name, ignore=left)
        else:
            shutil.copy(ROOT / name, target)
    return target


Setup = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def setup(tree: Path) -> Setup:
    """Runs ``setup.py`` of the tree, with these variables, and with no program on the PATH."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("CC", "TIDEMILL_BUILD")
        }
        return subprocess.run(
            [sys.executable, "setup.py", "--quiet", *arguments],
            cwd=tree,
            env={**environment, "PATH": str(tree / "nothing"), **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def only(folder: Path, pattern: str) -> Path:
    """The one file of a folder that has such a name."""
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX + 300)
def test_wheel_built_in_isolation_is_compiled_and_loads_its_compiled_modules(
    tree: Path, tmp_path: Path
) -> None:
    """In an environment with pip only, which installs the build requirements of pyproject.toml."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TIDEMILL_BUILD")
    }

    def run(*command: str, timeout_s: float = 300) -> str:
        done = subprocess.run(
            [str(tmp_path / "venv/bin" / command[0]), *command[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("pip", "wheel", "--no-deps", "--wheel-dir", "wheels", str(tree), timeout_s=BUILD_SECONDS_MAX)
    wheel = only(tmp_path / "wheels", "tidemill-*.whl")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    run("pip", "install", "--quiet", str(wheel))
    modules = json.loads(run("python", "-c", LOADS))
    assert len(modules) == len(COMPILED)
    assert {name: file for name, file in modules.items() if not file.endswith(".so")} == {}
    assert "compiled" in run("tidemill", "--version")


def test_build_without_compiler_names_the_package_and_the_alternative(setup: Setup, tree: Path) -> None:
    done = setup("bdist_wheel")
    assert done.returncode == 1
    assert "there is no C compiler" in done.stderr
    assert "apt-get install gcc" in done.stderr
    assert "TIDEMILL_BUILD=plain" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tree / "dist").exists()


def test_build_without_headers_of_python_is_reported(setup: Setup) -> None:
    done = setup("bdist_wheel", PATH=os.environ["PATH"], CC="cc -nostdinc")
    assert done.returncode == 1
    assert "'cc' does not compile Python's headers" in done.stderr
    assert "python3-dev" in done.stderr


def test_source_that_does_not_compile_is_an_error(setup: Setup, tree: Path) -> None:
    (tree / "compiled_modules.txt").write_text(COMPILED[0])
    with (tree / COMPILED[0]).open("a") as source:
        source.write('\nwrong: int = "no number"\n')
    done = setup("bdist_wheel", PATH=os.environ["PATH"])
    assert done.returncode == 1
    assert "Incompatible types in assignment" in done.stdout + done.stderr
    assert "mypyc refuses the sources" in done.stderr
    assert "TIDEMILL_BUILD=plain" in done.stderr
    assert not (tree / "dist").exists()


def test_a_plain_wheel_is_built_on_request(setup: Setup, tree: Path) -> None:
    """Also beside a compiled build, of which nothing comes into the wheel."""
    (tree / "src/tidemill/_built.json").write_text("{}")
    done = setup("bdist_wheel", TIDEMILL_BUILD="plain")
    assert done.returncode == 0, done.stderr
    wheel = only(tree / "dist", "*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {source.removeprefix("src/") for source in COMPILED} < set(names)
    assert [name for name in names if name.endswith((".so", "_built.json"))] == []


def test_an_inplace_build_is_reverted_by_a_plain_build(setup: Setup, tree: Path) -> None:
    """Builds one module as ``make build`` does."""
    (tree / "compiled_modules.txt").write_text(COMPILED[0])
    built = tree / "src/tidemill/_built.json"
    done = setup("build_ext", "--inplace", PATH=os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    assert list(json.loads(built.read_text())) == [COMPILED[0]]
    assert len(list((tree / "src").rglob("*.so"))) == 2  # The module, and the library of its group.
    done = setup("build_ext", "--inplace", TIDEMILL_BUILD="plain")
    assert done.returncode == 0, done.stderr
    assert not built.exists()
    assert list((tree / "src").rglob("*.so")) == []


def test_an_unknown_build_mode_is_refused(setup: Setup) -> None:
    done = setup("bdist_wheel", TIDEMILL_BUILD="fast")
    assert done.returncode == 1
    assert "TIDEMILL_BUILD=fast is none of compiled, plain" in done.stderr


def test_source_archive_is_complete_for_a_build(setup: Setup, tree: Path) -> None:
    """Without a compiler: making the archive compiles nothing."""
    done = setup("sdist")
    assert done.returncode == 0, done.stderr
    with tarfile.open(only(tree / "dist", "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = [
        file
        for name in copied()
        for file in ([tree / name] if (tree / name).is_file() else (tree / name).rglob("*.py"))
    ]
    assert {str(file.relative_to(tree)) for file in needed} - names == set()


def test_container_builds_its_wheel_with_the_python_that_runs_it() -> None:
    lines = dockerfile()
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(images) == 2
    assert len(set(images)) == 1
    assert any(line.startswith("RUN pip wheel ") for line in lines)
    assert [name for name in copied() if not (ROOT / name).exists()] == []
