"""Applies small faults to the source, one at a time, and runs the tests that concern each: which find it?

    make mutation SEED=1 SAMPLE=400

The faults are a sample of Cosmic Ray's, from a seed; the tests are those that run the line (``covering``). A
mutant is found when one of them fails, or does not end. All runs use copies of the source in plain Python
below ``build/mutation/``, where results are stored by the hash of the source: an interrupted run continues
where it stopped. A found mutant stays found; a survivor is tested again when tests have changed.

Survivors are printed with their verdict from ``docs/mutation.md``. The run fails when fewer than 85% of the
mutants that are not equivalent were found, or a mutant of the sample has no result: a worker has ended, or
pytest did not run the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from covering import OPTIONS, ROOT, TESTS, Covering, concerning, environment, measure

from mutants import Mutant, changed_lines, mutated, sample

PACKAGES = ["log", "records", "broker", "groups", "client", "pipeline"]
LEFT_OUT_PACKAGES = ["pipeline/demo"]
"""The demonstration has no tests of its parts: ``make run`` runs it as a whole, and it checks its results."""
FOLDERS = [
    *("records", "log", "groups", "client", "broker", "pipeline", "replication", "transactions"),
    *("interchange", "testing", "crash", "server", "clients", "wire"),
]
"""Directories of tests that can notice a fault in one of the packages."""
LEFT_OUT = {"test_interchange_kafka.py", "test_crash_kill.py"}
"""They bring Kafka's tools, or kill for minutes."""

PAGE = ROOT / "docs" / "mutation.md"
FOUND_MIN = 0.85
TESTS_S_MAX, TESTS_MAX = 60.0, 400
"""The tests that are tried first on a mutant: so long together, as they took under coverage, and so many."""
REST_S_MAX = 240.0
"""A mutant that survives them is tried with the other tests that run its line, for so long together."""
TEST_TIMEOUT_S = 120
PASSED, FAILED, NO_END = 0, 1, -1
"""Exit codes of pytest; -1 is that of :mod:`mutation_server` for a run that does not end."""
UNCLEAN = 3
"""Exit code of pytest for an error of its own, also after its summary: a socket left open."""
NOT_COLLECTED = 4
"""Exit code of pytest where a test that it is to run by name is not there, or its file cannot be imported."""
STEADY = ("records", "log", "groups")
"""Tests in other directories wait for processes with a limit, and fail now and then on a busy machine: what
one of them notices is tried twice, and once without the mutant."""


class Result(NamedTuple):
    """The result of a mutant."""

    name: str
    outcome: str
    """``found``, ``survived``, or ``not run``: no test runs its line."""
    before: str
    after: str
    by: str
    """The test that noticed it."""
    tests: int
    seconds: float
    key: str
    """The hash of the tests that did not notice it."""


class NoVerdict(Exception):
    """The tests of a mutant did not run."""


class Failed(NamedTuple):
    """Failed tests."""

    by: str
    """The test that fails first, or why there is none."""
    code: int


class Worker(threading.Thread):
    """Tests mutants one after the other, in a separate copy of the source."""

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(daemon=True)
        self.run_ = run
        self.source = run.build / f"worker-{number}" / "src"
        copy_source(self.source)
        self.server = subprocess.Popen(
            [sys.executable, str(TESTS / "mutation" / "mutation_server.py")],
            cwd=ROOT,
            env=environment(self.source),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> None:
        while (mutant := self.run_.next()) is not None:
            try:
                self.run_.note(mutant, self.tried(mutant))
            except NoVerdict as problem:
                print(f"no result  {mutant.name}  {problem}", flush=True)
        self.server.communicate()

    def tried(self, mutant: Mutant) -> Result:
        """Runs the tests of a mutant until one fails."""
        before = self.run_.sources[mutant.module]
        after = mutated(mutant, before)
        groups = self.run_.tests_of(mutant)
        began = time.monotonic()
        outcome, by = "not run", ""
        try:
            for tests in groups:
                if tests and outcome != "found":
                    outcome, by = self._outcome(tests, mutant.module, before, after)
        finally:
            self._write(mutant.module, before)
        took_s = round(time.monotonic() - began, 1)
        changed = changed_lines(before, after)
        count = sum(map(len, groups))
        return Result(mutant.name, outcome, *changed, by, count, took_s, self.run_.tests_key)

    def _write(self, module: str, source: str) -> None:
        path = self.source / module
        path.write_text(source, "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # The file may have the same size and second.

    def _outcome(self, tests: Sequence[str], module: str, before: str, after: str) -> tuple[str, str]:
        left = list(tests)
        while True:
            self._write(module, after)
            failed = self._failing(left)
            if failed is None:
                return "survived", ""
            if failed.code == NOT_COLLECTED:
                self._write(module, before)
                if self._failing(left, "--collect-only") is not None:
                    raise NoVerdict(f"{failed.by} is not collected without the fault either")
                return "found", failed.by
            by = failed.by
            if by not in left or by.split("/")[1] in STEADY:
                return "found", by
            if self._failing([by]) is not None:
                self._write(module, before)
                if self._failing([by]) is None:
                    return "found", by
            left.remove(by)

    def _failing(self, tests: Sequence[str], *more: str) -> Failed | None:
        """Returns the failed tests; None if all pass. Raises NoVerdict if pytest does not run the tests."""
        if not tests:
            return None
        names = self.source.parent / "tests.txt"
        names.write_text("\n".join(tests))
        output = self.source.parent / "output.txt"
        arguments = [*OPTIONS, "-W", "ignore::pytest.PytestAssertRewriteWarning", "-x", "--tb=no", "-rfE"]
        arguments += [f"--timeout={TEST_TIMEOUT_S}", *more, f"@{names}"]
        limit_s = 600 + 20 * sum(self.run_.covering.seconds[test] for test in tests)
        code = self._answer(json.dumps([arguments, str(output), limit_s]))
        if code == PASSED:
            return None
        told = output.read_text(errors="replace")
        for line in told.splitlines():
            kind, _, what = line.partition(" ")
            if code in (FAILED, UNCLEAN, NOT_COLLECTED) and kind in ("FAILED", "ERROR"):
                by = next((test for test in tests if what == test or what.startswith(f"{test} - ")), what)
                return Failed(by, FAILED if code == UNCLEAN else code)
        text = f"exit code {code}: {told.strip()[-200:]}"
        if code in (FAILED, NOT_COLLECTED, NO_END):
            return Failed(text, code)
        raise NoVerdict(text)

    def _answer(self, asked: str) -> int:
        """Returns the exit code of the server's response."""
        if self.server.stdin is None or self.server.stdout is None:
            raise RuntimeError("the server of the tests has no input or no output")
        self.server.stdin.write(asked + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server of the tests has ended with {self.server.wait()}")
        return int(json.loads(answer))


def copy_source(target: Path) -> None:
    """Copies the source without compiled files."""
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "_built.json", "__pycache__")
    shutil.copytree(ROOT / "src", target, ignore=ignored)


def hash_of(paths: Sequence[Path]) -> str:
    """Returns a short hash of the names and contents of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


class Run:
    """A sample of mutants, and their results."""

    def __init__(self, seed: int, count: int, workers: int) -> None:
        key = hash_of(list((ROOT / "src").rglob("*.py")))
        self.build = ROOT / "build" / "mutation" / key
        self.build.mkdir(parents=True, exist_ok=True)
        print(f"source {key}, seed {seed}, {count} mutants; results are kept in {self.build}", flush=True)
        self.tests_key = hash_of(list(TESTS.rglob("*.py")))
        self.sources = {
            str(path.relative_to(ROOT / "src")): path.read_text("utf-8")
            for path in (ROOT / "src").rglob("*.py")
        }
        files = [
            path
            for folder in FOLDERS
            for path in sorted((TESTS / folder).glob("test_*.py"))
            if path.name not in LEFT_OUT
        ]
        copy_source(self.build / "whole" / "src")
        self.covering: Covering = measure(self.build / "whole" / "src", key, files, self.build, workers)
        self.mutants = sample(ROOT / "src", PACKAGES, LEFT_OUT_PACKAGES, count, seed)
        self.results: dict[str, Result] = {}
        self.kept = self.build / "results.jsonl"
        if self.kept.exists():
            for line in self.kept.read_text().splitlines():
                result = Result(*json.loads(line))
                self.results[result.name] = result
        self._waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        # Mutants that the page lists as equivalent come last: they are tested with all tests.
        known = verdicts()
        left = [mutant for mutant in self.mutants if self.result_of(mutant) is None]
        for mutant in sorted(left, key=lambda one: is_equivalent(one, self.sources, known)):
            self._waiting.put(mutant)
        self._left = self._waiting.qsize()
        self._lock = threading.Lock()

    def result_of(self, mutant: Mutant) -> Result | None:
        """Returns the result of a mutant; None if it was not tested, or survived former tests."""
        result = self.results.get(mutant.name)
        return result if result and (result.outcome == "found" or result.key == self.tests_key) else None

    def next(self) -> Mutant | None:
        """Returns the next mutant to test; None at the end."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Returns the tests of a mutant, and those that run if it survives the first."""
        chosen: list[str] = []
        rest: list[str] = []
        total_s = rest_s = 0.0
        for test in concerning(mutant, self.covering, self.sources):
            seconds = self.covering.seconds[test]
            if not rest and (not chosen or (total_s + seconds <= TESTS_S_MAX and len(chosen) < TESTS_MAX)):
                chosen.append(test)
                total_s += seconds
            elif rest_s + seconds <= REST_S_MAX:
                rest.append(test)
                rest_s += seconds
        return chosen, rest

    def note(self, mutant: Mutant, result: Result) -> None:
        """Stores and prints the result of a mutant."""
        with self._lock:
            self.results[mutant.name] = result
            with self.kept.open("a") as file:
                file.write(json.dumps(result) + "\n")
            self._left -= 1
            detail = result.by if result.outcome == "found" else f"{result.before}  =>  {result.after}"
            print(
                f"{self._left:4} left  {result.outcome:8} {result.seconds:6.1f} s  {mutant.name}  {detail}",
                flush=True,
            )


def verdicts() -> dict[tuple[str, str, str], str]:
    """Returns the verdicts of the page, by module, original line and mutated line."""
    found = {}
    if PAGE.exists():
        for line in PAGE.read_text("utf-8").splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            if len(cells) == 6 and cells[1].startswith("`"):
                module, before, after = (cell.strip("`").replace("\\|", "|") for cell in cells[1:4])
                found[module, before, after] = cells[4]
    return found


def is_equivalent(mutant: Mutant, sources: dict[str, str], known: dict[tuple[str, str, str], str]) -> bool:
    """Whether the page lists a mutant as equivalent."""
    module = mutant.module.removeprefix("tidemill/")
    if not any(key[0] == module for key in known):
        return False
    source = sources[mutant.module]
    changed = changed_lines(source, mutated(mutant, source))
    return known.get((module, *changed), "").startswith("equivalent")


def report(run: Run) -> bool:
    """Prints the results; returns whether enough mutants were found."""
    known = verdicts()
    counts: Counter[tuple[str, str]] = Counter()
    survivors = []
    missing = []
    for mutant in run.mutants:
        result = run.result_of(mutant)
        if result is None:
            missing.append(mutant.name)
            continue
        module = mutant.module.removeprefix("tidemill/")
        outcome = result.outcome
        if outcome != "found":
            verdict = known.get((module, result.before, result.after), "no verdict yet")
            outcome = "equivalent" if verdict.startswith("equivalent") else "survived"
            survivors.append((module, mutant.first_line, result, verdict))
        counts[module.split("/")[0], outcome] += 1
        counts["all", outcome] += 1
    print("\nsurvivors:")
    for module, line, result, verdict in sorted(survivors):
        print(f"  {module}:{line} ({result.tests} tests)")
        print(f"    - {result.before}\n    + {result.after}\n    {verdict}")
    print(f"\n{'package':10} {'found':>6} {'survived':>9} {'equivalent':>11}")
    for package in (*PACKAGES, "all"):
        found, survived, equivalent = (counts[package, one] for one in ("found", "survived", "equivalent"))
        share = f"{found / (found + survived):.0%}" if found + survived else ""
        print(f"{package:10} {found:6} {survived:9} {equivalent:11}  {share}")
    found, survived = counts["all", "found"], counts["all", "survived"]
    for name in missing:
        print(f"no result: {name}")
    return not missing and found >= FOUND_MIN * (found + survived)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    run = Run(given.seed, given.sample, given.workers)
    workers = [Worker(run, number) for number in range(given.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 0 if report(run) else 1


if __name__ == "__main__":
    sys.exit(main())
