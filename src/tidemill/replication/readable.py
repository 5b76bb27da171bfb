"""What may be read of a partition, and by whom. Compiled.

Consumers read what is committed, from the leader or a follower; followers read from the leader, to the log's
end. Whoever knows another leader epoch than the one that is now is told so first.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64

from tidemill.log.log import Log
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.waiting import CONSUMER, Awaited

READ_COMMITTED: Final[i32] = 1


class Readable(Awaited):
    """A partition's log, with all that decides who may read how much of it."""

    def __init__(self, topic: str, index: i32, log: Log, node_id: i32) -> None:
        super().__init__(log.end_offset)
        self.topic = topic
        self.index: i32 = index
        self.log = log
        self.node_id: i32 = node_id
        self.leader: i32 = -1
        self.leader_epoch: i64 = -1
        self.deleted = False
        self.failed = ""
        """Why the log can neither be read nor written, when its directory failed."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leader == self.node_id and not self.deleted

    @property
    def last_stable_offset(self) -> i64:
        """Below this no transaction is open."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def has_transactions(self) -> bool:
        """Whether readers of committed records may see less than others."""
        return not self.log.producer_state.transactions.are_none

    def check_readable(self, current_epoch: i64) -> None:
        """Raises unless consumers may read here, in the epoch that the client knows (-1: it knows none).

        A follower does as well as the leader (KIP-392).
        """
        if self.failed:
            raise KafkaError(self.failed, ErrorCode.KAFKA_STORAGE_ERROR)
        if self.deleted:
            raise KafkaError(f"{self.topic}-{self.index} was deleted", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.leader < 0:
            # It may have led until now, and consumers were told more than it knows to be committed.
            raise KafkaError(f"{self.topic}-{self.index} has no leader", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._check_epoch(current_epoch)

    def check_here(self) -> None:
        """Raises unless this broker has the log, whoever leads."""
        if self.failed:
            raise KafkaError(self.failed, ErrorCode.KAFKA_STORAGE_ERROR)
        if self.deleted:
            raise KafkaError(f"{self.topic}-{self.index} was deleted", ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leader(self, current_epoch: i64) -> None:
        """Raises unless this broker leads, in the epoch that the client knows (-1: it knows none)."""
        if self.failed:
            raise KafkaError(self.failed, ErrorCode.KAFKA_STORAGE_ERROR)
        if self.leader != self.node_id or self.deleted:
            raise KafkaError(
                f"{self.topic}-{self.index} is led by broker {self.leader}", ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        self._check_epoch(current_epoch)

    def _check_epoch(self, current_epoch: i64) -> None:
        if current_epoch >= 0 and current_epoch != self.leader_epoch:
            if current_epoch < self.leader_epoch:
                raise KafkaError(
                    f"leader epoch {current_epoch} is over, {self.leader_epoch} is now",
                    ErrorCode.FENCED_LEADER_EPOCH,
                )
            raise KafkaError(
                f"leader epoch {current_epoch} is not known here yet, {self.leader_epoch} is now",
                ErrorCode.UNKNOWN_LEADER_EPOCH,
            )

    def read(self, offset: i64, bytes_max: i64, limit_offset: i64, whole_first: bool) -> Slice | None:
        """Where the records from ``offset`` on lie, up to ``limit_offset``; None when there are none yet.

        Raises as :meth:`check_range`.
        """
        self.check_range(offset)
        if offset >= limit_offset:
            return None
        return self.log.read(offset, bytes_max, limit_offset, whole_first)

    def check_range(self, offset: i64) -> None:
        """Raises OFFSET_OUT_OF_RANGE outside of the log; on a follower NOT_LEADER_OR_FOLLOWER.

        Above the high watermark a consumer waits: after a change of leaders, and on a follower, it may know
        more to be committed than this broker does yet. A follower may have to fetch first what the consumer
        read elsewhere. It sends the consumer to the leader: without a leader epoch a consumer resets its
        position after OFFSET_OUT_OF_RANGE, which Apache Kafka answers here, too (KAFKA-14255).
        """
        log = self.log
        if log.start_offset <= offset <= log.end_offset:
            return
        text = f"{self.topic}-{self.index} holds {log.start_offset} to {log.end_offset}, not {offset}"
        if self.leader != self.node_id:
            led = f"broker {self.leader} leads it" if self.leader >= 0 else "it has no leader"
            raise KafkaError(f"{text}: {led}", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(text, ErrorCode.OFFSET_OUT_OF_RANGE)

    def limit_offset(self, replica_id: i32, isolation: i32) -> i64:
        """How far a reader may read."""
        if replica_id != CONSUMER:
            return self.log.end_offset
        if isolation == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark
