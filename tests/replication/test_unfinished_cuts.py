"""Followers whose logs cannot be cut for a while: the disk is full, or descriptors are lacking."""

from __future__ import annotations

import asyncio
import errno

import pytest
from test_fetcher import Pair
from test_replication_manager import NODE, Leaders, Stage, made, staged

from tidemill.broker.following import Following
from tidemill.log.config import LogConfig
from tidemill.model.clock import SystemClock
from tidemill.model.errors import StorageError
from tidemill.net.link import Link, LinkRefused
from tidemill.records.message_set import MessageSet, build_message_set
from tidemill.replication.fetcher import FetchLimits
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState

PASSING = [("open", ".txnindex", errno.EMFILE), ("append", "leader-epoch-checkpoint", errno.ENOSPC)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.replication.flushing.FLUSH_AGAIN_S", 0.005)
    monkeypatch.setattr("tidemill.replication.follower_start.FOLLOW_AGAIN_S", 0.02)


def doubtful(stage: Stage) -> Partition:
    """A partition of which a power cut may have taken the offsets 3 and 4, of the epochs 0 and 1."""
    (first,) = stage.topic("t", 1, LogConfig())
    first.append([made(3)], 1, 0)
    first.log.flush(0)
    first.append([made()], 1, 0)
    stage.replicas.put_topic(
        "t", bytes([1]) * 16, False, [PartitionState(0, NODE, 1, (NODE,), (NODE,), 1)], LogConfig()
    )
    first.append([made()], 1, 0)
    stage.replicas.doubtful = {first.log.topic_partition: 3}
    return first


def follow(stage: Stage, epoch: int = 2, leader: int = 2) -> None:
    state = PartitionState(0, leader, epoch, (NODE, 2, 3), (leader,), epoch)
    stage.replicas.put_topic("t", bytes([1]) * 16, False, [state], LogConfig())


async def flushed(stage: Stage) -> None:
    while flushes := list(stage.replicas.flushing.under_way):
        await asyncio.wait(flushes)


@pytest.mark.parametrize(("operation", "part", "number"), [*PASSING, ("open", ".log", errno.EMFILE)])
def test_a_log_that_was_open_when_the_power_went_is_followed_only_once_it_could_be_cut(
    operation: str, part: str, number: int
) -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = leaders = Leaders()
        first = doubtful(stage)
        first.log.release()
        stage.files.fail(operation, part, number, times=1_000_000)
        follow(stage)
        await asyncio.sleep(0.06)
        assert leaders.begun == []
        assert first.failed == ""
        stage.files.heal()
        await asyncio.sleep(0.2)
        await flushed(stage)
        assert leaders.begun == [3]
        assert (first.log.end_offset, first.log.active.last_offset_end()) == (3, 3)
        assert stage.replicas.doubtful == {}

    staged(test)


def test_a_log_that_could_not_be_cut_is_not_followed_later_where_another_leads_by_then() -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = leaders = Leaders()
        first = doubtful(stage)
        stage.files.fail("open", ".txnindex", errno.EMFILE, times=1)
        follow(stage, 2)
        follow(stage, 3, leader=3)
        assert leaders.begun == [3]
        await asyncio.sleep(0.06)
        assert leaders.begun == [3], "it is followed already"
        assert (first.leader, first.failed) == (3, "")

    staged(test)


def test_a_replica_of_messages_without_epochs_is_followed_again_after_a_passing_error() -> None:
    async def connect(leader: int) -> Link:
        raise LinkRefused("nobody is there")

    async def test(stage: Stage) -> None:
        replicas = stage.replicas
        replicas.following = following = Following(
            NODE, 1, FetchLimits(backoff_ms=5), connect, SystemClock(), replicas.storage_trouble
        )
        (first,) = stage.topic("t", 1, LogConfig())
        data = build_message_set(1, [(1_700_000_000_000, b"k", b"v")])
        for _ in range(3):
            first.log.append_messages(MessageSet(data, 1, 0, 1, 1_700_000_000_000), -1, 0)
        first.log.leader_epochs.truncate_end(0)
        first.high_watermark = 1
        stage.files.fail("open", ".txnindex", errno.EMFILE)
        follow(stage)
        assert first not in following._leaders
        async with asyncio.timeout(5):
            while first not in following._leaders:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        assert first.log.end_offset == 1
        await flushed(stage)
        await following.stop()

    staged(test)


@pytest.mark.parametrize(("operation", "part", "number"), PASSING)
def test_a_replica_whose_disk_is_full_while_it_is_cut_stays_online_and_cuts_it_when_there_is_room(
    operation: str, part: str, number: int
) -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = Leaders()
        first = doubtful(stage)
        stage.replicas.doubtful = {}
        follow(stage)
        stage.files.fail(operation, part, number, times=1_000_000)
        with pytest.raises(StorageError):
            first.truncate_to(3, 0)
        await asyncio.sleep(0.03)
        assert first.failed == ""
        assert first.flush_under_way, "its leader is told of nothing meanwhile"
        assert first.high_watermark <= first.log.end_offset == 3
        stage.files.heal()
        await flushed(stage)
        assert not first.is_settling
        stage.files.power_cut()
        assert stage.files.size(first.log.active.path) == first.log.size_bytes
        assert b"1 4" not in stage.files.read(first.log.leader_epochs.path)

    staged(test)


def test_a_replica_that_is_emptied_on_a_full_disk_stays_online_and_begins_where_the_leader_does() -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = Leaders()
        first = doubtful(stage)
        stage.replicas.doubtful = {}
        follow(stage)
        stage.files.fail("open", f"{100:020}.log", errno.ENOSPC, times=4)
        with pytest.raises(StorageError):
            first.begin_at(100, 0)
        assert (first.log.start_offset, first.log.end_offset, first.high_watermark) == (100, 100, 100)
        await flushed(stage)
        assert first.failed == ""
        assert stage.files.exists(f"{first.log.directory}/{100:020}.log")

    staged(test)


@pytest.mark.parametrize(("operation", "part", "number"), PASSING)
def test_a_follower_whose_cut_failed_half_way_has_what_its_leader_has_in_the_end(
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
