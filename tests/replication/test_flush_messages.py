"""``flush.messages``: acknowledged records are on the leader's disk, also after changes during the sync."""

from __future__ import annotations

import errno

from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Pair, Quiet, batch_of

from default_limits import RecordLimits
from log_start import start_logs
from tidemill.log.log_config import LogConfig
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.replication.hosted_topics import TopicSettings
from tidemill.replication.partition import Partition

EACH = LogConfig(flush_messages=1)
BOTH = (LEADER, FOLLOWER)


def sync(partition: Partition) -> None:
    """Completes the requested sync."""
    partition.log.flush(0)
    partition.flushed(int(partition.log.end_offset), 0)


def produced(producer_id: int, sequence: int) -> Batch:
    """Returns one record of an idempotent producer."""
    return batch_of(b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_a_leader_that_becomes_the_only_in_sync_replica_commits_its_synced_records() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.apply_state(LEADER, 0, BOTH, BOTH, partition_epoch=0, now_ms=0)
    broker.write(0, b"a")
    partition.apply_state(LEADER, 0, BOTH, (LEADER,), partition_epoch=1, now_ms=0)
    assert partition.high_watermark == 0
    assert partition.must_delay_response(-1, 1)
    assert partition.must_delay_response(1, 1)
    partition.set_min_insync_replicas(2, 0)
    partition.set_min_insync_replicas(1, 0)
    assert partition.high_watermark == 0
    sync(partition)
    assert partition.high_watermark == 1


def test_a_sole_leader_waits_for_a_replica_with_a_pending_isr_change() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.apply_state(LEADER, 0, BOTH, (LEADER,), partition_epoch=0, now_ms=0)
    broker.write(0, b"a")
    sync(partition)
    broker.write(0, b"b")
    assert partition.fetched_by(FOLLOWER, 1, 0, 0)
    assert broker.events.wanted == [(BOTH, 0)]
    sync(partition)
    assert partition.high_watermark == 1
    assert partition.fetched_by(FOLLOWER, 2, 0, 1)
    assert partition.high_watermark == 2


def test_a_follower_elected_alone_during_a_sync_commits_its_synced_records() -> None:
    pair = Pair(1, EACH)
    pair.start()
    pair.one.write(0, b"a")
    pair.round()
    (partition,) = pair.two.partitions
    assert partition.flush_under_way
    partition.apply_state(FOLLOWER, 1, BOTH, (FOLLOWER,), partition_epoch=1, now_ms=0)
    assert partition.high_watermark == 0
    sync(partition)
    assert partition.high_watermark == 1


def test_unsynced_records_of_a_killed_process_are_synced_before_their_retry_is_acknowledged() -> None:
    broker = Broker(LEADER, config=EACH)
    (partition,) = broker.partitions
    partition.apply_state(LEADER, 0, (LEADER,), (LEADER,), partition_epoch=-1, now_ms=0)
    partition.append(produced(7, 0), -1, 0)
    sync(partition)
    broker.logs.checkpoint_recovery_points()
    broker.logs.dirs.mark_losses_handled()
    partition.append(produced(7, 1), -1, 0)
    broker.files.kill()
    logs = start_logs(broker.files, ["/d"], EACH, now_ms=0)
    started = Partition("t", 0, logs.logs[TopicPartition("t", 0)], RecordLimits(), LEADER, Quiet())
    started.high_watermark = 1
    started.apply_state(LEADER, 1, (LEADER,), (LEADER,), partition_epoch=-1, now_ms=0)
    assert (started.log.end_offset, started.log.recovery_point, started.high_watermark) == (2, 1, 1)
    again = started.append(produced(7, 1), -1, 0)
    assert again.duplicate
    assert started.must_delay_response(-1, again.last_offset + 1)
    sync(started)
    assert started.high_watermark == 2


def test_pending_records_are_committed_after_flush_messages_is_set() -> None:
    broker = Broker(LEADER)
    (partition,) = broker.partitions
    partition.apply_state(LEADER, 0, BOTH, BOTH, partition_epoch=0, now_ms=0)
    broker.write(0, b"a")
    assert broker.events.flushes == []
    TopicSettings(EACH).apply(partition, 0)
    partition.fetched_by(FOLLOWER, 1, 0, 10, 1)
    assert (partition.high_watermark, broker.events.flushes) == (0, [partition])
    sync(partition)
    assert partition.high_watermark == 1


def test_a_follower_reports_partially_stored_records_after_their_sync() -> None:
    pair = Pair(1, EACH)
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    # Batches of two leader epochs are appended one after the other.
    pair.one.become(LEADER, 1)
    pair.two.become(LEADER, 1)
    (partition,) = pair.two.partitions
    pair.fetcher.add_partition(TOPIC, partition, 0)
    pair.one.write(0, b"b")
    pair.two.files.fail("append", "t-0/00000000000000000000.log", errno.ENOSPC, after=1)
    troubles, _, _ = pair.fetch()
    assert len(troubles) == 1
    assert (partition.log.end_offset, partition.log.recovery_point) == (1, 0)
    assert partition.has_pending_sync
    assert pair.fetcher.build_request(pair.now_ms + 10_000) is None
    sync(partition)
    assert pair.fetcher.build_request(pair.now_ms + 10_000) is not None
