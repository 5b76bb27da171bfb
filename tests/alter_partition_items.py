"""Items of AlterPartition requests, from values in the order in which tests name them."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.controller.alter_partition import ANY_EPOCH, AlterPartitionItem, IsrMember
from tidemill.model.types import ZERO_ID


def isr_change(
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: Iterable[tuple[int, int]],
    broker_epoch: int = ANY_EPOCH,
) -> AlterPartitionItem:
    """Returns an item for partition 0 of a topic without an id. ``isr``: brokers with their epochs."""
    return AlterPartitionItem(
        topic_id=ZERO_ID,
        partition=0,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        isr=[IsrMember(*one) for one in isr],
        broker_epoch=broker_epoch,
    )


def item_for(topic_id: bytes, partition: int, change: AlterPartitionItem) -> AlterPartitionItem:
    """Returns the item for another partition."""
    return change._replace(topic_id=topic_id, partition=partition)
