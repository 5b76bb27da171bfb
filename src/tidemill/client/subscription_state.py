"""The subscription of a consumer, its assigned partitions, and its position in each of them.

Has no I/O. The consumer changes the subscription; the coordinator changes the assignment; the fetcher and the
offset resets change the positions. Kafka's class has the same name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tidemill.client.config import ClientConfig
from tidemill.model.types import TopicPartition
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST


class RebalanceListener(Protocol):
    """Receives the changes of the assignment, inside poll(), unsubscribe() and close(), in their thread."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions were added; a seek is possible now."""
        ...

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions are being revoked; a commit of their offsets is still possible."""
        ...

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions belong to other members already; a commit would fail."""
        ...


class PartitionPosition:
    """A consumer's position in a partition. ``offset`` is None until the position is known."""

    __slots__ = (
        "error_name",
        "error_reason",
        "error_since",
        "high_watermark",
        "last_stable_offset",
        "offset",
        "paused",
        "preferred_read_replica",
        "read_from_leader_until",
        "read_replica_expires_at",
        "reset_timestamp",
        "retry_at",
    )

    def __init__(self) -> None:
        self.offset: int | None = None
        self.reset_timestamp: int | None = None
        """The timestamp whose offset becomes the position; None if no reset is in progress."""
        self.paused = False
        self.retry_at = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.preferred_read_replica = -1
        self.read_replica_expires_at = 0.0
        self.read_from_leader_until = 0.0
        """Until then, in monotonic seconds, no replica is preferred: the preferred one has failed."""
        self.error_name = ""
        """The name of the error that prevents reads of the partition; empty without an error."""
        self.error_reason = ""
        """The text of the error, with the next step."""
        self.error_since = 0.0
        """The time of the first error since the last successful read, in monotonic seconds."""

    def seek(self, offset: int) -> None:
        """Sets the position to ``offset``."""
        self.offset, self.reset_timestamp = offset, None

    def request_reset(self, timestamp: int) -> None:
        """Makes the position unknown until the offset at ``timestamp`` is looked up."""
        self.offset, self.reset_timestamp = None, timestamp

    def record_error(self, error_name: str, reason: str, since: float | None = None) -> None:
        """Records that the partition cannot be read, ``since`` (monotonic seconds) or from now on."""
        if not self.error_name:
            self.error_since = time.monotonic() if since is None else since
        self.error_name = error_name
        self.error_reason = reason


class SubscriptionState:
    """The subscription, the assignment and the positions of one consumer.

    For the polling thread. Consumer.waits() reads the positions from any thread.
    """

    def __init__(self, config: ClientConfig) -> None:
        self.default_reset_timestamp = {"earliest": EARLIEST, "latest": LATEST}.get(
            config.str("auto.offset.reset")
        )
        """The reset of a partition without a valid offset; None if that is an error."""
        self.topics: set[str] = set()
        """The subscribed topics; with a pattern, the topics that matched last."""
        self.pattern: re.Pattern[str] | None = None
        self.listener: RebalanceListener | None = None
        self.positions: dict[TopicPartition, PartitionPosition] = {}
        """The assigned partitions."""
        self.iteration_offsets: dict[TopicPartition, int] = {}
        """The position of an iteration in the records of its last poll."""
        self.returned_offsets: dict[TopicPartition, int] = {}
        """The first offset of the records returned last, which the user may still be processing."""

    @property
    def is_subscribed(self) -> bool:
        """Whether the consumer subscribes to topics or a pattern, and has no manually assigned partitions."""
        return bool(self.topics) or self.pattern is not None

    def subscribe(
        self, topics: set[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        """Replaces the subscription. Raises ValueError if partitions are assigned manually."""
        if self.positions and not self.is_subscribed:
            raise ValueError("partitions are assigned; unsubscribe() first")
        self.topics, self.pattern, self.listener = topics, pattern, listener

    def unsubscribe(self) -> None:
        """Drops the subscription. The partitions stay assigned."""
        self.topics, self.pattern, self.listener = set(), None, None

    def add_partitions(self, items: Iterable[TopicPartition]) -> None:
        """Assigns partitions. Those that are assigned already keep their positions."""
        for item in items:
            self.positions.setdefault(item, PartitionPosition())

    def remove_partitions(self, items: Iterable[TopicPartition]) -> None:
        """Removes partitions and their positions from the assignment."""
        for item in items:
            self.positions.pop(item, None)
            self._drop_progress(item)

    def position_of(self, item: TopicPartition) -> PartitionPosition:
        """Returns the position in a partition. Raises ValueError if the partition is not assigned."""
        found = self.positions.get(TopicPartition(*item))
        if found is None:
            raise ValueError(
                f"{item} is not assigned to this consumer; assigned are {sorted(self.positions)}"
            )
        return found

    def initializing_partitions(self) -> list[TopicPartition]:
        """Returns the partitions whose position is neither known nor being reset."""
        return [i for i, p in self.positions.items() if p.offset is None and p.reset_timestamp is None]

    def seek(self, item: TopicPartition, offset: int) -> None:
        """Sets the position in an assigned partition to ``offset``."""
        self.position_of(item).seek(offset)
        self._drop_progress(item)

    def move_positions(self, starts: dict[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        """Moves the positions from ``starts`` to ``ends``, past records that are returned to the user.

        Until the next poll, ``starts`` are kept as the offsets of records that the user has not processed.
        """
        # First, so that an interrupted poll leaves no moved position without its start.
        self.returned_offsets = starts
        for item, offset in ends.items():
            self.positions[item].offset = offset

    def request_reset(self, item: TopicPartition, timestamp: int) -> None:
        """Makes the position in an assigned partition unknown until it is looked up at ``timestamp``."""
        self.position_of(item).request_reset(timestamp)
        self._drop_progress(item)

    def record_error(self, item: TopicPartition, error_name: str, reason: str) -> None:
        """Records that a partition cannot be read; no-op if it is not assigned."""
        position = self.positions.get(item)
        if position is not None:
            position.record_error(error_name, reason)

    def _drop_progress(self, item: TopicPartition) -> None:
        """Drops the progress of the user in the records of a partition."""
        self.iteration_offsets.pop(item, None)
        self.returned_offsets.pop(item, None)

    def consumed_offset(self, item: TopicPartition) -> int | None:
        """Returns the offset of the next record for the user, during an iteration as well."""
        offset = self.position_of(item).offset
        return None if offset is None else self.iteration_offsets.get(item, offset)

    def all_consumed(self) -> dict[TopicPartition, tuple[int, int, str]]:
        """Returns the offsets to commit: those of the next record in each partition."""
        return {
            item: (self.iteration_offsets.get(item, position.offset), -1, "")
            for item, position in self.positions.items()
            if position.offset is not None
        }
