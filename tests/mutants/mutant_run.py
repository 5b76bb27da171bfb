"""Plants one fault after the other in a copy of the source, and counts the seeds until it is found.

    make mutants SEEDS=300 FAULTS='min-insync-unchecked never-truncates'

A seed counts only if the unchanged source keeps its promises with it, and if the faulty line ran. What was
run is kept below ``build/mutants`` by the digest of the source that it ran: an interrupted run goes on where
it was stopped. The exit code is 1 when less than 95% are found.
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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mutant_table import Result, State, summary_of, write_table
from planted_faults import FAULTS
from planting import MODULE, PLANTED_SOURCE, Fault, plant

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path("src/tidemill")
COPIED = (Path("src/tidemill"), Path("tests/simulation"), Path("tests/coordination"))
SEED_RUNS = Path("tests/mutants/mutant_seeds.py")
STATES = ROOT / "build" / "mutants"
SEEDS = 300
ROUNDS = (5, 20, 60)
"""All faults get so many seeds before one of them gets more: most are found by then."""
FOUND_SHARE_MIN = 0.95
SEED_S_MAX = 120.0
"""A seed that takes longer does not end: the fault has the simulated cluster go round in circles."""
NO_FAULTS_OF_THE_PROGRAM = re.compile(
    r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|UnboundLocalError)\b"
)
"""A planted fault that raises one of these is no fault that somebody would make, and its edit is mended."""


class Tree:
    """A copy of what a run needs, for one worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for one in COPIED:
            shutil.copytree(
                ROOT / one,
                path / one,
                ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "_built.json"),
            )
        (path / SEED_RUNS).parent.mkdir(parents=True)
        shutil.copy(ROOT / SEED_RUNS, path / SEED_RUNS)
        (path / "src" / f"{MODULE}.py").write_text(PLANTED_SOURCE)

    def plant(self, fault: Fault | None) -> None:
        """Has ``fault`` in the copy, and no other. Raises NotApplicable."""
        for one in {other.file for other in FAULTS}:
            self._write(one, (ROOT / PACKAGE / one).read_text())
        if fault is not None:
            self._write(fault.file, plant(fault, (ROOT / PACKAGE / fault.file).read_text()).source)

    def _write(self, file: str, source: str) -> None:
        path = self.path / PACKAGE / file
        if path.read_text() == source:
            return
        path.write_text(source)
        # A file of the same second and size would be taken for the one that was compiled before.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


class Seeds:
    """Seeds that run one after the other in a process of their own."""

    def __init__(self, tree: Tree, kind: str, end: int) -> None:
        self._tree = tree
        self._kind = kind
        self._end = end
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, seed: int) -> dict[str, Any]:
        """What came of ``seed``, which follows the one before, or begins anew."""
        if self._process is None:
            await self._start(seed)
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the process of the seeds did not start")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), SEED_S_MAX)
        except TimeoutError:
            await self.stop()
            return {
                "seed": seed,
                "outcome": "endless",
                "text": f"it does not end within {SEED_S_MAX:g} s",
                "hits": 1,
            }
        if not line:
            code = await process.wait()
            self._process = None
            return {"seed": seed, "outcome": "dead", "text": f"the process ends with {code}", "hits": 0}
        answer: dict[str, Any] = json.loads(line)
        if answer["seed"] != seed:
            raise RuntimeError(f"seed {answer['seed']} ran, and {seed} was asked for")
        return answer

    async def _start(self, seed: int) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._tree.path / "src"),
            "TIDEMILL_PLAIN": "1",
            "PYTHONHASHSEED": "0",
        }
        self._process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "5", sys.executable, str(self._tree.path / SEED_RUNS), "--kind", self._kind),
            *(str(seed), str(self._end)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def stop(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


class Run:
    """All faults, by a few workers."""

    def __init__(self, options: argparse.Namespace, faults: Sequence[Fault], directory: Path) -> None:
        self.options = options
        self.faults = faults
        self.directory = directory
        digest = digest_of([*COPIED, SEED_RUNS], options.kind)
        self.states = STATES / f"{options.kind}-{digest}"
        self.states.mkdir(parents=True, exist_ok=True)
        self.sound = self._read(self.states / "unchanged.json")
        """Of seeds: what is wrong with the unchanged source; empty text for nothing."""
        self._waiting: list[Fault] = []
        self._sound_lock = asyncio.Lock()

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {}

    def state_of(self, fault: Fault) -> State:
        """What is known of a fault."""
        text = "\0".join((fault.file, fault.old, fault.new))
        path = self.states / f"{fault.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        return State(path, self._read(path))

    async def run(self) -> None:
        """Runs what is left to run."""
        unchanged = Tree(self.directory / "unchanged")
        trees = [Tree(self.directory / f"worker-{number}") for number in range(self.options.workers)]
        for end in (*(limit for limit in ROUNDS if limit < self.options.seeds), self.options.seeds):
            self._waiting = list(self.faults)
            await asyncio.gather(*(self._work(tree, unchanged, end) for tree in trees))

    async def _work(self, tree: Tree, unchanged: Tree, end: int) -> None:
        while self._waiting:
            fault = self._waiting.pop(0)
            state = self.state_of(fault)
            if state.is_found or state.is_broken or state.next_seed > end:
                continue
            tree.plant(fault)
            began = time.perf_counter()
            await self._look_for(fault, state, tree, unchanged, end)
            elapsed = time.perf_counter() - began
            print(f"{fault.name}: {state.result(fault).told} ({elapsed:.0f} s)", flush=True)

    async def _look_for(self, fault: Fault, state: State, tree: Tree, unchanged: Tree, end: int) -> None:
        seeds = Seeds(tree, self.options.kind, end + 1)
        try:
            while not state.is_found and not state.is_broken and state.next_seed <= end:
                found = await seeds.run(state.next_seed)
                outcome, text = found["outcome"], found["text"]
                if outcome == "dead" or NO_FAULTS_OF_THE_PROGRAM.search(text):
                    state.broken(text)
                elif outcome == "kept" or not found["hits"]:
                    state.kept(found["hits"])
                elif await self._is_sound(unchanged, state.next_seed):
                    state.found(outcome, text)
                else:
                    state.kept(found["hits"])
                state.save()
        finally:
            await seeds.stop()

    async def _is_sound(self, unchanged: Tree, seed: int) -> bool:
        """Whether the unchanged source keeps its promises with this seed."""
        async with self._sound_lock:
            key = str(seed)
            if key not in self.sound:
                seeds = Seeds(unchanged, self.options.kind, seed + 1)
                found = await seeds.run(seed)
                await seeds.stop()
                self.sound[key] = "" if found["outcome"] == "kept" else found["text"]
                (self.states / "unchanged.json").write_text(json.dumps(self.sound))
                if self.sound[key]:
                    print(f"seed {seed} fails without any fault: {self.sound[key]}", flush=True)
            return not self.sound[key]

    def results(self) -> list[Result]:
        """What is known of all faults, in the order of the table."""
        return [self.state_of(fault).result(fault) for fault in FAULTS]


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
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many each fault gets")
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
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    with tempfile.TemporaryDirectory(prefix="tidemill-mutants-") as directory:
        run = Run(options, faults, Path(directory))
        if not options.only_table:
            asyncio.run(run.run())
    results = run.results()
    unsound = sorted((int(seed), text) for seed, text in run.sound.items() if text)
    if options.page is not None:
        write_table(options.page, results, unsound, options.seeds)
    print(summary_of(results, options.seeds))
    for one in results:
        if not one.is_found and one.outcome != "not run":
            print(f"{one.fault.name}: {one.told}")
    found = sum(result.is_found for result in results)
    return 0 if found >= FOUND_SHARE_MIN * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
