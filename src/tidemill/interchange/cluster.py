"""A cluster's metadata between its forms: KRaft's log, ZooKeeper's nodes, Tidemill's coordination store."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidemill.coordination.consumer_nodes import GroupPartition
from tidemill.model.types import ZERO_ID

NO_LEADER = -1


class PartitionEntry(NamedTuple):
    """Where a partition is, and who led it last."""

    replicas: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()


class TopicEntry:
    """A topic: its id, its partitions by number, the settings of its own."""

    __slots__ = ("config", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes = ZERO_ID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, PartitionEntry] = {}
        self.config: dict[str, str] = {}


class ClusterMetadata:
    """What is known of a cluster. ``source`` says where from, for people."""

    def __init__(self, source: str, cluster_id: str = "") -> None:
        self.source = source
        self.cluster_id = cluster_id
        self.topics: dict[str, TopicEntry] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        """By broker id as text; what holds for all brokers under an empty name."""
        self.group_configs: dict[str, dict[str, str]] = {}
        """What is set for groups, by group."""
        self.next_producer_id = 0
        self.group_offsets: dict[GroupPartition, int] = {}
        """What groups committed by version 0, or by themselves, outside of ``__consumer_offsets``."""
        self.left_out: Counter[str] = Counter()
        """What is there and has no place here: how many of each kind."""
        self.notes: list[str] = []
