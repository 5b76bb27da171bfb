"""The state of a topic and of its partitions in the coordination store, as a part of a cluster image.

Images are immutable: a change creates a new image, which shares the unchanged parts with the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.coordination.nodes import TopicAssignment
from tidemill.model.effective_min_isr import effective_min_isr
from tidemill.model.types import NO_BROKER

OFFSETS_TOPIC = "__consumer_offsets"
"""Stores the committed offsets of groups."""
TRANSACTION_TOPIC = "__transaction_state"
"""Stores the state of transactions."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC, "__share_group_state"})
"""Topics that the brokers use internally."""

TopicKey = tuple[str, bytes]
"""The name and the id of a topic: several topics may have the same name, one after the other."""


class Traits(NamedTuple):
    """Properties of a topic that an index derives from all its partitions."""

    brokers: frozenset[int]
    """The brokers with replicas."""
    is_reassigning: bool
    is_leaderless: bool
    has_eligible: bool


class PartitionImage:
    """The replicas of a partition, and its leader (-1: no replica can lead).

    During a reassignment, ``replicas`` are the target replicas, in their order, followed by those that are to
    be removed: ``adding`` are new, ``removing`` are removed once the new ones are in sync.
    """

    __slots__ = (
        "adding",
        "elr",
        "isr",
        "last_known_leader",
        "leader",
        "leader_epoch",
        "lost_replicas",
        "offline",
        "partition",
        "partition_epoch",
        "removing",
        "replicas",
    )

    def __init__(
        self,
        partition: int,
        leader: int,
        leader_epoch: int,
        replicas: list[int],
        isr: list[int],
        partition_epoch: int = 0,
        adding: list[int] | None = None,
        removing: list[int] | None = None,
        offline: frozenset[int] = frozenset(),
        elr: Sequence[int] = (),
        last_known_leader: int = NO_BROKER,
        lost_replicas: Sequence[int] = (),
    ) -> None:
        self.partition = partition
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.partition_epoch = partition_epoch
        """The version of the partition's state in the store."""
        self.adding = adding if adding is not None else []
        self.removing = removing if removing is not None else []
        self.offline = offline.intersection(replicas) if offline else offline
        """Live brokers that cannot read or write their replica. The store does not contain them.

        Limited to replicas: one that is moved away, and back after a repair, must not stay offline."""
        self.elr = elr
        self.last_known_leader = last_known_leader
        self.lost_replicas = lost_replicas
        """The last three attributes are those of the state node.

        See :class:`~tidemill.coordination.nodes.LeaderIsrAndControllerEpoch`.
        """

    def __repr__(self) -> str:
        changes = f", adding={self.adding}, removing={self.removing}" if self.is_reassigning else ""
        elr = f", elr={list(self.elr)}" if self.elr else ""
        return (
            f"PartitionImage({self.partition}, leader={self.leader}, leader_epoch={self.leader_epoch}, "
            f"replicas={self.replicas}, isr={self.isr}{elr}{changes})"
        )

    @property
    def is_reassigning(self) -> bool:
        """Whether the partition is being reassigned."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> list[int]:
        """The replicas after the reassignment; the current replicas without one."""
        return [broker for broker in self.replicas if broker not in self.removing]

    @property
    def origin(self) -> list[int]:
        """The replicas before the reassignment; the order of some of them is lost."""
        return [broker for broker in self.replicas if broker not in self.adding]

    def effective_min_isr(self, min_insync_replicas: int) -> int:
        """The number of in-sync replicas that a commit needs."""
        return effective_min_isr(min_insync_replicas, len(self.replicas), len(self.adding))

    def replaced(self, **changes: Any) -> PartitionImage:
        """Returns a copy with other values of these attributes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return PartitionImage(**{**values, **changes})

    def with_offline(self, offline: frozenset[int]) -> PartitionImage:
        """Returns a copy with other replicas that cannot be read or written."""
        return self.replaced(offline=offline)


class TopicImage:
    """A topic: its id, its partitions (partition n at index n), and its own settings."""

    __slots__ = (
        "config",
        "has_config_node",
        "internal",
        "name",
        "node_version",
        "partitions",
        "topic_id",
        "traits",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        partitions: tuple[PartitionImage, ...],
        config: Mapping[str, str],
        node_version: int = 0,
        has_config_node: bool = True,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.config = config
        self.internal = name in INTERNAL_TOPICS
        self.node_version = node_version
        """The version of the topic's node in the store."""
        self.has_config_node = has_config_node
        self.traits: Traits | None = None
        """Cached traits, if any; see :func:`~tidemill.coordination.topic_index.compute_traits_in_slices`."""

    def __repr__(self) -> str:
        return f"TopicImage({self.name!r}, {len(self.partitions)} partitions)"

    def partition(self, number: int) -> PartitionImage | None:
        """Returns the partition of that number, or None."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    def changed_partitions(self, before: TopicImage) -> list[PartitionImage]:
        """Returns the partitions that ``before`` does not have, or that have another state there."""
        known = before.partitions
        return [
            one for place, one in enumerate(self.partitions) if place >= len(known) or one is not known[place]
        ]

    def assignment(self) -> TopicAssignment:
        """The contents of the topic's node."""
        return TopicAssignment(
            self.topic_id,
            {p.partition: p.replicas for p in self.partitions},
            {p.partition: p.adding for p in self.partitions if p.adding},
            {p.partition: p.removing for p in self.partitions if p.removing},
        )

    def with_partitions(
        self, partitions: Iterable[PartitionImage], node_version: int | None = None
    ) -> TopicImage:
        """Returns a copy with other partitions, and with the new version of its node if that was written."""
        return TopicImage(
            self.name,
            self.topic_id,
            tuple(partitions),
            self.config,
            self.node_version if node_version is None else node_version,
            self.has_config_node,
        )
