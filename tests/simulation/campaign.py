"""Runs thousands of seeds of all kinds on all processors; an interrupted campaign resumes.

Results are stored in ``build/simulation/DIGEST.json``, by the digest of the source. Another source has other
seeds, so that each campaign runs new ones.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import fault_coverage
from event_log import Violation
from source_digest import SIMULATED, digest_of

from simulation import Simulation

ROOT = Path(__file__).parents[2]
CHUNK_SEEDS = 10
SEED_S_MAX = 300
"""A seed that takes longer has failed: it does not end."""
SHARED = ("truncation", "segment roll", "log emptied", "positions out of range")
"""What has to happen in at least :data:`SHARE_MIN` of the seeds."""
SHARE_MIN = 0.3
BATCHES_MIN, TRANSACTION_BATCHES_MIN = 150, 100
"""The median of acknowledged batches."""
IDLE_SHARE_MAX = 0.01
"""Of the seeds that acknowledge nothing."""


class Progress:
    """The results of a campaign, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, list[int]] = {}
        """The first seeds of the chunks that are done, by kind."""
        self.counts: dict[str, Counter[str]] = {}
        self.shares: dict[str, Counter[str]] = {}
        """In how many seeds each of :data:`SHARED` happened."""
        self.batches: dict[str, list[int]] = {}
        self.failures: list[str] = []
        if path.exists():
            known = json.loads(path.read_text())
            self.done, self.batches, self.failures = known["done"], known["batches"], known["failures"]
            self.counts = {kind: Counter(counts) for kind, counts in known["counts"].items()}
            self.shares = {kind: Counter(counts) for kind, counts in known["shares"].items()}

    def add(self, kind: str, first: int, chunk: dict[str, Any]) -> None:
        """Adds a chunk, and writes the file."""
        self.done.setdefault(kind, []).append(first)
        self.counts.setdefault(kind, Counter()).update(chunk["counts"])
        self.shares.setdefault(kind, Counter()).update(chunk["shares"])
        self.batches.setdefault(kind, []).extend(chunk["batches"])
        self.failures.extend(chunk["failures"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(vars(self) | {"path": str(self.path)}))
        os.replace(temporary, self.path)


def run_chunk(job: tuple[str, type[Simulation], int]) -> tuple[str, int, dict[str, Any]]:
    """Runs some seeds in a separate process."""
    kind, simulation, first = job
    counts: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    batches: list[int] = []
    failures: list[str] = []
    signal.signal(signal.SIGALRM, _too_long)
    for seed in range(first, first + CHUNK_SEEDS):
        signal.alarm(SEED_S_MAX)
        try:
            report = simulation(seed).run()
        except Violation as problem:
            failures.append(f"{kind} {seed}: {str(problem).splitlines()[0]}")
            continue
        except Exception as problem:  # noqa: BLE001 - one seed that breaks does not end the campaign
            failures.append(f"{kind} {seed}: the run broke: {problem!r}")
            continue
        finally:
            signal.alarm(0)
        counts.update(report.counts)
        shares.update(what for what in SHARED if what in report.counts)
        batches.append(report.batches)
    return kind, first, {"counts": counts, "shares": shares, "batches": batches, "failures": failures}


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the seed has not ended after {SEED_S_MAX} s")


def chunks(
    kinds: dict[str, type[Simulation]], seeds: int, digest: str
) -> Iterator[tuple[str, type[Simulation], int]]:
    """Returns the chunks of a campaign, the kinds in turn."""
    base = int(digest[:5], 16) * 10_000
    for first in range(0, -(-seeds // len(kinds)), CHUNK_SEEDS):
        for kind, simulation in kinds.items():
            yield kind, simulation, base + first


def run(kinds: dict[str, type[Simulation]], seeds: int, jobs: int) -> int:
    """Runs that many seeds of all kinds together; returns 1 if a promise was broken or an event never
    occurred.
    """
    digest = digest_of(SIMULATED)
    progress = Progress(ROOT / "build" / "simulation" / f"{digest}.json")
    left = [job for job in chunks(kinds, seeds, digest) if job[2] not in progress.done.get(job[0], ())]
    done = sum(map(len, progress.done.values())) * CHUNK_SEEDS
    print(
        f"source {digest}: {done} seeds are done, {len(left) * CHUNK_SEEDS} are left ({progress.path})",
        flush=True,
    )
    for failure in progress.failures:
        print(failure, flush=True)
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=5) as pool:
        for number, (kind, first, chunk) in enumerate(pool.imap_unordered(run_chunk, left), 1):
            progress.add(kind, first, chunk)
            for failure in chunk["failures"]:
                print(f"{failure}\n  make simulate KIND={kind} SEED={failure.split()[1][:-1]}", flush=True)
            if number % 20 == 0:
                print(f"{number * CHUNK_SEEDS} seeds in {time.monotonic() - began:.0f} s", flush=True)
    return report(progress)


def report(progress: Progress) -> int:
    """Prints the counts of all events; returns 1 if the campaign has failed."""
    seeds = sum(map(len, progress.done.values())) * CHUNK_SEEDS
    problems = list(progress.failures)
    for kind, counts in sorted(progress.counts.items()):
        batches, shares = progress.batches[kind], progress.shares[kind]
        print(f"{kind}: {len(batches)} seeds kept all promises")
        for what, count in sorted(counts.items()):
            if " during " not in what:
                print(f"  {what}: {count}")
        pairs = [count for what, count in counts.items() if " during " in what]
        print(f"  pairs of a fault and a phase: {len(pairs)}, {sum(pairs)} times")
        if batches:
            print(f"  acknowledged batches a seed: median {statistics.median(batches)}, least {min(batches)}")
        for what in SHARED:
            print(f"  seeds with {what}: {shares[what] / max(1, len(batches)):.0%}")
        if seeds >= fault_coverage.SEEDS_MIN:
            problems += too_little(kind, batches, shares)
            problems += [f"{kind}: never met: {what}" for what in fault_coverage.missing(kind, counts)]
    for problem in problems:
        print(problem)
    print(f"{seeds} seeds, {len(progress.failures)} with a broken promise")
    return 1 if problems else 0


def too_little(kind: str, batches: list[int], shares: Counter[str]) -> list[str]:
    """Returns the events that occurred too rarely."""
    problems = []
    least = BATCHES_MIN if kind != fault_coverage.TRANSACTIONS else TRANSACTION_BATCHES_MIN
    if statistics.median(batches) < least:
        problems.append(
            f"{kind}: a seed acknowledges {statistics.median(batches)} batches, {least} are wanted"
        )
    if sum(count == 0 for count in batches) > IDLE_SHARE_MAX * len(batches):
        problems.append(f"{kind}: {sum(count == 0 for count in batches)} seeds acknowledge nothing")
    # Clusters with transactional producers write little else.
    for what in SHARED if kind != fault_coverage.TRANSACTIONS else ():
        if shares[what] < SHARE_MIN * len(batches):
            problems.append(f"{kind}: {what} in {shares[what]} of {len(batches)} seeds")
    return problems
