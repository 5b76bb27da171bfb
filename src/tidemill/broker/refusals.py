"""Batches of producers that were refused a moment ago: those behind them are refused alike. Compiled.

A producer has up to five batches for a partition under way. The first may be refused for a reason that passes
(no room on the disk, too few replicas in sync, a leader that has not heard yet that it leads), and the reason
be gone when the second is looked at. By its sequence the second is out of order then. Told so, librdkafka
counts its epoch up for all of its partitions, and sends batches whose answers were lost with new sequences:
they are stored twice (librdkafka issue 4953). Where the partition does not know the producer, the second
would even be stored, and the first be out of order for good. So the second is answered as the first was, and
the client sends both again, in their order.

What is noted is believed only as long as the log still waits for the batch that was refused. Times are
monotonic: a wall clock that is set forward would have a refusal of a moment ago be forgotten.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64

from tidemill.log.producer_state import SEQUENCE_MAX, ProducerState
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import CONTROL_FLAG, Batch

NOTED_MS: Final[i64] = 10_000
"""A client that does not send a batch again within this time has given it up."""
NOTED_MAX: Final = 10_000
TOPIC_BYTES_MAX: Final = 249
SEQUENCES_AHEAD: Final[i64] = 1 << 30
"""Sequences go round: up to here a difference counts as ahead."""
PASSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which clients send a batch again."""

Place = tuple[bytes, int, int]
"""Topic by its name (as the client names it where this broker does not know it), partition, producer id."""


class Refusal:
    """The first batch of a producer that was refused."""

    def __init__(self, epoch: i64, sequence: i64, code: ErrorCode, at_ms: i64) -> None:
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.code = code
        self.at_ms: i64 = at_ms


class Refusals:
    """What was refused lately, by topic, partition and producer."""

    def __init__(self) -> None:
        self.noted: dict[Place, Refusal] = {}

    def note(
        self,
        topic: bytes,
        index: i32,
        batch: Batch,
        error: KafkaError,
        state: ProducerState | None,
        now_ms: i64,
    ) -> None:
        """``batch`` was refused by the log with this ``state``, or because there is no such log.

        What is no idempotent producer's, or will not be sent again, is left out.
        """
        if batch.producer_id < 0 or batch.attributes & CONTROL_FLAG != 0 or error.code not in PASSING:
            return
        if len(topic) > TOPIC_BYTES_MAX:
            return  # No topic has such a name: nothing will ever be stored.
        place: Place = (topic, int(index), int(batch.producer_id))
        before = self.noted.get(place)
        if (
            before is not None
            and before.epoch == batch.producer_epoch
            and now_ms - before.at_ms < NOTED_MS
            and is_ahead(batch.base_sequence, before.sequence)
            and (state is None or awaits(state, batch, before))
        ):
            return  # It is itself one of those behind.
        if before is None and len(self.noted) >= NOTED_MAX:
            self._forget_old(now_ms)
        self.noted[place] = Refusal(batch.producer_epoch, batch.base_sequence, error.code, now_ms)

    def check(self, topic: bytes, index: i32, batch: Batch, state: ProducerState, now_ms: i64) -> None:
        """Raises what the batch before ``batch`` was refused with, when the log still waits for that one."""
        place: Place = (topic, int(index), int(batch.producer_id))
        before = self.noted.get(place)
        if before is None:
            return
        if (
            before.epoch != batch.producer_epoch
            or now_ms - before.at_ms >= NOTED_MS
            or batch.base_sequence == before.sequence
        ):
            del self.noted[place]
            return
        if is_ahead(batch.base_sequence, before.sequence) and awaits(state, batch, before):
            raise KafkaError(
                f"the batch before this one, with sequence {before.sequence}, was refused "
                f"({before.code.name}): send both again",
                before.code,
            )

    def _forget_old(self, now_ms: i64) -> None:
        for place, refusal in list(self.noted.items()):
            if now_ms - refusal.at_ms >= NOTED_MS:
                del self.noted[place]
        if len(self.noted) >= NOTED_MAX:
            self.noted.clear()


def awaits(state: ProducerState, batch: Batch, refused: Refusal) -> bool:
    """Whether a log still waits for what was refused: it may have it by now, from another leader."""
    expected: i64 = state.next_sequence(batch.producer_id, batch.producer_epoch)
    return expected < 0 or expected == refused.sequence


def is_ahead(sequence: i64, other: i64) -> bool:
    """Whether ``sequence`` comes after ``other``."""
    ahead: i64 = (sequence - other) & SEQUENCE_MAX
    return 0 < ahead < SEQUENCES_AHEAD
