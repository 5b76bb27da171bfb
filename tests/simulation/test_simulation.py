"""Runs of a simulated cluster from seeds; and faults put in on purpose, which simulations must find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from code_faults import CODE_FAULTS
from full_cluster import FullCluster
from replication_cluster import ReplicationCluster

from simulation import Simulation

STEPS = 2000
SEEDS_A_TEST, MANY_SEEDS = 20, 100
CLUSTER_SEEDS, EVERY_CLUSTER_SEED = 200, 10_000
REPLICATION_SEEDS, EVERY_REPLICATION_SEED = 100, 10_000
CODE_FAULT_SEEDS = 300
"""A fault that was put in is found within so many seeds."""
RARELY_FOUND = {"let-in-too-early"}
"""It takes many seeds."""
SIMULATE = Path(__file__).parent / "simulate.py"


def run(kind: type[Simulation], seeds: range) -> None:
    """Runs seeds one after the other; the first that breaks a promise tells its story."""
    for seed in seeds:
        report = kind(seed, STEPS).run()
        assert report.steps >= STEPS


def starts(end: int, step: int, first: int = 1) -> range:
    """The first seed of each test, up to and with ``end``."""
    return range(first, end + 1, step)


@pytest.mark.parametrize("seed", starts(CLUSTER_SEEDS, SEEDS_A_TEST))
def test_clusters_keep_their_promises(seed: int) -> None:
    run(FullCluster, range(seed, seed + SEEDS_A_TEST))


@pytest.mark.parametrize("seed", starts(REPLICATION_SEEDS, SEEDS_A_TEST))
def test_replication_keeps_its_promises(seed: int) -> None:
    run(ReplicationCluster, range(seed, seed + SEEDS_A_TEST))


@pytest.mark.every
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", starts(EVERY_CLUSTER_SEED, MANY_SEEDS, 1 + CLUSTER_SEEDS))
def test_clusters_keep_their_promises_for_many_seeds(seed: int) -> None:
    run(FullCluster, range(seed, seed + MANY_SEEDS))


@pytest.mark.every
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", starts(EVERY_REPLICATION_SEED, MANY_SEEDS, 1 + REPLICATION_SEEDS))
def test_replication_keeps_its_promises_for_many_seeds(seed: int) -> None:
    run(ReplicationCluster, range(seed, seed + MANY_SEEDS))


def simulate(*options: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """The command, in plain Python: compiled classes cannot be changed."""
    environment = {**os.environ, "TIDEMILL_PLAIN": "1", "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(SIMULATE), "--steps", str(STEPS), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.every if name in RARELY_FOUND else ())
        for name in sorted(CODE_FAULTS)
    ],
)
def test_a_fault_that_was_put_in_is_found_and_its_story_told(name: str) -> None:
    ended = simulate("--kind", "replication", "--seeds", str(CODE_FAULT_SEEDS), "--code-fault", name)
    assert ended.returncode == 1, ended.stdout[-1000:]
    told = ended.stdout.splitlines()
    assert told[0].startswith("ReplicationCluster: seed "), told[0]
    assert "VIOLATION" in ended.stdout
    assert "broker-1" in ended.stdout


@pytest.mark.parametrize("kind", ["replication", "cluster"])
def test_a_seed_tells_the_same_story_each_time(kind: str) -> None:
    one, other = (simulate("--kind", kind, "--seed", "7", hash_seed=seed) for seed in ("1", "2"))
    assert one.returncode == other.returncode == 0, one.stdout + one.stderr
    (told,) = [line for line in one.stdout.splitlines() if line.startswith("fingerprint: ")]
    assert told in other.stdout.splitlines()
