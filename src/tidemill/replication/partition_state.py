"""The states of partitions, as the controller sends them."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.replication.partition import Partition


class PartitionState(NamedTuple):
    """The state of one partition, as the controller sends it."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = -1
    """The version of this state; later ones have a larger one, or a larger leader epoch."""
    adding: tuple[int, ...] = ()
    """Those of the replicas that a move to other brokers brings in."""

    @classmethod
    def of(cls, partition: Partition) -> PartitionState:
        """What holds at present."""
        return cls(
            int(partition.index),
            int(partition.leader),
            int(partition.leader_epoch),
            partition.replicas,
            partition.isr,
            int(partition.partition_epoch),
            partition.adding,
        )
