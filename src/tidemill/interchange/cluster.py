"""A cluster's metadata, independent of its source: KRaft's log, ZooKeeper's nodes, or Tidemill's store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.coordination.nodes import GroupPartition
from tidemill.model.types import NO_BROKER, ZERO_ID


class PartitionEntry(NamedTuple):
    """A partition's replicas and last leader."""

    replicas: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()


@dataclass(slots=True)
class TopicEntry:
    """A topic: its id, its partitions by number, its configuration."""

    name: str
    topic_id: bytes = ZERO_ID
    partitions: dict[int, PartitionEntry] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterMetadata:
    """The metadata of a cluster. ``source`` describes its origin, for messages."""

    source: str
    cluster_id: str = ""
    topics: dict[str, TopicEntry] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Configurations by broker id as text; the defaults of all brokers have an empty name."""
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Configurations by group."""
    next_producer_id: int = 0
    transaction_version: int | None = None
    """The level of the feature ``transaction.version``; None if the source does not have features."""
    group_offsets: dict[GroupPartition, int] = field(default_factory=dict)
    """Offsets outside ``__consumer_offsets``, committed by version 0 or by the groups themselves."""
    omitted: Counter[str] = field(default_factory=Counter)
    """The number of items of each kind that Tidemill does not support."""
    notes: list[str] = field(default_factory=list)
