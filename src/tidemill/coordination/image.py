"""The cluster as the coordination store tells it: brokers, topics, partitions, settings; and how it changed.

Images are never changed: a change makes a new one, and shares with the old one what stayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicAssignment,
)
from tidemill.coordination.topic_index import TopicIndex, Traits
from tidemill.model.errors import KafkaError
from tidemill.model.types import ZERO_ID

OFFSETS_TOPIC = "__consumer_offsets"
"""Keeps the positions of groups."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
"""Topics that the brokers keep for themselves."""

NO_BROKER = -1

Entity = tuple[str, str]
"""Kind and name: ("topics", "t"), ("ids", "1") of a registration, ("config/brokers", "1")."""
TOPIC, REGISTRATION, SETTINGS = "topics", "ids", "config/brokers"
GROUP_SETTINGS = "config/groups"


class PartitionImage:
    """Where a partition's replicas are, and who leads it (-1: nobody can).

    While the partition moves to other brokers, ``replicas`` are those that it shall have, in their order,
    and after them those that it only had before: ``adding`` are new, ``removing`` go once the new ones are
    in sync.
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
        """Brokers that live, but cannot read or write their replica. The store does not tell.

        Of replicas only: one that is moved away, and back after a repair, would be offline for good."""
        self.elr = elr
        self.last_known_leader = last_known_leader
        self.lost_replicas = lost_replicas
        """These three as in :class:`~tidemill.coordination.nodes.PartitionState`."""

    def __repr__(self) -> str:
        moving = f", adding={self.adding}, removing={self.removing}" if self.is_moving else ""
        elr = f", elr={list(self.elr)}" if self.elr else ""
        return (
            f"PartitionImage({self.partition}, leader={self.leader}, leader_epoch={self.leader_epoch}, "
            f"replicas={self.replicas}, isr={self.isr}{elr}{moving})"
        )

    @property
    def is_moving(self) -> bool:
        """Whether the partition moves to other brokers."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> list[int]:
        """The replicas that the partition shall have; those that it has, unless it moves."""
        return [broker for broker in self.replicas if broker not in self.removing]

    @property
    def origin(self) -> list[int]:
        """The replicas that the partition had before it began to move, the order of some of them lost."""
        return [broker for broker in self.replicas if broker not in self.adding]

    def min_insync(self, min_insync_replicas: int) -> int:
        """How many replicas in sync a commit takes: ``min.insync.replicas``, or all if there are fewer.

        Replicas that a move brings in do not count: a topic of one replica that gets two more goes on being
        written while they catch up.
        """
        return min(min_insync_replicas, len(self.replicas) - len(self.adding))

    def replaced(self, **changes: Any) -> PartitionImage:
        """The same with other values of these attributes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return PartitionImage(**{**values, **changes})

    def with_offline(self, offline: frozenset[int]) -> PartitionImage:
        """The same state with other replicas that cannot be read or written."""
        return self.replaced(offline=offline)


class TopicImage:
    """A topic: its id, its partitions (the one numbered n at place n), and the settings of its own."""

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
        """Where somebody has noted them; see :func:`~tidemill.coordination.topic_index.noting_traits`."""

    def __repr__(self) -> str:
        return f"TopicImage({self.name!r}, {len(self.partitions)} partitions)"

    def partition(self, number: int) -> PartitionImage | None:
        """The partition of that number, or None."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    def assignment(self) -> TopicAssignment:
        """What the topic's node holds."""
        return TopicAssignment(
            self.topic_id,
            {p.partition: p.replicas for p in self.partitions},
            {p.partition: p.adding for p in self.partitions if p.adding},
            {p.partition: p.removing for p in self.partitions if p.removing},
        )

    def with_partitions(
        self, partitions: Iterable[PartitionImage], node_version: int | None = None
    ) -> TopicImage:
        """The same topic with other partitions, and with another version of its node if that was written."""
        return TopicImage(
            self.name,
            self.topic_id,
            tuple(partitions),
            self.config,
            self.node_version if node_version is None else node_version,
            self.has_config_node,
        )


class BrokerImage:
    """A living broker: its endpoints by listener name, its rack, and its epoch."""

    __slots__ = ("broker_id", "endpoints", "epoch", "lost", "rack")

    def __init__(self, registration: BrokerRegistration, epoch: int) -> None:
        self.broker_id = registration.broker_id
        self.endpoints: dict[str, Endpoint] = {e.listener: e for e in registration.endpoints}
        self.rack = registration.rack
        self.epoch = epoch
        self.lost = registration.lost
        """Its replicas that may hold less than they acknowledged, until the controller has heeded that."""

    def __repr__(self) -> str:
        return f"BrokerImage({self.broker_id}, {list(self.endpoints)})"


class ClusterImage:
    """Everything that a broker knows of its cluster, at one moment."""

    __slots__ = (
        "broker_configs",
        "brokers",
        "cluster_id",
        "controller_epoch",
        "controller_id",
        "deleting",
        "group_configs",
        "topic_index",
        "topics",
        "topics_by_id",
        "unreadable",
    )

    def __init__(
        self,
        cluster_id: str = "",
        controller_id: int = NO_BROKER,
        controller_epoch: int = 0,
        brokers: Mapping[int, BrokerImage] | None = None,
        topics: Mapping[str, TopicImage] | TopicIndex | None = None,
        broker_configs: Mapping[str, Mapping[str, str]] | None = None,
        deleting: Mapping[str, TopicImage] | None = None,
        unreadable: Mapping[Entity, NodeFormatError] | None = None,
        group_configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers: Mapping[int, BrokerImage] = brokers if brokers is not None else {}
        """Living brokers by id, lowest first."""
        index = topics if isinstance(topics, TopicIndex) else TopicIndex(topics if topics is not None else {})
        self.topic_index = index
        self.topics: Mapping[str, TopicImage] = index.by_name
        self.topics_by_id: Mapping[bytes, TopicImage] = index.by_id
        self.broker_configs: Mapping[str, Mapping[str, str]] = broker_configs or {}
        """What was set at run time: by broker id (as text), and for all under ``<default>``."""
        self.group_configs: Mapping[str, Mapping[str, str]] = group_configs or {}
        """What was set for groups, by group: of those for which something is set."""
        self.deleting: Mapping[str, TopicImage] = deleting or {}
        """Topics whose deletion has begun; nobody sees them any more."""
        self.unreadable: Mapping[Entity, NodeFormatError] = unreadable or {}
        """What the store has, and cannot be read, by kind (as in its path) and name: a topic is set aside
        as long as one of its nodes is."""

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """What was set at run time for this broker alone."""
        return self.broker_configs.get(str(broker_id), {})

    def default_broker_config(self) -> Mapping[str, str]:
        """What was set at run time for all brokers."""
        return self.broker_configs.get(DEFAULT_ENTITY, {})

    def with_cluster(
        self, cluster_id: str, controller_id: int, controller_epoch: int, brokers: Mapping[int, BrokerImage]
    ) -> ClusterImage:
        """The same topics and settings with another controller or other brokers."""
        return self._changed(cluster_id, controller_id, controller_epoch, brokers)

    def with_unreadable(self, kind: str, found: Mapping[str, NodeFormatError]) -> ClusterImage:
        """The same with other entities of that kind that cannot be read."""
        others = {entity: problem for entity, problem in self.unreadable.items() if entity[0] != kind}
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            unreadable={**others, **{(kind, name): problem for name, problem in found.items()}},
        )

    def unreadable_of(self, kind: str) -> dict[str, NodeFormatError]:
        """What is wrong with entities of that kind, by name."""
        return {name: problem for (of, name), problem in self.unreadable.items() if of == kind}

    def with_brokers(self, brokers: Mapping[int, BrokerImage]) -> ClusterImage:
        """The same with other living brokers."""
        return self._changed(self.cluster_id, self.controller_id, self.controller_epoch, brokers)

    def with_topics(
        self,
        changed: Iterable[TopicImage] = (),
        removed: Iterable[str] = (),
        deleting: Mapping[str, TopicImage] | None = None,
    ) -> ClusterImage:
        """The same with topics added or replaced, and others gone."""
        topics = self.topic_index.with_changes(changed, removed)
        unreadable = self.unreadable
        if unreadable:
            unreadable = {
                one: why for one, why in unreadable.items() if one[0] != TOPIC or one[1] not in topics.by_name
            }
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            topics,
            deleting,
            unreadable=unreadable,
        )

    def with_offline_of(self, before: ClusterImage) -> ClusterImage:
        """The same; of topics that ``before`` has as well, with the replicas that cannot be read there.

        A topic without an id is the one of ``before``: somebody else wrote its node, and left the id out.
        """
        changed = []
        for name, known in before.topics.items():
            topic = self.topics.get(name)
            if (
                topic is None
                or topic.topic_id not in (known.topic_id, ZERO_ID)
                or not any(p.offline for p in known.partitions)
            ):
                continue
            offline = {p.partition: p.offline for p in known.partitions if p.offline}
            changed.append(
                topic.with_partitions(
                    p.with_offline(offline[p.partition]) if p.partition in offline else p
                    for p in topic.partitions
                )
            )
        return self.with_topics(changed) if changed else self

    def with_broker_config(self, name: str, config: Mapping[str, str]) -> ClusterImage:
        """The same with other run-time settings of one broker, or of all."""
        configs = {**self.broker_configs, name: config}
        return self._changed(
            self.cluster_id, self.controller_id, self.controller_epoch, self.brokers, configs=configs
        )

    def group_config(self, group: str) -> Mapping[str, str]:
        """What was set for this group."""
        return self.group_configs.get(group, {})

    def with_group_config(self, group: str, config: Mapping[str, str]) -> ClusterImage:
        """The same with other settings of one group."""
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            groups=_with_group(self.group_configs, group, config),
        )

    def other_settings(self, settings: Mapping[Entity, Mapping[str, str]]) -> list[Entity]:
        """Those of ``settings``, by kind and name, that :meth:`with_settings` would change."""
        found = []
        for (kind, name), config in settings.items():
            topic = self.topics.get(name) if kind == "topics" else None
            if topic is not None:
                is_other = dict(topic.config) != dict(config)
            elif kind == "groups":
                is_other = (
                    dict(self.group_config(name)) != dict(config) or (GROUP_SETTINGS, name) in self.unreadable
                )
            else:
                is_other = kind == "brokers" and (
                    dict(self.broker_configs.get(name, {})) != dict(config)
                    or (SETTINGS, name) in self.unreadable
                )
            if is_other:
                found.append((kind, name))
        return found

    def with_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> ClusterImage:
        """The same with other settings, by kind and name. Itself when none is other."""
        changed = []
        brokers = dict(self.broker_configs)
        groups = self.group_configs
        for (kind, name), config in settings.items():
            topic = self.topics.get(name) if kind == "topics" else None
            if topic is not None and dict(topic.config) != dict(config):
                changed.append(
                    TopicImage(
                        name,
                        topic.topic_id,
                        topic.partitions,
                        config,
                        topic.node_version,
                        topic.has_config_node or bool(config),
                    )
                )
            elif kind == "brokers" and dict(brokers.get(name, {})) != dict(config):
                brokers[name] = config
            elif kind == "groups" and dict(self.group_config(name)) != dict(config):
                groups = _with_group(groups, name, config)
        still = self.unreadable
        read = {(f"config/{kind}", name) for kind, name in settings if kind != "topics"}
        if read & still.keys():
            still = {entity: problem for entity, problem in still.items() if entity not in read}
        if (
            not changed
            and brokers == dict(self.broker_configs)
            and groups is self.group_configs
            and still is self.unreadable
        ):
            return self
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            self.topic_index.with_changes(changed) if changed else None,
            configs=brokers,
            unreadable=still,
            groups=groups,
        )

    def _changed(
        self,
        cluster_id: str,
        controller_id: int,
        controller_epoch: int,
        brokers: Mapping[int, BrokerImage],
        topics: TopicIndex | None = None,
        deleting: Mapping[str, TopicImage] | None = None,
        configs: Mapping[str, Mapping[str, str]] | None = None,
        unreadable: Mapping[Entity, NodeFormatError] | None = None,
        groups: Mapping[str, Mapping[str, str]] | None = None,
    ) -> ClusterImage:
        return ClusterImage(
            cluster_id,
            controller_id,
            controller_epoch,
            dict(sorted(brokers.items())),
            self.topic_index if topics is None else topics,
            self.broker_configs if configs is None else configs,
            self.deleting if deleting is None else deleting,
            self.unreadable if unreadable is None else unreadable,
            self.group_configs if groups is None else groups,
        )


def _with_group(
    groups: Mapping[str, Mapping[str, str]], name: str, config: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    changed = {group: settings for group, settings in groups.items() if group != name}
    if config:
        changed[name] = config
    return changed


class Delta:
    """How one image differs from the one before it.

    Whoever acts on it (making logs, say) and cannot, tells so with :meth:`fail`; the client that asked for
    the change gets that error.
    """

    __slots__ = (
        "before",
        "broker_configs_changed",
        "changed",
        "created",
        "deleted",
        "failures",
        "image",
        "others",
        "reconfigured",
    )

    def __init__(
        self,
        before: ClusterImage,
        image: ClusterImage,
        *,
        created: Iterable[TopicImage] = (),
        changed: Iterable[tuple[TopicImage, TopicImage]] = (),
        reconfigured: Iterable[tuple[TopicImage, TopicImage]] = (),
        deleted: Iterable[TopicImage] = (),
        broker_configs_changed: bool = False,
    ) -> None:
        self.before = before
        self.image = image
        self.created = tuple(created)
        self.changed = tuple(changed)
        """Topics with other partitions than before (more of them, or another state): old, new."""
        self.reconfigured = tuple(reconfigured)
        """Topics with other settings of their own: old, new."""
        self.deleted = tuple(deleted)
        self.broker_configs_changed = broker_configs_changed
        self.failures: dict[str, KafkaError] = {}
        self.others: list[asyncio.Future[None]] = []
        """One for each other broker that was told of the change: done once it has carried it out."""

    @classmethod
    def between(cls, before: ClusterImage, image: ClusterImage) -> Delta:
        """Everything in which two images differ. Topics that share their object are not looked into."""
        created, replaced, gone = [], [], []
        changed, reconfigured = [], []
        for name in image.topic_index.may_differ_from(before.topic_index):
            old, topic = before.topics.get(name), image.topics.get(name)
            if old is topic:
                continue
            if topic is None:
                gone += [old] if old is not None else []
                continue
            if old is None or old.topic_id != topic.topic_id:
                created.append(topic)
                if old is not None:
                    replaced.append(old)
                continue
            if old.partitions is not topic.partitions:
                changed.append((old, topic))
            if old.config != topic.config:
                reconfigured.append((old, topic))
        return cls(
            before,
            image,
            created=created,
            changed=changed,
            reconfigured=reconfigured,
            deleted=[*replaced, *gone],
            broker_configs_changed=before.broker_configs != image.broker_configs,
        )

    def fail(self, topic: str, error: KafkaError) -> None:
        """Notes that what the change asks for ``topic`` could not be done here."""
        self.failures.setdefault(topic, error)


def partition_state(partition: PartitionImage, controller_epoch: int) -> PartitionState:
    """What the partition's state node holds when a controller of that epoch writes it."""
    return PartitionState(
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        controller_epoch,
        tuple(partition.elr),
        partition.last_known_leader,
        tuple(partition.lost_replicas),
    )
