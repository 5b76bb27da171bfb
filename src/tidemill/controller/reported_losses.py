"""What the losses that brokers report in their registrations mean to the partitions.

A registration reports losses until its broker has cleared them, and topics may be made meanwhile. A report
says nothing of these: their replicas had no log before. The broker may lead one of them by then, alone in
sync. So of the replicas that would leave the in-sync set or the ELR, those are spared whose partition's state
was created after the registration. A broker whose session ends before that registers anew with the same
report: then the first of these registrations counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.controller.elections import Losses
from tidemill.coordination.image import BrokerImage, ClusterImage
from tidemill.coordination.nodes import PartitionStateNode
from tidemill.coordination.port import Store


async def reported_losses(store: Store, image: ClusterImage, brokers: Iterable[int]) -> Losses:
    """The losses that ``brokers``, which live in ``image``, report, without partitions made since.

    Raises StoreError.
    """
    losses = {one: image.brokers[one].lost for one in brokers if not image.brokers[one].lost.is_none}
    doubtful = [
        (topic.name, partition.partition, broker)
        for topic in image.topic_index.with_replicas_on(sorted(losses))
        for partition in topic.partitions
        for broker, lost in losses.items()
        if broker in (*partition.isr, *partition.elr, partition.last_known_leader)
        and lost.is_lost(topic.name, partition.partition)
    ]
    if not doubtful:
        return losses
    states = await store.get_many([PartitionStateNode.path(name, number) for name, number, _ in doubtful])
    since: dict[int, dict[str, set[int]]] = {}
    for (name, number, broker), state in zip(doubtful, states, strict=True):
        if state is not None and state.creation_id > _reported_at(image.brokers[broker]):
            since.setdefault(broker, {}).setdefault(name, set()).add(number)
    for broker, topics in since.items():
        made = {name: frozenset(numbers) for name, numbers in topics.items()}
        losses[broker] = losses[broker]._replace(since=made)
    return losses


def _reported_at(broker: BrokerImage) -> int:
    # The store may be another than that of the first registration, and its epochs smaller ones.
    return min(broker.lost.first_epoch or broker.epoch, broker.epoch)
