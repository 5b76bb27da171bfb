"""Plants one fault after the other in a copy of the source, and has simulated clusters look for each.

    make mutants SEEDS=300 FAULTS='min-insync-unchecked never-truncates'

First the unchanged source runs with each seed, and probes in it count how often each fault would matter. A
seed with which the unchanged source breaks a promise counts for no fault. A seed in which a fault does not
matter runs with the fault as it does without, and is left out. Of the other seeds a fault gets the one that
found it in an earlier source first, then the first few in their order, then those in which it matters most
often.

What was run is kept below ``build/mutants`` by the digest of the source that it ran: an interrupted run goes
on where it was stopped. Results of other sources do not count. The exit code is 1 when less than 95% are
found.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from mutant_table import Result, State, summary_of, write_table
from planted_faults import FAULTS
from planting import COUNTERS_SOURCE, MODULE, Fault, plant, with_probes

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path("src/tidemill")
COPIED = (Path("src/tidemill"), Path("tests/simulation"), Path("tests/coordination"))
SEED_RUNS = Path("tests/mutants/mutant_seeds.py")
STATES = ROOT / "build" / "mutants"
SEEDS = 300
ROUNDS = (5, 20)
"""All faults get so many seeds before one of them gets more: most are found by then."""
BATCH = 10
"""Seeds that a process of the unchanged source runs."""
FOUND_SHARE_MIN = 0.95
SEED_S_MAX = 300.0
"""A seed that takes longer does not end: the fault has the simulated cluster go round in circles."""
NO_FAULTS_OF_THE_PROGRAM = re.compile(
    r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|UnboundLocalError)\b"
)
"""A planted fault that raises one of these is no fault that somebody would make, and its edit is mended."""


class Tree:
    """A copy of what a run needs, for one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "_built.json")
        for one in COPIED:
            shutil.copytree(ROOT / one, path / one, ignore=ignored)
        (path / SEED_RUNS).parent.mkdir(parents=True)
        shutil.copy(ROOT / SEED_RUNS, path / SEED_RUNS)
        (path / "src" / f"{MODULE}.py").write_text(COUNTERS_SOURCE)
        self.originals = {one: (path / PACKAGE / one).read_text() for one in {fault.file for fault in FAULTS}}
        """The sources that faults are planted in."""

    def plant(self, fault: Fault) -> None:
        """Has ``fault`` in the copy, and no other. Raises NotApplicable."""
        self._write({**self.originals, fault.file: plant(fault, self.originals[fault.file])})

    def probe(self) -> None:
        """Has a probe for each fault in the copy. Raises NotApplicable."""
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
            # A file of the same second and size would be taken for the one that was compiled before.
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()


async def run_seeds(tree: Tree, kind: str, seeds: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
    """What comes of these seeds, one after the other in a process of their own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree.path / "src"),
        "TIDEMILL_PLAIN": "1",
        "PYTHONHASHSEED": "0",
    }
    left = list(seeds)
    while left:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(tree.path / SEED_RUNS), "--kind", kind, *map(str, left)),
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
                    line = await asyncio.wait_for(process.stdout.readline(), SEED_S_MAX)
                except TimeoutError:
                    yield {"seed": seed, "outcome": "endless", "text": f"it does not end in {SEED_S_MAX:g} s"}
                    break
                if not line:
                    code = await process.wait()
                    yield {"seed": seed, "outcome": "dead", "text": f"the process ends with {code}"}
                    break
                yield json.loads(line)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Run:
    """All faults, by a few workers."""

    def __init__(self, options: argparse.Namespace, faults: Sequence[Fault]) -> None:
        self.options = options
        self.faults = faults
        self.states = STATES / f"{options.kind}-{digest_of([*COPIED, SEED_RUNS], options.kind)}"
        self.states.mkdir(parents=True, exist_ok=True)
        table = "\0".join("\0".join((fault.name, *_edit_of(fault))) for fault in FAULTS)
        self._unchanged_path = self.states / f"unchanged-{_short(table)}.json"
        self.unchanged: dict[int, dict[str, Any]] = {
            int(seed): found for seed, found in _read(self._unchanged_path).items()
        }
        """What came of seeds without a fault: what is wrong, and how often each fault would have mattered."""

    def state_of(self, fault: Fault) -> State:
        """What is known of a fault."""
        path = self._path_of(fault)
        return State(path, _read(path))

    def _path_of(self, fault: Fault) -> Path:
        return self.states / f"{fault.name}-{_short(chr(0).join(_edit_of(fault)))}.json"

    def earlier_seeds(self, fault: Fault) -> list[int]:
        """The seeds that found the same edit in earlier sources, newest first: most find it again."""
        name = self._path_of(fault).name
        kept = sorted(STATES.glob(f"{self.options.kind}-*/{name}"), key=lambda path: -path.stat().st_mtime)
        seeds = (State(path, _read(path)).found_by for path in kept if path.parent != self.states)
        return list(dict.fromkeys(seed for seed in seeds if 0 < seed <= self.options.seeds))

    async def run(self, directory: Path) -> None:
        """Runs what is left to run."""
        trees = [Tree(directory / f"worker-{number}") for number in range(self.options.workers)]
        earlier = {seed for fault in self.faults for seed in self.earlier_seeds(fault)}
        for end in (*(limit for limit in ROUNDS if limit < self.options.seeds), self.options.seeds):
            for tree in trees:
                tree.probe()
            missing = sorted(earlier.union(range(1, end + 1)).difference(self.unchanged))
            await asyncio.gather(*(self._run_unchanged(tree, missing) for tree in trees))
            waiting = [fault for fault in self.faults if self._left(fault, end)]
            await asyncio.gather(*(self._work(tree, waiting, end) for tree in trees))

    async def _run_unchanged(self, tree: Tree, missing: list[int]) -> None:
        while missing:
            seeds, missing[:BATCH] = missing[:BATCH], []
            async for found in run_seeds(tree, self.options.kind, seeds):
                text = "" if found["outcome"] == "kept" else found["text"]
                self.unchanged[found["seed"]] = {"text": text, "hits": found.get("hits", {})}
                self._unchanged_path.write_text(json.dumps(self.unchanged))
                if text:
                    print(f"seed {found['seed']} fails without any fault: {text}", flush=True)

    def _left(self, fault: Fault, end: int) -> list[int]:
        """The seeds that a fault is to get in this round."""
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
        """By seed how often a fault would matter, of seeds that keep all promises without it."""
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
            async for found in run_seeds(tree, self.options.kind, self._left(fault, end)):
                outcome, text = found["outcome"], found["text"]
                if outcome == "dead" or NO_FAULTS_OF_THE_PROGRAM.search(text):
                    state.no_program(text)
                elif outcome != "kept":
                    state.found(found["seed"], outcome, text)
                else:
                    state.kept(found["seed"])
                state.save()
                if state.is_settled:
                    break
            elapsed = time.perf_counter() - began
            print(f"{fault.name}: {self.result(fault).told} ({elapsed:.0f} s)", flush=True)

    def result(self, fault: Fault) -> Result:
        """What is known of a fault, for the table."""
        matters = sum(count > 0 for count in self.hits_of(fault).values())
        return self.state_of(fault).result(fault, len(self.unchanged), matters)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _edit_of(fault: Fault) -> tuple[str, str, str]:
    return fault.file, fault.old, fault.new


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digest_of(paths: Iterable[Path], *others: str) -> str:
    """Stands for the content of all Python files below ``paths``."""
    digest = hashlib.sha256("\0".join(others).encode())
    for path in paths:
        top = ROOT / path
        for file in [top] if top.is_file() else sorted(top.rglob("*.py")):
            digest.update(f"\0{file.relative_to(ROOT)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Plants faults, and has the simulator find them.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="among which each fault has to be found")
    parser.add_argument("--most", type=int, default=SEEDS, help="how many of them a fault gets in a round")
    parser.add_argument("--faults", default="", help="names of those to plant; all without it")
    parser.add_argument("--kind", default="cluster", help="of simulation")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    parser.add_argument("--page", type=Path, help="the page that the table is written to")
    options = parser.parse_args()
    names = options.faults.split()
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"there are no such faults: {', '.join(sorted(unknown))}")
    run = Run(options, [fault for fault in FAULTS if not names or fault.name in names])
    if not options.only_table:
        with tempfile.TemporaryDirectory(prefix="tidemill-mutants-") as directory:
            asyncio.run(run.run(Path(directory)))
    results = [run.result(fault) for fault in FAULTS]
    if options.page is not None:
        unsound = sorted((seed, found["text"]) for seed, found in run.unchanged.items() if found["text"])
        write_table(options.page, results, unsound)
    print(summary_of(results))
    for one in results:
        if not one.is_found and one.seeds:
            print(f"{one.fault.name}: {one.told}")
    return 0 if sum(one.is_found for one in results) >= FOUND_SHARE_MIN * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
