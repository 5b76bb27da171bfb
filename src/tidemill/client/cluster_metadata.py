"""Brokers, topics and partitions, as a client knows them from Metadata responses."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.configs.listeners import join_address
from tidemill.wire.messages.metadata import MetadataResponseTopic


class Node(NamedTuple):
    """A broker, as the cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        return join_address(self.host, self.port)


class Partition(NamedTuple):
    """A partition's leader and replicas. ``leader`` is -1 while the partition has no leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class Topic(NamedTuple):
    """A topic: its id (zeros if the broker has no topic ids) and its partitions by number."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: list[Partition]


def topic_image(name: str, item: MetadataResponseTopic, old: Topic | None) -> Topic:
    """Returns the image of a topic from a Metadata response; ``old`` is the image before.

    A partition whose leader epoch is lower than in ``old`` comes from an outdated broker: ``old`` is kept.
    """
    before = {p.partition: p for p in old.partitions} if old and old.topic_id == item.topic_id else {}
    partitions: list[Partition] = []
    for p in sorted(item.partitions, key=lambda p: p.partition_index):
        known = before.get(p.partition_index)
        if known is not None and 0 <= p.leader_epoch < known.leader_epoch:
            partitions.append(known)
            continue
        partitions.append(
            Partition(
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                p.replica_nodes,
                p.isr_nodes,
                p.offline_replicas,
            )
        )
    return Topic(name, item.topic_id, item.is_internal, partitions)
