"""Partition states as the controller sends them."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.replication.partition import Partition


class PartitionState(NamedTuple):
    """The state of one partition as the controller sends it."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = -1
    """The version of this state; it grows within a leader epoch."""
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment adds."""

    @classmethod
    def of(cls, partition: Partition) -> PartitionState:
        """The current state of a partition."""
        return cls(
            int(partition.index),
            int(partition.leader),
            int(partition.leader_epoch),
            partition.replicas,
            partition.isr,
            int(partition.partition_epoch),
            partition.adding,
        )
