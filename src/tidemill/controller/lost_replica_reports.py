"""Reads the lost replicas that brokers report in their registrations.

A registration reports lost replicas until its broker has cleared the report. A full disk delays that, and
topics may be created meanwhile. The report does not apply to these topics: their replicas had no log when the
broker registered, and may be the only ones in sync now. A replica is therefore exempt if the state node of
its partition is newer than the registration. A broker whose session expires registers again with the same
report; in that case the first of these registrations counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.controller.leader_election import Losses
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.coordination_store import Store
from tidemill.coordination.nodes import PartitionStateNode


async def reported_losses(store: Store, image: ClusterImage, brokers: Iterable[int]) -> Losses:
    """The losses that live ``brokers`` report, without the partitions created after the report.

    Raises StoreError.
    """
    losses = {
        broker: image.brokers[broker].lost for broker in brokers if not image.brokers[broker].lost.is_none
    }
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
    # The store may differ from that of the first registration, and have smaller epochs.
    return min(broker.lost.first_epoch or broker.epoch, broker.epoch)
