"""Maps lines of the source to the tests that run them, and selects the tests of a mutant.

Every test file runs once under coverage, with one context for each test. The results are stored below the
build directory by the hash of the test file and of the source, so that only new test files run again.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

from mutants import Mutant

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FILE_S_MAX = 600

OPTIONS = (
    *("-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:rerunfailures"),
    *("-p", "mutation_context"),
)
"""Without second tries, in the order in which they are given."""

IN_PROCESSES: dict[str, tuple[str, ...]] = {
    "broker": ("test_server_process", "test_clients_admin", "test_clients_errors", "test_client_moves"),
    "client": ("test_client_consumer_coordinator", "test_client_records"),
    "groups": ("test_clients_groups", "test_client_consumer_coordinator"),
    "log": ("test_crash_stop", "test_log_cleaner"),
    "pipeline": ("test_pipeline_jobs", "test_pipeline_spark_batch", "test_pipeline_spark_stream"),
    "records": ("test_clients_old_formats", "test_client_records"),
}
"""The files whose tests start what runs the lines of a package that no test runs in its own process."""

CHOSEN = "not clients and not every and not matrix and not slow"
"""The marks of the tests that may be asked."""


class Covering(NamedTuple):
    """The results of the runs under coverage."""

    seconds: dict[str, float]
    """How long each test took."""
    tests: dict[str, dict[int, set[str]]]
    """The tests that run a line, by module (a path below ``src``) and line."""

    def of(self, module: str, first: int, last: int) -> set[str]:
        """Returns the tests that run one of the lines."""
        lines = self.tests.get(module, {})
        return {test for line in range(first, last + 1) for test in lines.get(line, ())}


def environment(source: Path, **more: str) -> dict[str, str]:
    """Returns the environment for tests of the package below ``source``."""
    paths = os.pathsep.join((str(source), str(TESTS / "mutation")))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", **more}


def measure(source: Path, key: str, files: Sequence[Path], build: Path, workers: int) -> Covering:
    """Runs the test files without stored results under coverage; returns all results."""
    folder = build / "covering"
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\nbranch = false\nsource = {source / 'tidemill'}\n")
    kept = {file: folder / f"{file.stem}-{_hash_of(file, key)}.json" for file in files}
    missing = [file for file in files if not kept[file].exists()]
    with ThreadPoolExecutor(workers) as pool:
        for at, file in enumerate(pool.map(lambda file: _run(source, file, kept[file], settings), missing)):
            print(f"coverage {at + 1}/{len(missing)}: {file.name}", flush=True)
    covering = Covering({}, defaultdict(lambda: defaultdict(set)))
    for file in files:
        found = json.loads(kept[file].read_text())
        covering.seconds.update(found["seconds"])
        names = found["names"]
        for module, lines in found["lines"].items():
            for line, numbers in lines.items():
                covering.tests[module][int(line)].update(names[number] for number in numbers)
    return covering


def _hash_of(file: Path, key: str) -> str:
    return hashlib.sha256(key.encode() + file.read_bytes()).hexdigest()[:12]


def _run(source: Path, file: Path, kept: Path, settings: Path) -> Path:
    data, times = kept.with_suffix(".cov"), kept.with_suffix(".times")
    for one in (data, times):
        one.unlink(missing_ok=True)
    name = str(file.relative_to(ROOT))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", f"--data-file={data}"]
    command += ["-m", "pytest", *OPTIONS, "-m", CHOSEN, "--timeout=120", name]
    given = environment(source, MUTATION_TIMES=str(times))
    try:
        subprocess.run(command, cwd=ROOT, env=given, capture_output=True, timeout=FILE_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name} took longer than {FILE_S_MAX} s: what it covered until then counts", flush=True)
    lines = times.read_text().splitlines() if times.exists() else []
    passed = {test: seconds for test, seconds, good in map(json.loads, lines) if good}
    # A name that another run does not have (with a time or an address) cannot be selected.
    listed = [sys.executable, "-m", "pytest", *OPTIONS, "-m", CHOSEN, "--collect-only", name]
    names = subprocess.run(listed, cwd=ROOT, env=given, capture_output=True, text=True, check=False).stdout
    seconds = {test: passed[test] for test in names.splitlines() if test in passed}
    kept.write_text(json.dumps(_read(source, data, seconds)))
    for one in (data, times):
        one.unlink(missing_ok=True)
    return file


def _read(source: Path, data: Path, seconds: dict[str, float]) -> dict[str, object]:
    """Reads the stored results of a run: names are numbered, since lines have many of them."""
    measured = CoverageData(str(data))
    if data.exists():
        measured.read()
    numbers = {test: number for number, test in enumerate(seconds)}
    lines: dict[str, dict[int, list[int]]] = {}
    for path in measured.measured_files():
        found = {
            line: [numbers[test] for test in tests if test in numbers]
            for line, tests in measured.contexts_by_lineno(path).items()
        }
        lines[str(Path(path).relative_to(source))] = {line: tests for line, tests in found.items() if tests}
    return {"seconds": seconds, "names": list(seconds), "lines": lines}


def concerning(mutant: Mutant, covering: Covering, sources: dict[str, str]) -> list[str]:
    """Selects the tests that can find a mutant: those named after its module first, then those of its
    package.

    They run its line. For a line that runs at import or in another process, they run the lines that use the
    name that its statement defines, any line of its module, or lines of modules that name its module; or
    their file uses that name; and those of :data:`IN_PROCESSES`.
    """
    found = covering.of(mutant.module, mutant.first_line, mutant.last_line)
    defined = defined_at_import(sources[mutant.module], mutant.first_line)
    if not found or defined:
        # Under coverage, the test that imports the module first runs the lines of its import.
        found = found | _of_definition(mutant.module, defined, covering, sources)
        found |= _of_files_with(with_dependents(sources[mutant.module], defined), covering)
        # A statement that uses a constant may run at import itself: a default, or another constant.
        found |= {test for tests in covering.tests.get(mutant.module, {}).values() for test in tests}
        files = IN_PROCESSES.get(mutant.module.split("/")[1], ())
        found |= {test for test in covering.seconds if Path(test.partition("::")[0]).stem in files}
    package, stem = mutant.module.split("/")[1], Path(mutant.module).stem

    def order(test: str) -> tuple[bool, bool, float, str]:
        file = Path(test.partition("::")[0])
        return stem not in file.stem, file.parent.name != package, covering.seconds[test], test

    return sorted(found, key=order)


def defined_at_import(source: str, line: int) -> set[str]:
    """Returns the names that the statement with this line defines at import; none inside of a function.

    A decorator, a default and a field of a class count for the function or class that contains them.
    """
    names: set[str] = set()
    body = ast.parse(source).body
    while True:
        node = next((one for one in body if _first_line(one) <= line <= (one.end_lineno or 0)), None)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)} or names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return {node.name} if line < node.body[0].lineno else set()
        if not isinstance(node, ast.ClassDef):
            return names
        names, body = {node.name}, node.body


def with_dependents(source: str, names: set[str]) -> set[str]:
    """Adds the names of constants of the module that are computed from the names."""
    found = set(names)
    for node in ast.parse(source).body:  # In the order of their definitions, so that one pass is enough.
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        if isinstance(node, ast.Assign | ast.AnnAssign) and used & found:
            found |= defined_at_import(source, node.lineno)
    return found


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def _of_files_with(names: set[str], covering: Covering) -> set[str]:
    """Returns the tests of the files that use one of the names: they may do so without the source."""
    chosen: dict[str, bool] = {}
    for file in {test.partition("::")[0] for test in covering.seconds}:
        path = ROOT / file
        source = path.read_text("utf-8") if path.exists() else ""
        chosen[file] = any(name in source and _lines_with(name, source) for name in names)
    return {test for test in covering.seconds if chosen[test.partition("::")[0]]}


def _of_definition(module: str, names: set[str], covering: Covering, sources: dict[str, str]) -> set[str]:
    """Returns the tests of the lines that use one of the names; else those of the modules that name
    ``module``.
    """
    found: set[str] = set()
    for name in names:
        for other, source in sources.items():
            if name in source:
                for at in _lines_with(name, source):
                    found |= covering.of(other, at, at)
    if not found:
        for other, source in sources.items():
            if other == module or Path(module).stem in source:
                for tests in covering.tests.get(other, {}).values():
                    found |= tests
    return found


def _lines_with(name: str, source: str) -> Iterable[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.NAME and token.string == name}
