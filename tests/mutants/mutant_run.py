"""Plants one fault after the other in a copy of the source, and searches for each with simulated clusters.

    make mutants SEEDS=300 FAULTS='min-insync-unchecked never-truncates'

First the unchanged source runs with each seed, and probes in it count the effects of each fault. A
seed with which the unchanged source breaks a promise is not used. A seed in which a fault has no effect
runs with the fault as without it, and is omitted. Of the other seeds, a fault first gets those that found it
in an earlier source, here or in the table of the page, then the first few in their order, then those in which
it has the most effects.

Results are stored below ``build/mutants`` by the digest of the source: an interrupted run continues where it
stopped. Results of other sources do not count. The exit code is 1 when seeds find less than 95% of the faults
that name no test, or a test does not find the fault that names it. With FAULTS only these are judged, and the
page keeps the rows of the others; with SEEDS=0 only those that name a test.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from mutant_table import (
    Result,
    State,
    are_enough,
    not_run,
    rows_of,
    seeds_in_table,
    summary_of,
    write_table,
)
from planted_faults import FAULTS
from planting import COUNTERS_SOURCE, MODULE, Fault, lines_of, plant, with_probes

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tests" / "simulation"))

from source_digest import SIMULATED, digest_of  # noqa: E402

PACKAGE = Path("src/tidemill")
COPIED = (Path("src/tidemill"), Path("tests/simulation"), Path("tests/coordination"))
SEED_RUNS = Path("tests/mutants/mutant_seeds.py")
SEED_RUN_FILES = (SEED_RUNS, Path("tests/mutants/error_origin.py"))
TESTS = ROOT / "tests"
STATES = ROOT / "build" / "mutants"
PAGE = ROOT / "docs" / "mutants.md"
SEEDS = 300
ROUNDS = (5, 20)
"""The seeds that each fault gets before any fault gets more: these find most faults."""
BATCH = 10
"""Seeds that a process of the unchanged source runs."""
TEST_PASSED, TEST_FAILED = 0, 1
"""Exit codes of pytest; it has others for what is no test, or did not run."""
ANSWER_S_MAX = 400.0
"""The time limit for a result of a process of seeds, which ends a seed after 300 s."""
ENDED = ("endless", "simulator")
"""Outcomes after which the process of the seeds may end."""


class Tree:
    """A copy of the files of a run, for one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "_built.json")
        for one in COPIED:
            shutil.copytree(ROOT / one, path / one, ignore=ignored)
        (path / SEED_RUNS).parent.mkdir(parents=True)
        for one in SEED_RUN_FILES:
            shutil.copy(ROOT / one, path / one)
        (path / "src" / f"{MODULE}.py").write_text(COUNTERS_SOURCE)
        self.originals = {one: (path / PACKAGE / one).read_text() for one in {fault.file for fault in FAULTS}}
        """The sources that faults are planted in."""

    def plant(self, fault: Fault) -> None:
        """Plants ``fault`` in the copy, and removes any other. Raises NotApplicable."""
        self._write({**self.originals, fault.file: plant(fault, self.originals[fault.file])})

    def restore(self) -> None:
        """Removes the fault from the copy."""
        self._write(self.originals)

    def probe(self) -> None:
        """Adds a probe for each fault to the copy. Raises NotApplicable."""
        self._write(
            {
                file: with_probes([fault for fault in FAULTS if fault.file == file], source)
                for file, source in self.originals.items()
            }
        )

    def _write(self, sources: dict[str, str]) -> None:
        for file, source in sources.items():
            path = self.path / PACKAGE / file
            if path.read_text() == source:
                continue
            path.write_text(source)
            # A file of the same second and size would be mistaken for the compiled one.
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()


async def run_seeds(
    tree: Tree, kind: str, seeds: Sequence[int], fault: Fault | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Runs these seeds one after the other in a separate process; returns the outcomes."""
    edit = ["--edit", fault.file, *map(str, lines_of(fault, tree.originals[fault.file]))] if fault else []
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree.path / "src"),
        "TIDEMILL_PLAIN": "1",
        "PYTHONHASHSEED": "0",
    }
    left = list(seeds)
    while left:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(tree.path / SEED_RUNS), "--kind", kind, *edit, "--seeds", *map(str, left)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if process.stdout is None:
            raise RuntimeError("the process of the seeds has no output")
        try:
            while left:
                seed = left.pop(0)
                try:
                    line = await asyncio.wait_for(process.stdout.readline(), ANSWER_S_MAX)
                except TimeoutError:
                    text = f"the process says nothing in {ANSWER_S_MAX:g} s"
                    yield {"seed": seed, "outcome": "dead", "text": text}
                    break
                if not line:
                    code = await process.wait()
                    yield {"seed": seed, "outcome": "dead", "text": f"the process ends with {code}"}
                    break
                found = json.loads(line)
                yield found
                if found["outcome"] in ENDED:
                    break
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def code_of_test(tree: Tree, test: str) -> int:
    """Runs a test with pytest over the source in the copy; returns the exit code: 0 passed, 1 failed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly"),
        f"{TESTS}/{test}",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tree.path / "src"), "TIDEMILL_PLAIN": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


class Run:
    """The faults that one kind of simulation searches for, with a few workers."""

    def __init__(self, options: argparse.Namespace, kind: str, faults: Sequence[Fault]) -> None:
        self.options = options
        self.kind = kind
        self.faults = faults
        self.states = (
            STATES / f"{kind}-{digest_of([*SIMULATED, *(ROOT / one for one in SEED_RUN_FILES)], kind)}"
        )
        self.states.mkdir(parents=True, exist_ok=True)
        table = "\0".join("\0".join((fault.name, *_edit_of(fault))) for fault in FAULTS)
        self._unchanged_path = self.states / f"unchanged-{_short(table)}.json"
        self._in_table = seeds_in_table(PAGE)
        self.unchanged: dict[int, dict[str, Any]] = {
            int(seed): found for seed, found in _read(self._unchanged_path).items()
        }
        """The results of seeds without a fault: violations, and the number of effects of each fault."""

    def state_of(self, fault: Fault) -> State:
        """Returns the state of a fault."""
        path = self._path_of(fault)
        return State(path, _read(path))

    def _path_of(self, fault: Fault) -> Path:
        return self.states / f"{fault.name}-{_short(chr(0).join(_edit_of(fault)))}.json"

    def earlier_seeds(self, fault: Fault) -> list[int]:
        """Returns the seeds that found the fault in earlier sources, newest first: most find it again,
        regardless of SEEDS.
        """
        name = self._path_of(fault).name
        kept = sorted(STATES.glob(f"{self.kind}-*/{name}"), key=lambda path: -path.stat().st_mtime)
        seeds = [State(path, _read(path)).found_by for path in kept if path.parent != self.states]
        seeds.append(self._in_table.get(fault.name, 0))
        return list(dict.fromkeys(seed for seed in seeds if seed and self.options.seeds))

    async def run(self, directory: Path) -> None:
        """Runs all pending work."""
        trees = [Tree(directory / f"worker-{number}") for number in range(self.options.workers)]
        earlier = {seed for fault in self.faults for seed in self.earlier_seeds(fault)}
        for end in (*(limit for limit in ROUNDS if limit < self.options.seeds), self.options.seeds):
            for tree in trees:
                tree.probe()
            missing = sorted(earlier.union(range(1, end + 1)).difference(self.unchanged))
            await asyncio.gather(*(self._run_unchanged(tree, missing) for tree in trees))
            simulated = [fault for fault in self.faults if end <= max(ROUNDS) or not fault.test]
            waiting = [fault for fault in simulated if self._left(fault, end)]
            await asyncio.gather(*(self._work(tree, waiting, end) for tree in trees))
        untested = [fault for fault in self.faults if self._is_untested(fault)]
        await asyncio.gather(*(self._test(tree, untested) for tree in trees))

    async def _run_unchanged(self, tree: Tree, missing: list[int]) -> None:
        while missing:
            seeds, missing[:BATCH] = missing[:BATCH], []
            async for found in run_seeds(tree, self.kind, seeds):
                text = "" if found["outcome"] == "kept" else found["text"]
                self.unchanged[found["seed"]] = {"text": text, "hits": found.get("hits", {})}
                self._unchanged_path.write_text(json.dumps(self.unchanged))
                if text:
                    print(f"seed {found['seed']} fails without any fault: {text}", flush=True)

    def _left(self, fault: Fault, end: int) -> list[int]:
        """Returns the seeds of a fault in this round."""
        state = self.state_of(fault)
        if state.is_settled:
            return []
        hits = self.hits_of(fault)
        seeds = list(range(1, end + 1))
        if end > max(ROUNDS):
            seeds.sort(key=lambda seed: (-hits.get(seed, 0), seed))
        seeds = list(dict.fromkeys([*self.earlier_seeds(fault), *seeds]))
        return [seed for seed in seeds if hits.get(seed) and seed not in state.seeds][: self.options.most]

    def hits_of(self, fault: Fault) -> dict[int, int]:
        """Returns the effects of a fault by seed, for seeds that keep all promises without it."""
        return {
            seed: int(found["hits"].get(fault.name, 0))
            for seed, found in self.unchanged.items()
            if not found["text"]
        }

    async def _work(self, tree: Tree, waiting: list[Fault], end: int) -> None:
        while waiting:
            fault = waiting.pop(0)
            tree.plant(fault)
            began = time.perf_counter()
            state = self.state_of(fault)
            async for found in run_seeds(tree, self.kind, self._left(fault, end), fault):
                state.note(found["seed"], found["outcome"], found["text"])
                state.save()
                if state.is_settled:
                    break
            elapsed = time.perf_counter() - began
            print(f"{fault.name}: {self.result(fault).summary} ({elapsed:.0f} s)", flush=True)

    def _is_untested(self, fault: Fault) -> bool:
        state = self.state_of(fault)
        return bool(fault.test) and not state.found_by and not state.is_tested(_test_key(fault))

    async def _test(self, tree: Tree, untested: list[Fault]) -> None:
        while untested:
            fault = untested.pop(0)
            tree.plant(fault)
            with_fault = await code_of_test(tree, fault.test)
            tree.restore()
            without_fault = await code_of_test(tree, fault.test)
            state = self.state_of(fault)
            state.tested(_test_key(fault), with_fault == TEST_FAILED and without_fault == TEST_PASSED)
            state.save()
            codes = f"exit code {with_fault} with the fault and {without_fault} without it"
            print(f"{fault.name}: {fault.test}: {codes}", flush=True)

    def result(self, fault: Fault) -> Result:
        """Returns the result of a fault for the table."""
        effects = sum(count > 0 for count in self.hits_of(fault).values())
        return self.state_of(fault).result(fault, len(self.unchanged), effects, _test_key(fault))


def _read(path: Path) -> dict[str, Any]:
    """Reads the result of a run from a file; empty if the machine failed before the file was written."""
    text = path.read_text() if path.exists() else ""
    return json.loads(text) if text.strip("\0") else {}


def _test_key(fault: Fault) -> str:
    """Returns a key of the current test that a fault names; empty without a test."""
    file = TESTS / fault.test.partition("::")[0]
    return _short(f"{fault.test}\0{file.read_text()}") if fault.test else ""


def _edit_of(fault: Fault) -> tuple[str, str, str]:
    return fault.file, fault.old, fault.new


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Plants faults, and has the simulator find them.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="among which each fault has to be found")
    parser.add_argument("--most", type=int, default=SEEDS, help="how many of them a fault gets in a round")
    parser.add_argument("--faults", default="", help="names of those to plant; all without it")
    parser.add_argument("--kind", help="of simulation that looks for all faults, whichever they name")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    parser.add_argument("--page", type=Path, help="the page that the table is written to")
    options = parser.parse_args(arguments)
    names = options.faults.split()
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"there are no such faults: {', '.join(sorted(unknown))}")
    chosen = [
        fault for fault in FAULTS if (not names or fault.name in names) and (options.seeds or fault.test)
    ]
    results = {fault.name: not_run(fault) for fault in FAULTS}
    unsound: list[tuple[str, int, str]] = []
    highest = 0
    for kind in [options.kind] if options.kind else sorted({fault.kind for fault in FAULTS}):
        run = Run(options, kind, [fault for fault in chosen if options.kind or fault.kind == kind])
        if run.faults and not options.only_table:
            with tempfile.TemporaryDirectory(prefix="tidemill-mutants-") as directory:
                asyncio.run(run.run(Path(directory)))
        results |= {fault.name: run.result(fault) for fault in run.faults}
        unsound += [(kind, seed, found["text"]) for seed, found in run.unchanged.items() if found["text"]]
        highest = max(highest, *run.unchanged, 0)
    if options.page is not None:
        write_table(options.page, list(results.values()), sorted(unsound), highest)
    known = [results[fault.name] for fault in chosen]
    rows = rows_of(known, {})
    print(summary_of(chosen, rows, max(highest, *(row.seed for row in rows.values()), 0)))
    for one in known:
        if not one.is_found:
            print(f"{one.fault.name}: {one.summary}")
        elif one.fault.test:
            print(f"{one.fault.name}: seed {one.found_by} finds it: its reason and its test can go")
    return 0 if are_enough(known) else 1


if __name__ == "__main__":
    sys.exit(main())
