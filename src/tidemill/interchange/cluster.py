"""A cluster's metadata, independent of its source: KRaft's log, ZooKeeper's nodes, or Tidemill's store."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidemill.coordination.nodes import GroupPartition
from tidemill.model.types import NO_BROKER, ZERO_ID


class PartitionEntry(NamedTuple):
    """A partition's replicas and last leader."""

    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()


class TopicEntry:
    """A topic: its id, its partitions by number, its configuration."""

    __slots__ = ("config", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes = ZERO_ID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, PartitionEntry] = {}
        self.config: dict[str, str] = {}


class ClusterMetadata:
    """The metadata of a cluster. ``source`` describes its origin, for messages."""

    def __init__(self, source: str, cluster_id: str = "") -> None:
        self.source = source
        self.cluster_id = cluster_id
        self.topics: dict[str, TopicEntry] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        """Configurations by broker id as text; the defaults of all brokers have an empty name."""
        self.group_configs: dict[str, dict[str, str]] = {}
        """Configurations by group."""
        self.next_producer_id = 0
        self.group_offsets: dict[GroupPartition, int] = {}
        """Offsets outside ``__consumer_offsets``, committed by version 0 or by the groups themselves."""
        self.omitted: Counter[str] = Counter()
        """The number of items of each kind that Tidemill does not support."""
        self.notes: list[str] = []
