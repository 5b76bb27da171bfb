"""``flush.messages``: what is acknowledged is on the leader's disk, also when something happens meanwhile."""

from __future__ import annotations

import errno

from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Quiet
from test_fetcher import Pair

from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.validate import Limits
from tidemill.replication.partition import Partition
from tidemill.replication.topics import apply_topic_config

EACH = LogConfig(flush_messages=1)
BOTH = (LEADER, FOLLOWER)


def sync(partition: Partition) -> None:
    """Ends the sync that was asked for."""
    partition.log.flush(0)
    partition.flushed(int(partition.log.end_offset), 0)


def batch_of(producer_id: int, sequence: int) -> Batch:
    """One record of an idempotent producer."""
    data = build_batch(
        [(1_700_000_000_000, b"k", b"v", None)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return parse_batch(data, 0, len(data))


def test_a_leader_that_is_alone_in_sync_while_it_syncs_commits_what_is_on_its_disk() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.become(LEADER, 0, BOTH, BOTH, 0)
    broker.write(0, b"a")
    partition.become(LEADER, 0, BOTH, (LEADER,), 1)
    assert partition.high_watermark == 0
    assert partition.holds_back(-1, 1)
    assert partition.holds_back(1, 1)
    partition.set_min_insync(2, 0)
    partition.set_min_insync(1, 0)
    assert partition.high_watermark == 0
    sync(partition)
    assert partition.high_watermark == 1


def test_a_leader_that_syncs_alone_waits_for_who_it_has_asked_for_meanwhile() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.become(LEADER, 0, BOTH, (LEADER,), 0)
    broker.write(0, b"a")
    sync(partition)
    broker.write(0, b"b")
    assert partition.fetched_by(FOLLOWER, 1, 0, 0)
    assert broker.events.wanted == [(BOTH, 0)]
    sync(partition)
    assert partition.high_watermark == 1
    assert partition.fetched_by(FOLLOWER, 2, 0, 1)
    assert partition.high_watermark == 2


def test_a_follower_that_is_elected_alone_while_it_syncs_commits_what_is_on_its_disk() -> None:
    pair = Pair(1, EACH)
    pair.start()
    pair.one.write(0, b"a")
    pair.round()
    (partition,) = pair.two.partitions
    assert partition.flush_under_way
    partition.become(FOLLOWER, 1, BOTH, (FOLLOWER,), 1)
    assert partition.high_watermark == 0
    sync(partition)
    assert partition.high_watermark == 1


def test_what_a_killed_process_left_unsynced_is_synced_before_a_retry_of_it_is_acknowledged() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.become(LEADER, 0, (LEADER,), (LEADER,))
    partition.append([batch_of(7, 0)], -1, 0)
    sync(partition)
    broker.logs.checkpoint_recovery_points()
    broker.logs.loss_heeded()
    partition.append([batch_of(7, 1)], -1, 0)
    broker.files.kill()
    logs = LogManager(broker.files, ["/d"])
    logs.lock()
    logs.load(0, lambda topic: EACH)
    started = Partition("t", 0, logs.logs[TopicPartition("t", 0)], Limits(), LEADER, Quiet())
    started.high_watermark = 1
    started.become(LEADER, 1, (LEADER,), (LEADER,))
    assert (started.log.end_offset, started.log.recovery_point, started.high_watermark) == (2, 1, 1)
    again = started.append([batch_of(7, 1)], -1, 0)
    assert again.duplicate
    assert started.holds_back(-1, again.last_offset + 1)
    sync(started)
    assert started.high_watermark == 2


def test_records_that_wait_are_committed_when_flush_messages_is_set_meanwhile() -> None:
    broker = Broker(LEADER)
    (partition,) = broker.partitions
    partition.become(LEADER, 0, BOTH, BOTH, 0)
    broker.write(0, b"a")
    assert broker.events.flushes == []
    apply_topic_config([partition], EACH, 0)
    partition.fetched_by(FOLLOWER, 1, 0, 10, 1)
    assert (partition.high_watermark, broker.events.flushes) == (0, [partition])
    sync(partition)
    assert partition.high_watermark == 1


def test_a_follower_that_stores_a_part_of_an_answer_tells_of_it_once_it_is_synced() -> None:
    pair = Pair(1, EACH)
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    # Batches of two leader epochs are appended one after the other.
    pair.one.become(LEADER, 1)
    pair.two.become(LEADER, 1)
    (partition,) = pair.two.partitions
    pair.fetcher.follow(TOPIC, partition, 0)
    pair.one.write(0, b"b")
    pair.two.files.fail("append", "t-0/00000000000000000000.log", errno.ENOSPC, after=1)
    request = pair.fetcher.request(pair.now_ms)
    assert request is not None
    troubles, _, _ = pair.fetcher.answer(pair.leader.answer(request), pair.now_ms)
    assert len(troubles) == 1
    assert (partition.log.end_offset, partition.log.recovery_point) == (1, 0)
    assert partition.is_settling
    assert pair.fetcher.request(pair.now_ms + 10_000) is None
    sync(partition)
    assert pair.fetcher.request(pair.now_ms + 10_000) is not None
