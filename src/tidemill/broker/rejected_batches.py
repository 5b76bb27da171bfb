"""Recently rejected batches of idempotent producers: later batches get the same error. Compiled.

A producer has up to five batches for a partition in flight. The first may be rejected for a transient reason
(a full disk, too few in-sync replicas, a new leader without its LeaderAndIsr, a transaction that the
coordinator has not confirmed yet), which may have ended when the second arrives. The sequence of the second
batch is then out of order. After that error, librdkafka uses a new epoch for all of its partitions, and sends
batches whose responses were lost with new sequences: they are stored twice (librdkafka issue 4953). If the
partition does not know the producer, it would even store the second batch, and the first would be out of
order permanently. Therefore the second batch gets the error of the first, and the client sends both again, in
their order.

A rejection applies only while the log still expects the rejected batch. Times are monotonic: with the wall
clock, setting it forward would end a recent rejection.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.broker.produce_codec import PartitionRecords
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import CONTROL_FLAG, SEQUENCE_MAX, Batch
from tidemill.replication.partition import Partition

REJECTION_MS: Final[i64] = 10_000
"""The time after which a client has abandoned a batch that it has not sent again."""
REJECTIONS_MAX: Final = 10_000
TOPIC_BYTES_MAX: Final = 249
SEQUENCES_AHEAD: Final[i64] = 1 << 30
"""Sequences wrap around: up to this difference a sequence is later."""
RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors after which clients send a batch again."""

Key = tuple[bytes, int, int]
"""Topic name, partition and producer id. For an unknown topic, the name or id that the client sent."""


class RejectedBatch:
    """The first rejected batch of a producer."""

    def __init__(self, epoch: i64, sequence: i64, code: ErrorCode, at_ms: i64) -> None:
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.code = code
        self.at_ms: i64 = at_ms


class RejectedBatches:
    """The recently rejected batches, by topic, partition and producer."""

    def __init__(self) -> None:
        self.rejections: dict[Key, RejectedBatch] = {}

    def record(
        self,
        records: PartitionRecords,
        partition: Partition | None,
        batch: Batch,
        error: KafkaError,
        now_ms: i64,
    ) -> None:
        """Records that ``batch`` of ``records`` was rejected.

        ``partition`` is None for an unknown partition. Batches without a producer id, and batches that
        clients do not send again, are ignored.
        """
        if batch.producer_id < 0 or batch.attributes & CONTROL_FLAG != 0 or error.code not in RETRIED:
            return
        # The key has the name, because a client may name a topic by id in one request, and not in the next.
        topic = records.topic if partition is None else partition.topic.encode()
        if len(topic) > TOPIC_BYTES_MAX:
            return  # No topic can have such a name.
        key: Key = (topic, int(records.index), int(batch.producer_id))
        before = self.rejections.get(key)
        is_recent = before is not None and now_ms - before.at_ms < REJECTION_MS
        if before is not None and is_recent and before.epoch > batch.producer_epoch:
            return  # It is from a fenced producer, and the rejection from its successor.
        if (
            before is not None
            and is_recent
            and before.epoch == batch.producer_epoch
            and is_later(batch.base_sequence, before.sequence)
            and (partition is None or awaits(partition.log.producer_state, batch, before))
        ):
            return  # It is itself one of the later batches.
        if before is None and len(self.rejections) >= REJECTIONS_MAX:
            self._remove_expired(now_ms)
        self.rejections[key] = RejectedBatch(batch.producer_epoch, batch.base_sequence, error.code, now_ms)

    def check(self, records: PartitionRecords, partition: Partition, batch: Batch, now_ms: i64) -> None:
        """Raises the error of an earlier rejected batch, if the log still expects that batch."""
        name = partition.topic.encode()
        state = partition.log.producer_state
        self._check_key((name, int(records.index), int(batch.producer_id)), batch, state, now_ms)
        if records.topic != name:
            # The earlier batch was rejected, with the topic id, before this broker had the topic.
            self._check_key((records.topic, int(records.index), int(batch.producer_id)), batch, state, now_ms)

    def _check_key(self, key: Key, batch: Batch, state: ProducerStateManager, now_ms: i64) -> None:
        before = self.rejections.get(key)
        if before is None:
            return
        is_recent = now_ms - before.at_ms < REJECTION_MS
        if is_recent and before.epoch > batch.producer_epoch:
            return  # The batch is from a fenced producer.
        if not is_recent or before.epoch != batch.producer_epoch or batch.base_sequence == before.sequence:
            del self.rejections[key]
            return
        if is_later(batch.base_sequence, before.sequence) and awaits(state, batch, before):
            raise KafkaError(
                f"an earlier batch, with sequence {before.sequence}, was rejected "
                f"({before.code.name}): send both again",
                before.code,
            )

    def _remove_expired(self, now_ms: i64) -> None:
        for key, rejected in list(self.rejections.items()):
            if now_ms - rejected.at_ms >= REJECTION_MS:
                del self.rejections[key]
        if len(self.rejections) >= REJECTIONS_MAX:
            self.rejections.clear()


def awaits(state: ProducerStateManager, batch: Batch, rejected: RejectedBatch) -> bool:
    """Whether the log still expects a rejected batch. Another leader may have appended it meanwhile."""
    expected: i64 = state.next_sequence(batch.producer_id, batch.producer_epoch)
    return expected < 0 or expected == rejected.sequence


def is_later(sequence: i64, other: i64) -> bool:
    """Whether ``sequence`` comes after ``other``."""
    ahead: i64 = (sequence - other) & SEQUENCE_MAX
    return 0 < ahead < SEQUENCES_AHEAD
