"""Runs simulations: ``python simulate.py --kind cluster --seed 7``, or thousands: ``--campaign 5000``."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack

import campaign
from code_faults import CODE_FAULTS
from event_log import Violation
from full_cluster import FullCluster
from replication_cluster import ReplicationCluster
from transaction_cluster import TransactionCluster

from simulation import BATCHES, Report, Simulation
from tidemill import _build_mode

KINDS: dict[str, type[Simulation]] = {
    "replication": ReplicationCluster,
    "cluster": FullCluster,
    "transactions": TransactionCluster,
}


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description="Runs whole clusters in a simulated world. Exit code 0: no promise was broken; 1: one"
        " was; its name, what happened and the last events are on stdout. A run is the same each time for"
        " the same source, kind and seed. In a program: KINDS[kind](seed).run() returns a Report or raises"
        " Violation."
    )
    parser.add_argument("--kind", choices=sorted(KINDS), help="replication, or all kinds of a campaign")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument(
        "--batches", type=int, default=BATCHES, help="acknowledged in each seed until faults end"
    )
    parser.add_argument(
        "--go-on", action="store_true", help="go on after a seed that fails; one line for each"
    )
    parser.add_argument(
        "--code-fault", choices=sorted(CODE_FAULTS), help="replaces product code by a faulty version"
    )
    parser.add_argument(
        "--campaign",
        type=int,
        help="so many fresh seeds, of all kinds together or of --kind; resumes where it was stopped",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes of a campaign")
    options = parser.parse_args()
    if _build_mode.compiled:
        # Compiled classes cannot be patched.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "TIDEMILL_PLAIN": "1"})
    if options.campaign:
        kinds = KINDS if options.kind is None else {options.kind: KINDS[options.kind]}
        return campaign.run(kinds, options.campaign, options.jobs)
    with ExitStack() as stack:
        for patch in CODE_FAULTS[options.code_fault]() if options.code_fault else ():
            stack.enter_context(patch)
        return simulate(options)


def simulate(options: argparse.Namespace) -> int:
    """Runs all seeds; returns 1 if one of them fails."""
    began = time.perf_counter()
    reports: list[Report] = []
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            reports.append(KINDS[options.kind or "replication"](seed, options.batches).run())
        except Violation as problem:
            failed += 1
            print(str(problem).splitlines()[0] if options.go_on else problem, flush=True)
            if not options.go_on:
                return 1
    print_reports(reports, failed, time.perf_counter() - began)
    return 1 if failed else 0


def print_reports(reports: list[Report], failed: int, elapsed_s: float) -> None:
    """Prints the counts of all events."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    steps = sum(report.steps for report in reports)
    simulated = sum(report.simulated_s for report in reports)
    print(
        f"{len(reports)} seeds without a broken promise, {failed} with one: {steps} steps in"
        f" {elapsed_s:.1f} s ({steps / elapsed_s:.0f} a second), {simulated:.0f} simulated seconds"
    )
    if reports:
        batches = [report.batches for report in reports]
        print(f"acknowledged batches a seed: median {statistics.median(batches)}, least {min(batches)}")
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items()) if " during " not in what))
    for what in campaign.SHARED:
        share = sum(what in report.counts for report in reports) / max(1, len(reports))
        print(f"seeds with {what}: {share:.0%}")
    if len(reports) == 1:
        print(f"fingerprint: {reports[0].fingerprint}")


if __name__ == "__main__":
    sys.exit(main())
