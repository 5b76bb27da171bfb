"""Stops leading partitions that others may lead, while the store is unreachable.

Without the store a leader cannot know whether its session is alive. While members of the ISR fetch from it,
it keeps leading: only one of them could be elected. If they are silent as well for the length of a session,
this broker is isolated, rather than the store unavailable: records that it acknowledges with ``acks=1`` would
be lost, and clients would keep waiting for it.
"""

from __future__ import annotations

import logging

from tidemill.model.types import NO_BROKER
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

logger = logging.getLogger("tidemill.replication")


class StoreIsolation:
    """The partitions that this broker has stopped leading temporarily."""

    def __init__(self, partitions: ReplicaManager) -> None:
        self._partitions = partitions
        self._left: dict[Partition, PartitionState] = {}

    def leave(self, since_ms: int) -> None:
        """Stops leading partitions with uncommitted records that no ISR member has fetched since then.

        ``since_ms`` is a time of the monotonic clock.
        """
        for partition in list(self._partitions.all()):
            if partition.is_leader and not partition.is_offline and partition.is_isolated(since_ms):
                logger.warning(
                    "stopped leading %s-%d: neither the store nor an in-sync replica responds",
                    partition.topic,
                    partition.index,
                )
                self._left[partition] = PartitionState.of(partition)
                self._partitions.stop_leading(partition)

    def resume(self) -> None:
        """Leads the partitions again that the controller has not given to others: the session is alive."""
        left, self._left = self._left, {}
        for partition, state in left.items():
            if PartitionState.of(partition) == state._replace(leader=NO_BROKER):
                self._partitions.isr_changed(partition, state)

    def clear(self) -> None:
        """Forgets the partitions after the session has expired: the controller decides on their leaders."""
        self._left.clear()
