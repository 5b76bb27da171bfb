"""Runs simulations: ``python simulate.py --seed 7 --steps 2000``, or many seeds one after the other."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import ExitStack

from code_faults import CODE_FAULTS
from event_log import Violation
from full_cluster import FullCluster
from replication_cluster import ReplicationCluster

from simulation import Report, Simulation

KINDS: dict[str, type[Simulation]] = {"replication": ReplicationCluster, "cluster": FullCluster}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs the cluster in a simulated world.")
    parser.add_argument("--kind", choices=sorted(KINDS), default="replication")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--steps", type=int, default=2000, help="of each, until nothing breaks any more")
    parser.add_argument("--go-on", action="store_true", help="go on after a seed that fails")
    parser.add_argument(
        "--code-fault", choices=sorted(CODE_FAULTS), help="replaces product code by a faulty version"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        for patch in CODE_FAULTS[options.code_fault]() if options.code_fault else ():
            stack.enter_context(patch)
        return simulate(options)


def simulate(options: argparse.Namespace) -> int:
    """Runs all seeds; 1 when one of them fails."""
    began = time.perf_counter()
    reports: list[Report] = []
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            reports.append(KINDS[options.kind](seed, options.steps).run())
        except Violation as problem:
            failed += 1
            print(str(problem).splitlines()[0] if options.go_on else problem, flush=True)
            if not options.go_on:
                return 1
    elapsed = time.perf_counter() - began
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    steps = sum(report.steps for report in reports)
    simulated = sum(report.simulated_s for report in reports)
    print(
        f"{len(reports)} seeds without a broken promise, {failed} with one: {steps} steps in {elapsed:.1f} s"
        f" ({steps / elapsed:.0f} a second), {simulated:.0f} simulated seconds"
    )
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    if len(reports) == 1:
        print(f"fingerprint: {reports[0].fingerprint}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
