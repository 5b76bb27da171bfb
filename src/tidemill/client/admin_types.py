"""The arguments and results of the admin client: immutable named tuples; ``_asdict()`` converts them to
mappings.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tidemill.model.configs.source_descriptions import provenance_in
from tidemill.model.types import TopicPartition


class NewTopic(NamedTuple):
    """A topic to create. -1 selects the broker's default; ``assignments`` has the replicas by partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] | None = None
    assignments: dict[int, list[int]] | None = None


class CreatedTopic(NamedTuple):
    """A created topic. Numbers are -1 and configs are empty if the broker does not return them."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    configs: dict[str, str | None]


class TopicListing(NamedTuple):
    """A topic in a list."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    internal: bool


class PartitionDescription(NamedTuple):
    """A partition; ``leader`` is -1 if the partition has no leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)


class TopicDescription(NamedTuple):
    """A topic with its partitions."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: list[PartitionDescription]


class PartitionReassignment(NamedTuple):
    """A reassignment in progress: all replicas, the replicas to be added and the replicas to be removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas after the reassignment, the preferred leader first."""
        return [broker for broker in self.replicas if broker not in self.removing]


class BrokerDescription(NamedTuple):
    """A broker of the cluster."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class ClusterDescription(NamedTuple):
    """The cluster; ``controller_id`` is -1 if there is no controller."""

    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerDescription]


class ResourceType(IntEnum):
    """The types of resources that have a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with a configuration. The name of a broker is its id, or empty for the default of all
    brokers.
    """

    kind: ResourceType
    name: str


SOURCES = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "configuration file",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
"""Where a value comes from, by Kafka's number (ConfigSource)."""


class ConfigSynonym(NamedTuple):
    """A key and value of lower precedence."""

    name: str
    value: str | None
    source: str


class ConfigEntry(NamedTuple):
    """A configuration entry; the value of a sensitive key is None."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    synonyms: list[ConfigSynonym]
    documentation: str | None

    @property
    def set_by(self) -> str:
        """The source of the value, as exactly as the documentation states it, if it was requested."""
        return provenance_in(self.documentation) or self.source


class GroupListing(NamedTuple):
    """A group in a list; older brokers leave ``state`` and ``type`` empty."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


class GroupMember(NamedTuple):
    """A member of a group and its partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]


class GroupDescription(NamedTuple):
    """A group; ``state`` has Kafka's names: Stable, Empty, PreparingRebalance, CompletingRebalance, Dead."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[GroupMember]


class PartitionLag(NamedTuple):
    """The position of a group in a partition. ``lag`` is None without a committed offset.

    ``start``, ``end`` and ``lag`` are None if the partition has no leader.
    """

    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    lag: int | None
    member_id: str
    client_id: str
    host: str


class ReplicaSize(NamedTuple):
    """A replica in a log directory."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    future: bool


class LogDirectory(NamedTuple):
    """A log directory of a broker; -1 if the broker does not return the size."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaSize]


class ProducerEntry(NamedTuple):
    """An active producer of a partition; -1 for absent values."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class TransactionListing(NamedTuple):
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """The state of a transactional id. ``start_ms`` is -1 without a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: list[TopicPartition]
    coordinator: int


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int
