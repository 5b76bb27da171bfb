"""What the losses that brokers report mean to a controller that takes the office.

A registration reports losses until its broker has cleared them, and topics may be made meanwhile. A report
says nothing of these: their replicas had no log before. The broker may lead one of them by then, alone in
sync. So of the replicas that would leave the in-sync set or the ELR, those are spared whose partition's state
was created after the registration.
"""

from __future__ import annotations

from tidemill.controller.elections import Losses
from tidemill.coordination.image import ClusterImage
from tidemill.coordination.nodes import PartitionStateNode
from tidemill.coordination.port import Store


async def losses_at_takeover(store: Store, image: ClusterImage) -> Losses:
    """The losses that the live brokers report, without the partitions made since. Raises StoreError."""
    losses = {one.broker_id: one.lost for one in image.brokers.values() if not one.lost.is_none}
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
        if state is not None and state.creation_id > image.brokers[broker].epoch:
            since.setdefault(broker, {}).setdefault(name, set()).add(number)
    for broker, topics in since.items():
        made = {name: frozenset(numbers) for name, numbers in topics.items()}
        losses[broker] = losses[broker]._replace(since=made)
    return losses
