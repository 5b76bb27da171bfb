"""Followers whose logs cannot be truncated for a while: the disk is full, or descriptors are missing."""

from __future__ import annotations

import asyncio
import errno

import pytest
from replica_stage import Pair
from test_replica_manager import NODE, Leaders, Stage, made, staged

from record_builders import build_message_set
from tidemill.broker.replica_fetcher_manager import ReplicaFetcherManager
from tidemill.log.log_config import LogConfig
from tidemill.model.clock import SystemClock
from tidemill.model.errors import StorageError
from tidemill.net.link import Link, LinkRefused
from tidemill.records.message_set import MessageSet
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_fetcher import FetchLimits

PASSING = [("open", ".txnindex", errno.EMFILE), ("append", "leader-epoch-checkpoint", errno.ENOSPC)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.replication.log_flusher.RETRY_S", 0.005)
    monkeypatch.setattr("tidemill.replication.replica_manager.FOLLOW_RETRY_S", 0.02)


def doubtful(stage: Stage) -> Partition:
    """A partition after a power cut that may have lost the offsets 3 and 4, of the epochs 0 and 1."""
    (first,) = stage.topic("t", 1, LogConfig())
    first.append(made(3), 1, 0)
    first.log.flush(0)
    first.append(made(), 1, 0)
    stage.put("t", bytes([1]) * 16, PartitionState(0, NODE, 1, (NODE,), (NODE,), 1))
    first.append(made(), 1, 0)
    stage.replicas.unsynced_logs = {first.log.topic_partition: 3}
    return first


def follow(stage: Stage, epoch: int = 2, leader: int = 2) -> None:
    stage.put("t", bytes([1]) * 16, PartitionState(0, leader, epoch, (NODE, 2, 3), (leader,), epoch))


@pytest.mark.parametrize(("operation", "part", "number"), [*PASSING, ("open", ".log", errno.EMFILE)])
async def test_a_log_open_in_a_power_cut_is_fetched_only_after_its_truncation(
    operation: str, part: str, number: int
) -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = leaders = Leaders()
        first = doubtful(stage)
        first.log.close_handlers()
        stage.files.fail(operation, part, number, times=1_000_000)
        follow(stage)
        await asyncio.sleep(0.06)
        assert leaders.begun == []
        assert first.offline_reason == ""
        stage.files.heal()
        await asyncio.sleep(0.2)
        await stage.flushed()
        assert leaders.begun == [3]
        assert (first.log.end_offset, first.log.active.last_offset_end()) == (3, 3)
        assert stage.replicas.unsynced_logs == {}


async def test_an_untruncated_log_is_not_fetched_later_from_another_leader() -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = leaders = Leaders()
        first = doubtful(stage)
        stage.files.fail("open", ".txnindex", errno.EMFILE, times=1)
        follow(stage, 2)
        follow(stage, 3, leader=3)
        assert leaders.begun == [3]
        await asyncio.sleep(0.06)
        assert leaders.begun == [3], "it is fetched already"
        assert (first.leader, first.offline_reason) == (3, "")


async def test_a_replica_without_leader_epochs_fetches_again_after_a_transient_error() -> None:
    async def connect(leader: int) -> Link:
        raise LinkRefused("nobody is there")

    async with staged() as stage:
        replicas = stage.replicas
        replicas.replica_fetcher_manager = following = ReplicaFetcherManager(
            NODE, FetchLimits(backoff_ms=5), connect, SystemClock(), node_epoch=1
        )
        (first,) = stage.topic("t", 1, LogConfig())
        data = build_message_set(1, [(1_700_000_000_000, b"k", b"v")])
        for _ in range(3):
            first.log.append_messages(MessageSet(data, 1, 0, 1, 1_700_000_000_000), -1, 0)
        first.log.leader_epochs.truncate_from_end(0)
        first.high_watermark = 1
        stage.files.fail("open", ".txnindex", errno.EMFILE)
        follow(stage)
        assert first not in following._leaders
        async with asyncio.timeout(5):
            while first not in following._leaders:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        assert first.log.end_offset == 1
        await stage.flushed()
        await following.stop()


@pytest.mark.parametrize(("operation", "part", "number"), PASSING)
async def test_a_replica_on_a_full_disk_stays_online_and_truncates_when_space_is_available(
    operation: str, part: str, number: int
) -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = Leaders()
        first = doubtful(stage)
        stage.replicas.unsynced_logs = {}
        follow(stage)
        stage.files.fail(operation, part, number, times=1_000_000)
        with pytest.raises(StorageError):
            first.truncate_to(3, 0)
        await asyncio.sleep(0.03)
        assert first.offline_reason == ""
        assert first.flush_under_way, "its leader gets no offset meanwhile"
        assert first.high_watermark <= first.log.end_offset == 3
        stage.files.heal()
        await stage.flushed()
        assert not first.has_pending_sync
        stage.files.power_cut()
        assert stage.files.size(first.log.active.path) == first.log.size_bytes
        assert b"1 4" not in stage.files.read(first.log.leader_epochs.path)


async def test_a_replica_emptied_on_a_full_disk_stays_online_and_restarts_at_the_leader_start() -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = Leaders()
        first = doubtful(stage)
        stage.replicas.unsynced_logs = {}
        follow(stage)
        stage.files.fail("open", f"{100:020}.log", errno.ENOSPC, times=4)
        with pytest.raises(StorageError):
            first.restart_at(100, 0)
        assert (first.log.start_offset, first.log.end_offset, first.high_watermark) == (100, 100, 100)
        await stage.flushed()
        assert first.offline_reason == ""
        assert stage.files.exists(f"{first.log.directory}/{100:020}.log")


@pytest.mark.parametrize(("operation", "part", "number"), PASSING)
def test_a_follower_equals_its_leader_after_a_partial_truncation(
    operation: str, part: str, number: int
) -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a", b"b")
    pair.round()
    pair.start(1)
    pair.one.write(0, b"c", b"d")
    pair.round()
    (mine,), (theirs,) = pair.two.partitions, pair.one.partitions
    pair.two.files.fail(operation, part, number)
    with pytest.raises(StorageError):
        mine.truncate_to(2, 0)
    pair.start(2)
    pair.one.write(0, b"e")
    for _ in range(3):
        pair.now_ms += 1000
        pair.round()
    pair.same()
    assert (mine.log.end_offset, mine.log.size_bytes) == (5, theirs.log.size_bytes)
    assert mine.log.leader_epochs.starts == theirs.log.leader_epochs.starts == [0, 2, 4]
