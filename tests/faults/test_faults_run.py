"""A few faults of a cluster under load; ``make faults`` runs many more."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
from fault_kinds import Target, possible, slow_disk
from fault_run import do_faults, report

KINDS = ("kill-leader", "kill-controller", "pause-leader", "kill-zookeeper", "expire-leader")
BY_CHANCE = (
    *("cut-leader-from-brokers", "isolate-controller", "full-disk-leader"),
    *("power-cut-all", "empty-disk-last", "empty-disk-leader"),
)


@pytest.mark.parametrize("seed", range(10))
def test_a_disk_is_slowed_down_for_a_running_broker(seed: int) -> None:
    """The first of two concurrent faults may have ended another broker."""
    stage = Mock(brokers={number: Mock(running=number == 2) for number in (1, 2, 3)}, machines=[Mock()] * 4)
    fault = slow_disk(Target(stage, Random(seed), "t", Mock()))
    assert next(fault).startswith("broker 2, ")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("faults")
def test_faults_of_several_kinds_leave_no_anomaly(tmp_path: Path) -> None:
    """Each run has another seed, which is printed after a failure."""
    seed = time.time_ns() % 1_000_000
    known, _ = possible()
    more = [name for name in BY_CHANCE if name in known]
    kinds = [*KINDS[seed % 5 :], *KINDS[: seed % 5]][:4]
    if more:
        kinds.append(more[seed % len(more)])
    said: list[str] = []
    verdict = do_faults(tmp_path, seed, len(kinds), kinds, said.append)
    assert verdict.wrong == [], f"seed {seed}, kinds {kinds}:\n" + "\n".join([*said, report(verdict)])
    assert len(verdict.done) == len(kinds)
    assert verdict.counts["ack"] > 100
