"""Begins to follow leaders. After a power cut a log is first cut to what was synced, until that succeeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.model.errors import StorageError
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from tidemill.replication.manager import ReplicaManager

FOLLOW_AGAIN_S: Final = 1.0
"""After a cut that failed: the disk may be full, or descriptors lacking."""


class FollowerStart:
    """Begins to follow leaders."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas

    def begin(self, partition: Partition) -> None:
        """Follows the leader of ``partition`` in the epoch that it is in now.

        A partition whose log cannot be cut is not followed: its fetches would claim records that are not on
        the disk. That is tried again, unless the partition has another leader by then.
        """
        following = self.replicas.following
        if following is None:
            return
        try:
            self._cut_doubtful(partition)
            self._save_start(partition)
            following.follow(partition)
        except StorageError as problem:
            following.leave(partition)
            self.replicas.storage_trouble(partition, problem)
            self.replicas.loop.call_later(FOLLOW_AGAIN_S, self._begin_again, partition, _led_by(partition))

    def _begin_again(self, partition: Partition, led_by: tuple[int, int]) -> None:
        is_gone = partition.failed or partition.deleted or self.replicas.flushing.stopping
        if not is_gone and led_by == _led_by(partition):
            self.begin(partition)

    def _cut_doubtful(self, partition: Partition) -> None:
        """Cuts a log with which the machine went down to what was synced, unless this broker has led since.

        The leader has the rest. Raises StorageError.
        """
        key = partition.log.topic_partition
        if key in self.replicas.doubtful:
            partition.truncate_to(
                self.replicas.doubtful[key],
                self.replicas.clock.wall_ms(),
                "they were not synced when the machine went down; they are fetched again from the leader",
            )
            del self.replicas.doubtful[key]

    def _save_start(self, partition: Partition) -> None:
        """Has the start of a log written down where a power cut could bring an earlier one back."""
        one = partition.log
        directory = self.replicas.logs.directory_of(one)
        if directory.start_offsets.written(one.topic_partition) < one.start_offset:
            partition.save_start()


def _led_by(partition: Partition) -> tuple[int, int]:
    return int(partition.leader), int(partition.leader_epoch)
