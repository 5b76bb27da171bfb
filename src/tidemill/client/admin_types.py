"""What the admin client takes and gives back: immutable, named tuples, with ``_asdict()`` for machines."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tidemill.model.configs.provenance import provenance_in
from tidemill.model.types import TopicPartition


class NewTopic(NamedTuple):
    """A topic to create. -1 is the broker's default; ``assignments`` names the replicas by partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] | None = None
    assignments: dict[int, list[int]] | None = None


class CreatedTopic(NamedTuple):
    """A topic that was created. -1 and no configs from brokers that do not tell."""

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
    """A partition; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is out of sync."""
        return len(self.isr) < len(self.replicas)


class TopicDescription(NamedTuple):
    """A topic with its partitions."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: list[PartitionDescription]


class PartitionMove(NamedTuple):
    """A move that is under way: all replicas, with those that come and those that go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas once it is done, the preferred leader first."""
        return [broker for broker in self.replicas if broker not in self.removing]


class BrokerDescription(NamedTuple):
    """A broker of the cluster."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class ClusterDescription(NamedTuple):
    """The cluster; ``controller_id`` -1 while there is none."""

    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerDescription]


class ResourceType(IntEnum):
    """What configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A thing with configuration; a broker's name is its id, empty for the default of all brokers."""

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
    """A key and value that would apply otherwise."""

    name: str
    value: str | None
    source: str


class ConfigEntry(NamedTuple):
    """One key; the value of a sensitive one is None."""

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
        """What set the value, as exactly as the documentation tells, if that was asked for."""
        return provenance_in(self.documentation) or self.source


class GroupListing(NamedTuple):
    """A group in a list; ``state`` and ``type`` are empty from older brokers."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


class GroupMember(NamedTuple):
    """A member of a group, and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]


class GroupDescription(NamedTuple):
    """A group; ``state`` as Kafka names it: Stable, Empty, PreparingRebalance, CompletingRebalance, Dead."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[GroupMember]


class PartitionLag(NamedTuple):
    """How far a group is in a partition. ``lag`` is None without a committed offset.

    ``start``, ``end`` and ``lag`` are None for a partition that no broker leads.
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
    """A log directory of a broker; -1 where the broker does not tell."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaSize]


class ProducerEntry(NamedTuple):
    """A producer that a partition remembers; -1 where there is nothing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
