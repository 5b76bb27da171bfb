"""The cluster state in the coordination store: brokers, topics, partitions and settings; and its changes.

Images are immutable: a change creates a new image, which shares the unchanged parts with the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    LeaderIsrAndControllerEpoch,
)
from tidemill.coordination.topic_image import PartitionImage, TopicImage, TopicKey
from tidemill.coordination.topic_index import TopicIndex
from tidemill.model.types import NO_BROKER, ZERO_ID

Entity = tuple[str, str]
"""The entity of an unreadable node, as kind and name: ("topics", "t") for the nodes of a topic and of its
settings, ("ids", "1") for a registration, ("config/brokers", "1") for the settings of a broker."""
TOPIC, REGISTRATION, SETTINGS = "topics", "ids", "config/brokers"
GROUP_SETTINGS = "config/groups"


def settings_entity(resource: ConfigResource) -> Entity:
    """Returns the entity of the settings of a broker or a group, in :attr:`ClusterImage.unreadable`."""
    return f"config/{resource.kind}", resource.name


class BrokerImage:
    """A live broker: its endpoints by listener name, its rack, and its epoch."""

    __slots__ = ("broker_id", "endpoints", "epoch", "lost", "rack")

    def __init__(self, registration: BrokerRegistration, epoch: int) -> None:
        self.broker_id = registration.broker_id
        self.endpoints: dict[str, Endpoint] = {e.listener: e for e in registration.endpoints}
        self.rack = registration.rack
        self.epoch = epoch
        self.lost = registration.lost
        """Its replicas that may have lost acknowledged records, until the controller handled that."""

    def __repr__(self) -> str:
        return f"BrokerImage({self.broker_id}, {list(self.endpoints)})"


def registered_epoch(brokers: Mapping[int, BrokerImage], broker_id: int) -> int | None:
    """Returns the epoch of the broker's registration, or None without a registration."""
    known = brokers.get(broker_id)
    return known.epoch if known is not None else None


class ClusterImage:
    """The state of the cluster, as a broker knows it, at one moment."""

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
        """Live brokers by id, lowest first."""
        index = topics if isinstance(topics, TopicIndex) else TopicIndex(topics if topics is not None else {})
        self.topic_index = index
        self.topics: Mapping[str, TopicImage] = index.by_name
        self.topics_by_id: Mapping[bytes, TopicImage] = index.by_id
        self.broker_configs: Mapping[str, Mapping[str, str]] = broker_configs or {}
        """Dynamic settings by broker id (as text); the defaults of all brokers under ``DEFAULT_ENTITY``."""
        self.group_configs: Mapping[str, Mapping[str, str]] = group_configs or {}
        """Dynamic settings by group, for groups with at least one setting."""
        self.deleting: Mapping[str, TopicImage] = deleting or {}
        """Topics whose deletion has begun; they are hidden from clients."""
        self.unreadable: Mapping[Entity, NodeFormatError] = unreadable or {}
        """Entities with unreadable nodes, by kind (as in the path) and name: a topic is left out of the image
        while one of its nodes is unreadable."""

    def topic_of(self, key: TopicKey) -> TopicImage | None:
        """Returns the topic with this name and id, or None."""
        known = self.topics.get(key[0])
        return known if known is not None and known.topic_id == key[1] else None

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic settings of this broker alone."""
        return self.broker_configs.get(str(broker_id), {})

    def default_broker_config(self) -> Mapping[str, str]:
        """The dynamic settings of all brokers."""
        return self.broker_configs.get(DEFAULT_ENTITY, {})

    def with_cluster(
        self, cluster_id: str, controller_id: int, controller_epoch: int, brokers: Mapping[int, BrokerImage]
    ) -> ClusterImage:
        """Returns a copy with another controller or other brokers."""
        return self._changed(cluster_id, controller_id, controller_epoch, brokers)

    def with_unreadable(self, kind: str, found: Mapping[str, NodeFormatError]) -> ClusterImage:
        """Returns a copy with other unreadable entities of that kind."""
        others = {entity: problem for entity, problem in self.unreadable.items() if entity[0] != kind}
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            unreadable={**others, **{(kind, name): problem for name, problem in found.items()}},
        )

    def unreadable_of(self, kind: str) -> dict[str, NodeFormatError]:
        """The errors of unreadable entities of that kind, by name."""
        return {name: problem for (of, name), problem in self.unreadable.items() if of == kind}

    def with_brokers(self, brokers: Mapping[int, BrokerImage]) -> ClusterImage:
        """Returns a copy with other live brokers."""
        return self._changed(self.cluster_id, self.controller_id, self.controller_epoch, brokers)

    def with_topics(
        self,
        changed: Iterable[TopicImage] = (),
        removed: Iterable[str] = (),
        deleting: Mapping[str, TopicImage] | None = None,
    ) -> ClusterImage:
        """Returns a copy with topics added, replaced or removed."""
        topics = self.topic_index.with_changes(changed, removed)
        unreadable = self.unreadable
        if unreadable:
            unreadable = {
                entity: why
                for entity, why in unreadable.items()
                if entity[0] != TOPIC or entity[1] not in topics.by_name
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
        """Returns a copy that takes over the offline replicas of the topics that are also in ``before``.

        A topic without an id counts as the topic in ``before``: another program wrote its node without the
        id.
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
        """Returns a copy with other dynamic settings of one broker, or of all."""
        configs = {**self.broker_configs, name: config}
        return self._changed(
            self.cluster_id, self.controller_id, self.controller_epoch, self.brokers, configs=configs
        )

    def group_config(self, group: str) -> Mapping[str, str]:
        """The dynamic settings of this group."""
        return self.group_configs.get(group, {})

    def with_group_config(self, group: str, config: Mapping[str, str]) -> ClusterImage:
        """Returns a copy with other settings of one group."""
        return self._changed(
            self.cluster_id,
            self.controller_id,
            self.controller_epoch,
            self.brokers,
            groups=_with_group(self.group_configs, group, config),
        )

    def other_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> list[ConfigResource]:
        """Returns the resources of ``settings`` that :meth:`with_settings` would change."""
        held = {"brokers": self.broker_configs, "groups": self.group_configs}
        found = []
        for resource, config in settings.items():
            kind, name = resource
            if kind == "topics":
                topic = self.topics.get(name)
                is_other = topic is not None and dict(topic.config) != dict(config)
            else:
                is_other = kind in held and (
                    dict(held[kind].get(name, {})) != dict(config)
                    or settings_entity(resource) in self.unreadable
                )
            if is_other:
                found.append(resource)
        return found

    def with_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> ClusterImage:
        """Returns a copy with other settings; the same image when none differs."""
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
        read = {settings_entity(resource) for resource in settings if resource.kind != "topics"}
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


class Delta(NamedTuple):
    """The differences between an image and its predecessor."""

    before: ClusterImage
    image: ClusterImage
    created: Sequence[TopicImage] = ()
    changed: Sequence[tuple[TopicImage, TopicImage]] = ()
    """Topics whose partitions differ (in number or state): old, new."""
    reconfigured: Sequence[tuple[TopicImage, TopicImage]] = ()
    """Topics whose own settings differ: old, new."""
    deleted: Sequence[TopicImage] = ()
    broker_configs_changed: bool = False

    @classmethod
    def between(cls, before: ClusterImage, image: ClusterImage) -> Delta:
        """Computes the difference between two images. Topics that share an object are skipped."""
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
            tuple(created),
            tuple(changed),
            tuple(reconfigured),
            (*replaced, *gone),
            broker_configs_changed=before.broker_configs != image.broker_configs,
        )


def partition_state(partition: PartitionImage, controller_epoch: int) -> LeaderIsrAndControllerEpoch:
    """The contents of the partition's state node, as written by a controller of that epoch."""
    return LeaderIsrAndControllerEpoch(
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        controller_epoch,
        tuple(partition.elr),
        partition.last_known_leader,
        tuple(partition.lost_replicas),
    )
