"""Stops leading what others may lead by now, as long as nobody can tell.

While the store is silent a leader cannot know whether its session lives. As long as members of the in-sync
set fetch from it, it leads: another could only be elected from among them. When they are silent as well, for
as long as a session lives, the broker is cut off, and not the store gone: what it acknowledged to writers who
ask for no replicas would be lost, and clients would go on waiting for it.
"""

from __future__ import annotations

import logging

from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState

log = logging.getLogger("tidemill.replication")

NOBODY = -1


class CutOff:
    """What this broker does not lead for the time being."""

    def __init__(self, partitions: ReplicaManager) -> None:
        self._partitions = partitions
        self._left: dict[Partition, PartitionState] = {}

    def leave(self, since_ms: int) -> None:
        """Stops leading what no member of the in-sync set has fetched since then, though there is more.

        ``since_ms`` is of the monotonic clock.
        """
        for partition in list(self._partitions.all()):
            if partition.is_leader and not partition.failed and partition.is_deserted(since_ms):
                log.warning(
                    "%s-%d is not led here any more: neither the store nor a replica in sync is heard of",
                    partition.topic,
                    partition.index,
                )
                state = PartitionState.of(partition)
                self._left[partition] = state
                self._partitions.stop_leading(partition)

    def resume(self) -> None:
        """The session lives: leads again what the controller has not given to others meanwhile."""
        left, self._left = self._left, {}
        for partition, state in left.items():
            if PartitionState.of(partition) == state._replace(leader=NOBODY):
                self._partitions.isr_changed(partition, state)

    def forget(self) -> None:
        """The session has ended: the controller says what is led here."""
        self._left.clear()
