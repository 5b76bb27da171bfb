"""Runs of simulated clusters from seeds; and faults put into the program, which simulations must find."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest import mock

import fault_coverage
import pytest
import source_digest
from acknowledged_holders import ALWAYS, Holders
from campaign import Progress
from code_faults import CODE_FAULTS
from full_cluster import FullCluster
from promises import EXCUSES, LEADER, PROMISES, Message, Sent, TopicSettings
from replication_cluster import ReplicationCluster
from simulated_admins import Admin, RecordDeleter
from simulated_faults import Faults
from simulated_network import NetworkDelays
from simulated_store import SimulatedStore
from transaction_cluster import TransactionCluster

from record_builders import build_batch
from simulation import BATCHES, CAP_S, CHANGES, DISTURBED_SHARE, Server, Simulation, _Stopped
from tidemill.coordination.coordination_store import Create, ensure_paths
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.file_names import LEADER_EPOCHS
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.replication.partition import Partition

SEEDS_A_TEST = 5
CLUSTER_SEEDS, REPLICATION_SEEDS, TRANSACTION_SEEDS = 30, 20, 20
CODE_FAULT_SEEDS = 100
"""A fault that was put in is found within so many seeds."""
RARELY_FOUND = {"join-isr-too-early"}
"""It takes many seeds."""
BROKER = BrokerNode.encode(BrokerRegistration(1, ()))
SIMULATE = Path(__file__).parent / "simulate.py"
PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "promises.md"


def run(kind: str, seed: int) -> None:
    """Runs the seeds of a test; the first that breaks a promise shows its events."""
    ended = simulate("--kind", kind, "--seed", str(seed), "--seeds", str(SEEDS_A_TEST))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def starts(end: int, step: int, first: int = 1) -> range:
    """The first seed of each test, up to and with ``end``."""
    return range(first, end + 1, step)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *[("cluster", seed) for seed in starts(CLUSTER_SEEDS, SEEDS_A_TEST)],
        *[("replication", seed) for seed in starts(REPLICATION_SEEDS, SEEDS_A_TEST)],
        *[("transactions", seed) for seed in starts(TRANSACTION_SEEDS, SEEDS_A_TEST)],
    ],
)
def test_clusters_keep_their_promises(kind: str, seed: int) -> None:
    run(kind, seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [FullCluster, ReplicationCluster, TransactionCluster])
def test_a_run_starts_no_thread(kind: type[Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed decides which of two threads is first."""
    started: list[str] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    kind(2).run()
    assert started == []


def replicas_held() -> list[object]:
    """The partitions and logs that something still refers to."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (Partition, Log)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [FullCluster, ReplicationCluster, TransactionCluster])
def test_a_cluster_is_freed_after_its_run(kind: type[Simulation]) -> None:
    before = {id(one) for one in replicas_held()}
    kind(1).run()
    left = [one for one in replicas_held() if id(one) not in before]
    assert len(left) == 0


def simulate(*options: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """The command, in plain Python: compiled classes can be neither changed nor looked into."""
    environment = {**os.environ, "TIDEMILL_PLAIN": "1", "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(SIMULATE), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=590, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.every if name in RARELY_FOUND else ())
        for name in sorted(CODE_FAULTS)
    ],
)
def test_a_planted_fault_is_found_and_its_events_are_printed(name: str) -> None:
    ended = simulate("--kind", "replication", "--seeds", str(CODE_FAULT_SEEDS), "--code-fault", name)
    assert ended.returncode == 1, ended.stdout[-1000:]
    shown = ended.stdout.splitlines()
    assert shown[0].startswith("ReplicationCluster: seed "), shown[0]
    assert "VIOLATION" in ended.stdout
    assert "broker-1" in ended.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["replication", "cluster", "transactions"])
def test_a_seed_is_reproducible(kind: str) -> None:
    one, other = (simulate("--kind", kind, "--seed", "4", hash_seed=seed) for seed in ("1", "2"))
    assert one.returncode == other.returncode == 0, one.stdout + one.stderr
    (line,) = [line for line in one.stdout.splitlines() if line.startswith("fingerprint: ")]
    assert line in other.stdout.splitlines()


# -- promises and what excuses them


def test_the_page_of_promises_equals_the_checked_promises() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {**PROMISES, **EXCUSES}


def held(*min_isr: int) -> Holders:
    """A partition that three replicas hold, which broker 1 leads."""
    holders = Holders(*min_isr)
    holders.state_written(10.0, 1, [1, 2, 3])
    return holders


def test_a_replica_that_leaves_the_isr_below_the_minimum_still_holds_records() -> None:
    holders = held(2)
    holders.state_written(20.0, 1, [1])
    holders.lost(1)
    assert holders.holds(15.0)
    assert holders.since == {2: ALWAYS, 3: ALWAYS}


def test_a_replica_that_lost_its_disk_is_worse_than_those_that_left_before_it() -> None:
    holders = held(2)
    holders.state_written(20.0, 1, [1])
    holders.lost(1)
    assert holders.better_than(1) == [], "it has not reported its loss"
    holders.reported(1)
    assert holders.better_than(1) == [2, 3]
    assert holders.better_than(2) == []


def test_a_replica_with_a_reported_loss_is_not_better_until_it_is_in_sync_again() -> None:
    holders = held(1)
    holders.state_written(20.0, 1, [1, 2])
    holders.reported(2)
    assert holders.better_than(3) == [1]
    holders.state_written(30.0, 1, [1])
    holders.state_written(40.0, 1, [1, 2])
    assert holders.better_than(3) == [1, 2]


def test_a_replica_whose_isr_request_preceded_the_loss_of_the_leader_holds_its_records() -> None:
    holders = held(1)
    holders.state_written(20.0, 1, [1, 3])
    holders.lost(1)
    holders.lost(1)
    holders.state_written(30.0, 1, [1, 3, 2])
    assert holders.since == {3: ALWAYS, 2: ALWAYS}
    holders.reported(1)
    assert holders.better_than(1) == [3, 2]
    assert holders.better_than(2) == []
    holders.state_written(40.0, 3, [3])
    assert holders.better_than(1) == [3]
    holders.state_written(50.0, 3, [3, 1])
    assert holders.better_than(1) == []


def test_a_replica_with_a_disk_loss_holds_records_while_its_process_runs() -> None:
    holders = held(1)
    holders.state_written(20.0, 1, [1, 2])
    holders.lost(3)
    holders.state_written(30.0, 1, [1, 2, 3], is_new_epoch=False)
    holders.state_written(40.0, 3, [2, 3])
    holders.state_written(50.0, 3, [2, 3, 1], is_new_epoch=False)
    assert holders.since == {2: ALWAYS, 1: ALWAYS}


def test_a_replica_that_joins_a_leader_with_a_read_loss_lacks_the_same_records() -> None:
    holders = held(1)
    holders.state_written(20.0, 1, [1, 3])
    holders.lost(1)
    holders.reported(1)
    holders.state_written(30.0, 1, [1, 3, 2], is_new_epoch=False)
    assert holders.better_than(2) == [3]


def test_a_replica_that_truncated_unflushed_records_does_not_hold_them() -> None:
    holders = held(1)
    holders.state_written(20.0, 3, [3])
    holders.since[2] = ALWAYS
    holders.cut(2)
    assert holders.since == {3: ALWAYS}


def test_a_replica_that_leaves_a_sufficient_isr_does_not_hold_records() -> None:
    holders = held(1)
    holders.state_written(20.0, 1, [1])
    holders.lost(1)
    assert not holders.holds(15.0)
    assert holders.has_forgotten
    assert holders.is_hopeless


def test_only_records_acknowledged_after_a_recovery_are_held() -> None:
    holders = held(1)
    for broker in (1, 2, 3):
        holders.lost(broker)
        holders.reported(broker)
    holders.state_written(20.0, -1, [])
    holders.state_written(30.0, 2, [2])
    holders.state_written(40.0, 2, [2, 3])
    assert not holders.holds(29.0)
    assert holders.since == {2: 30.0, 3: 30.0}


def test_a_partition_recovers_without_a_replica_with_unknown_records() -> None:
    holders = held(2)
    holders.lost(1)
    holders.lost(3)
    holders.reported(2)
    holders.state_written(20.0, -1, [])
    assert holders.holds(15.0)
    assert holders.is_hopeless
    holders.state_written(30.0, 3, [3])
    assert not holders.holds(15.0)


def test_an_in_sync_replica_with_an_unreported_loss_holds_no_records() -> None:
    holders = held(1)
    holders.lost(3)
    holders.state_written(20.0, 1, [1, 2])
    holders.state_written(30.0, 1, [1, 2, 3])
    assert set(holders.since) == {1, 2}


# -- an operator on duty


@pytest.mark.parametrize("is_late", [False, True])
def test_an_operator_requests_no_election_after_another_election(is_late: bool) -> None:
    cluster = FullCluster(1)
    tp = ("t", 0)
    cluster.promises.topic_written("t", bytes(16), {0: [1, 2, 3]}, {}, {})
    asked = []

    async def link(_: Admin, address: str) -> None:
        if is_late or asked:
            cluster.promises.state_written(tp, 1, 1, [1])

    async def elect(_: Admin, topic: str, partitions: list[int], election_type: int, address: str) -> None:
        asked.append(address)

    async def wait() -> None:
        cluster.elect_unclean(tp)
        await asyncio.sleep(1.0)

    with mock.patch.object(Admin, "link", link), mock.patch.object(Admin, "elect", elect):
        cluster.loop.run_until_complete(wait())
    cluster.loop.end(cluster.processes)
    assert asked == ([] if is_late else cluster.addresses[:1])


# -- runs that take until their cap


@pytest.mark.parametrize(
    ("batches", "changes", "disturbed_s", "waited_s", "violation"),
    [
        (BATCHES, CHANGES, 0.0, 0.0, ""),
        (BATCHES - 1, CHANGES, 0.0, 0.0, "progress: 169 of 170 batches were acknowledged and 6 of 6 changes"),
        (BATCHES, CHANGES - 1, 0.0, 0.0, "progress: 170 of 170 batches were acknowledged and 5 of 6 changes"),
        (BATCHES, CHANGES - 1, DISTURBED_SHARE * CAP_S, 0.0, ""),
        (BATCHES, CHANGES - 1, 0.0, DISTURBED_SHARE * CAP_S, ""),
    ],
)
def test_a_time_limit_that_faults_do_not_explain_is_found_for_batches_and_changes(
    batches: int, changes: int, disturbed_s: float, waited_s: float, violation: str
) -> None:
    cluster = FullCluster(1)
    cluster.faults = cast(Faults, SimpleNamespace(disturbed_s=disturbed_s))
    cluster._waited_s = waited_s
    cluster.network.weather = NetworkDelays(0.001, 0.0, 0.0)
    cluster.events.counts["batches acknowledged with acks=1"] = batches
    cluster.deleters = [cast(RecordDeleter, object())]
    with (
        mock.patch.object(cluster, "changes", return_value=changes),
        pytest.raises(_Stopped) if violation else nullcontext(),
    ):
        cluster._check_progress()
    assert cluster.events.violation.startswith(violation)
    assert bool(cluster.events.violation) == bool(violation)
    took_long = (batches, changes) != (BATCHES, CHANGES)
    assert cluster.events.counts.get("runs that took until their cap", 0) == took_long
    assert cluster.events.counts.get("excuse needs-operator", 0) == (waited_s > 0)
    cluster.loop.end(cluster.processes)


# -- what a cluster knows of disks and processes


@pytest.mark.parametrize("is_former_disk", [False, True])
def test_a_disk_is_expected_to_have_only_records_acknowledged_while_it_was_attached(
    is_former_disk: bool,
) -> None:
    cluster = FullCluster(1)
    tp, topic_id = ("t", 0), bytes(16)
    cluster.promises.settings["t"] = TopicSettings(flush_each=True)
    cluster.promises.topic_written("t", topic_id, {0: [1]}, {}, {})
    cluster.promises.state_written(tp, 1, 0, [1])
    sent_s = cluster.loop.time() + 1.0
    for offset, message in enumerate((Message("p", 0), Message("p", 1))):
        sent = Sent(tp=tp, acks=LEADER, session=-1, sequence=0, topic_id=topic_id)
        cluster.promises.sending(message, sent)
        cluster.promises.acknowledged(
            tp, topic_id, offset, [message], sent_s=sent_s, answered_s=sent_s, broker=1
        )
    node = cluster.node(1)
    node.files.make_directory("/data/t-0")
    segment = node.files.open("/data/t-0/00000000000000000000.log", create=True)
    segment.write_at(0, build_batch([(0, None, b"first", None)]))
    cluster.loop.run_until_complete(asyncio.sleep(1.0))
    if is_former_disk:
        node.change_disk(node.files)
        cluster.promises.replicas_lost(1, everything=True)
    cluster.check_synced(node)
    expected = "flush: broker-1 has ('t', 0) up to 1 on its disk, and 1 was acknowledged"
    assert cluster.events.violation == ("" if is_former_disk else expected)
    cluster.loop.end(cluster.processes)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_emptied_log_may_lose_its_last_epoch_only_after_a_disk_loss(is_lost: bool) -> None:
    cluster = FullCluster(1)
    node = cluster.node(1)
    node.files.make_directory("/data/t-0")
    opening = LogLoader(
        node.files, "/data/t-0", TopicPartition("t", 0), LogConfig(), removals=DelayedFileRemoval(), now_ms=0
    )
    log = opening.open()
    batch = build_batch([(0, None, b"only", None)])
    log.append(parse_batch(batch, 0, len(batch)), 5, 0)
    cluster.promises.log_state.check(node.name, log)
    log.advance_start(1)
    if is_lost:
        node.files.drop_syncs(LEADER_EPOCHS, 1)
    with pytest.raises(StorageError) if is_lost else nullcontext():
        log.flush(0)
    log.leader_epochs.truncate_from_end(-1)
    cluster.promises.log_state.check(node.name, log)
    expected = "epochs: broker-1 has deleted all of t-0, whose last record was of epoch 5, and knows {}"
    assert cluster.events.violation == ("" if is_lost else expected)
    cluster.loop.end(cluster.processes)


@pytest.mark.parametrize("since", ["", "next started", "stops", "another disk"])
def test_the_registration_of_an_ending_process_does_not_count_as_a_start(since: str) -> None:
    cluster = FullCluster(1)
    node = cluster.node(1)

    async def register() -> None:
        store = await SimulatedStore.open(cluster.store, 6.0)
        await ensure_paths(store, ["/brokers", "/brokers/ids"])
        await asyncio.sleep(0.1)
        writing = asyncio.create_task(store.transact([Create("/brokers/ids/1", BROKER, ephemeral=True)]))
        await asyncio.sleep(0)
        if since == "next started":
            node.process = cluster.process(node.name)
        elif since == "stops":
            node.stopping = cast(Server, object())
        elif since == "another disk":
            node.change_disk(node.files)
        await writing

    node.process = cluster.process(node.name)
    node.started_s = cluster.loop.time()
    task = cluster.loop.create_task(register(), context=node.process.context)
    cluster.loop.run_until_complete(task)
    assert cluster.promises.has_registered_since(1, -1.0) == (not since)
    cluster.loop.end(cluster.processes)


@pytest.mark.parametrize("has_opened", [False, True])
def test_a_fault_during_a_replica_lookup_does_not_count_as_a_start(has_opened: bool) -> None:
    cluster = FullCluster(1)

    def breaks(*_: object) -> None:
        raise AttributeError("a fault of the product")

    server = SimpleNamespace(partitions=SimpleNamespace(find=breaks, all=breaks)) if has_opened else object()
    cluster.node(1).starting = cast(Server, server)
    with pytest.raises(AttributeError) if has_opened else nullcontext():
        assert cluster._find(1, "t", 0) is None
    with pytest.raises(AttributeError) if has_opened else nullcontext():
        assert cluster.node(1).all_partitions == []
    cluster.loop.end(cluster.processes)


# -- coverage, and campaigns that resume


def test_a_fault_that_never_occurred_in_a_phase_is_missing() -> None:
    counts = Counter(fault_coverage.required("replication"))
    del counts["kill during ISR shrink"]
    assert fault_coverage.missing("replication", counts) == ["kill during ISR shrink"]


def test_an_interrupted_campaign_continues_after_the_completed_seeds(tmp_path: Path) -> None:
    path = tmp_path / "build" / "digest.json"
    chunk = {
        "counts": {"faults": 3},
        "shares": {"truncation": 1},
        "batches": [170],
        "failures": ["cluster 7: no"],
    }
    Progress(path).add("cluster", 40, chunk)
    known = Progress(path)
    known.add("cluster", 50, chunk)
    again = Progress(path)
    assert again.done == {"cluster": [40, 50]}
    assert again.counts["cluster"]["faults"] == 6
    assert again.batches == {"cluster": [170, 170]}
    assert again.failures == ["cluster 7: no"] * 2


def test_a_campaign_is_keyed_by_the_source_of_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_digest, "ROOT", tmp_path)

    def digest(text: str) -> str:
        (tmp_path / "one.py").write_text(text)
        return source_digest.digest_of([tmp_path])

    code = digest("LIMIT = 1\ndef limited(): return LIMIT\n")
    assert digest('LIMIT = 1\n"""Why."""\ndef limited():\n    """How."""\n    return LIMIT  # It.\n') == code
    assert digest("LIMIT = 2\ndef limited(): return LIMIT\n") != code
    (tmp_path / "test_one.py").write_text("assert False")
    assert digest("LIMIT = 1\ndef limited(): return LIMIT\n") == code
    (tmp_path / "other.py").write_text("")
    assert digest("LIMIT = 1\ndef limited(): return LIMIT\n") != code


@pytest.mark.parametrize("kind", ["cluster", "replication"])
def test_all_imports_of_a_seed_are_in_its_digest(kind: str) -> None:
    command = (
        "import sys; sys.argv[1:] = ['--kind', sys.argv[1], '--seed', '1']; import simulate; simulate.main();"
        "print(*(one.__file__ for name, one in sys.modules.items() if name.startswith('tidemill.')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", command, kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TIDEMILL_PLAIN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {Path(name) for name in ran.stdout.splitlines()[-1].split()}
    assert source_digest.PACKAGE / "replication" / "partition.py" in loaded
    assert not [one for one in loaded if not {one, *one.parents} & {*source_digest.SIMULATED}]
