"""Creates, grows and configures the topics of the target as those of the source are.

:func:`plan_topics` decides, without I/O; :class:`TopicSync` reads both clusters and applies the plan. Topics
are never deleted, and partitions never removed, since the target has their records.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.client.admin import Admin
from tidemill.client.admin_types import ConfigResource, NewTopic, ResourceType, TopicListing
from tidemill.client.errors import ClientError, topic_exists
from tidemill.model.errors import ErrorCode
from tidemill.model.mirror_state import ACTIVE, MIRROR_STATE, NO_MIRROR
from tidemill.model.topic_names import name_problem
from tidemill.pipeline.mirror.mirror_loop_detection import KnownMarks
from tidemill.pipeline.mirror.target_names import TargetNames
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.sink_options import CONTROL_TOPIC

logger = logging.getLogger("tidemill.pipeline")

NOT_COPIED = frozenset(
    {
        MIRROR_STATE,
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)
"""Settings that depend on the brokers of a cluster or on their stores, or are the mirror's own."""
MIN_INSYNC = "min.insync.replicas"
CLEANUP_POLICY = "cleanup.policy"

OWN_TIMES = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "message.timestamp.after.max.ms": str((1 << 63) - 1),
    "message.timestamp.difference.max.ms": str((1 << 63) - 1),
}
"""Settings with which a new topic accepts and keeps the timestamps of ordinary records: not copied, as
MirrorMaker's ``config.properties.exclude``.
"""

TOPIC_SOURCE = "topic"
"""The source of a setting of the topic itself (:data:`tidemill.client.admin_types.SOURCES`)."""


class TopicState(NamedTuple):
    """A topic: its partitions, replicas of each, and the settings of its own."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    is_compacted: bool = False

    @property
    def is_mirror(self) -> bool:
        """Whether the topic is an active mirror."""
        return self.configs.get(MIRROR_STATE) == ACTIVE


class TopicChanges(NamedTuple):
    """The differences between the topics of a source and of the target.

    ``mirrored`` has the target's name of each topic that can be copied once the changes are made, ``refused``
    the reason for each other topic that the filter selects, and ``compacted`` the topics of the source whose
    records compaction removes.
    """

    mirrored: dict[str, str]
    refused: dict[str, str]
    created: dict[str, NewTopic]
    grown: dict[str, int]
    configured: dict[str, dict[str, str | None]]
    """New values by topic and key; None removes the setting."""
    compacted: set[str]


class TargetSettings(NamedTuple):
    """The properties of the target that its topics depend on."""

    keys: frozenset[str]
    """The topic settings that the target knows; empty: all."""
    replication_factor: int
    """Replicas of a new topic; -1: as at the source, and at most as many as there are brokers."""
    brokers: int
    same_offsets: bool
    """Whether new topics are mirrors with the offsets of the source."""
    follows_configs: bool = True
    """Whether the settings of topics that exist follow the source's."""


def plan_topics(
    source: Mapping[str, TopicState],
    target: Mapping[str, TopicState],
    wanted: TopicFilter,
    names: TargetNames,
    settings: TargetSettings,
    loops: Collection[str] = (),
) -> TopicChanges:
    """Compares the topics of both clusters. ``loops`` are topics of the source with records of the target."""
    changes = TopicChanges({}, {}, {}, {}, {}, set())
    for topic, state in sorted(source.items()):
        if not wanted.matches(topic):
            continue
        name = names.target_of(topic)
        existing = target.get(name)
        reason = _refusal(topic, name, existing, names, settings) or _loop_of_mirrors(topic, loops)
        if reason:
            changes.refused[topic] = reason
            continue
        changes.mirrored[topic] = name
        if state.is_compacted:
            changes.compacted.add(topic)
        replicas = _replicas(state, settings) if existing is None else existing.replication_factor
        configs = _copied_configs(state.configs, replicas, settings)
        if existing is None:
            own = {MIRROR_STATE: ACTIVE} if settings.same_offsets else _own_times(settings)
            changes.created[name] = NewTopic(name, state.partitions, replicas, {**configs, **own})
            continue
        if existing.partitions < state.partitions:
            changes.grown[name] = state.partitions
        if not settings.follows_configs:
            continue
        different = _different(configs, existing.configs, _not_copied(settings))
        if different:
            changes.configured[name] = different
    return changes


def _loop_of_mirrors(topic: str, loops: Collection[str]) -> str:
    if topic not in loops:
        return ""
    return (
        f"mirrors copy {topic} from the target to the source now, maybe over other clusters, so that its "
        "records would be copied again and again: deny the topic in one of the mirrors"
    )


def _refusal(
    topic: str, name: str, existing: TopicState | None, names: TargetNames, settings: TargetSettings
) -> str:
    if names.is_loop(topic):
        return f"{topic} came from the target cluster: mirroring it back would be a loop"
    if problem := name_problem(name):
        return problem
    if topic == CONTROL_TOPIC and not settings.same_offsets:
        return f"{topic} has the decisions of exactly-once sinks, which concern its own cluster only"
    if existing is None or not settings.same_offsets or existing.is_mirror:
        return ""
    state = existing.configs.get(MIRROR_STATE, NO_MIRROR)
    if state != NO_MIRROR:
        return f"the target is promoting {name} to an ordinary topic ({MIRROR_STATE}={state})"
    return (
        f"the target has a topic {name} that is not a mirror ({MIRROR_STATE} is not {ACTIVE}): it was "
        "promoted, or has records of its own. Delete it there, mirror with prefixes, or copy records with "
        "new offsets"
    )


def _replicas(state: TopicState, settings: TargetSettings) -> int:
    if settings.replication_factor > 0:
        return settings.replication_factor
    return min(state.replication_factor, settings.brokers)


def _copied_configs(configs: Mapping[str, str], replicas: int, settings: TargetSettings) -> dict[str, str]:
    """Returns the settings of a source's topic that its mirror has.

    More in-sync replicas than there are would refuse all records.
    """
    copied = {
        key: value
        for key, value in configs.items()
        if key not in _not_copied(settings) and (not settings.keys or key in settings.keys)
    }
    if MIN_INSYNC in copied:
        copied[MIN_INSYNC] = str(min(int(copied[MIN_INSYNC]), max(1, replicas)))
    return copied


def _not_copied(settings: TargetSettings) -> frozenset[str]:
    return NOT_COPIED if settings.same_offsets else NOT_COPIED.union(OWN_TIMES)


def _own_times(settings: TargetSettings) -> dict[str, str]:
    return {key: value for key, value in OWN_TIMES.items() if key in settings.keys}


def _different(
    wanted: Mapping[str, str], existing: Mapping[str, str], not_copied: frozenset[str]
) -> dict[str, str | None]:
    changed: dict[str, str | None] = {
        key: value for key, value in wanted.items() if existing.get(key) != value
    }
    changed |= {key: None for key in existing if key not in wanted and key not in not_copied}
    return changed


class TopicSync:
    """Applies the plan to a target. The admin clients are the caller's."""

    def __init__(
        self,
        source: Admin,
        target: Admin,
        wanted: TopicFilter,
        names: TargetNames,
        *,
        replication_factor: int = -1,
        same_offsets: bool = True,
        follows_configs: bool = True,
    ) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._names = names
        self._replication_factor = replication_factor
        self._same_offsets = same_offsets
        self._follows_configs = follows_configs
        # With the same names and offsets a topic in a circle exists in the target, and is seldom a mirror:
        # such a mirror copies what it can while the coordinator of the marks does not answer.
        self._marks = KnownMarks(source, target, must_wait=bool(names.prefix) or not same_offsets)
        self.selects_none = False
        """Whether the filter selected no topic of the source last."""
        self.loops: frozenset[str] = frozenset()
        """The topics of the source that mirrors of the target have written last, also over other clusters."""
        self._failures: dict[str, str] = {}
        """The topics that the target could not create or change in the last run. A topic is logged once."""

    def run(self) -> TopicChanges:
        """Makes the changes, and returns them. Raises ClientError.

        A topic that the target cannot create or change is refused, and the others are mirrored.
        """
        changes = self._plan()
        self._apply(changes)
        return changes

    def existing(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the target's name of each mirrored topic that exists, and why others are not mirrored.

        Changes nothing.
        """
        changes = self._plan()
        names = {topic: name for topic, name in changes.mirrored.items() if name not in changes.created}
        return names, changes.refused

    def mirrored(self) -> dict[str, str]:
        """Returns the target's name of each topic that is mirrored, also of those to be created."""
        return self._plan().mirrored

    def _plan(self) -> TopicChanges:
        source = read_topics(self._source, self._wanted)
        self.selects_none = not source
        names = [self._names.target_of(topic) for topic in source]
        target = read_topics_named(self._target, names)
        self.loops = frozenset(self._marks.topics()).intersection(source)
        return plan_topics(source, target, self._wanted, self._names, self._settings(), self.loops)

    def _settings(self) -> TargetSettings:
        brokers = self._target.describe_cluster().brokers
        return TargetSettings(
            topic_keys_of(self._target),
            self._replication_factor,
            len(brokers),
            self._same_offsets,
            self._follows_configs,
        )

    def _apply(self, changes: TopicChanges) -> None:
        failures: dict[str, ClientError] = {}
        if changes.created:
            for name, result in self._target.create_topics(changes.created.values()).items():
                if isinstance(result, ClientError) and not topic_exists(result):
                    failures[name] = result
        for name, partitions in changes.grown.items():
            try:
                self._target.create_partitions(name, partitions)
            except ClientError as problem:
                failures[name] = problem
        for name, configs in changes.configured.items():
            resource = ConfigResource(ResourceType.TOPIC, name)
            try:
                self._target.alter_configs(
                    resource,
                    {key: value for key, value in configs.items() if value is not None},
                    remove=[key for key, value in configs.items() if value is None],
                )
            except ClientError as problem:
                failures[name] = problem
        failed_topics: list[str] = []
        for topic, name in list(changes.mirrored.items()):
            failure = failures.get(name)
            if failure is None:
                continue
            if failure.retriable:
                raise failure
            failed_topics.append(topic)
            del changes.mirrored[topic]
            changes.refused[topic] = str(failure)
            if self._failures.get(topic) != str(failure):
                logger.warning("topic %s is not mirrored: %s", topic, failure)
        self._failures = {topic: changes.refused[topic] for topic in failed_topics}


def read_topics(admin: Admin, wanted: TopicFilter) -> dict[str, TopicState]:
    """Returns the topics that the filter selects, without internal ones."""
    return _read([topic for topic in admin.list_topics() if wanted.matches(topic.name)], admin)


def read_topics_named(admin: Admin, names: Iterable[str]) -> dict[str, TopicState]:
    """Returns the topics that exist among ``names``."""
    wanted = set(names)
    return _read([topic for topic in admin.list_topics() if topic.name in wanted], admin)


def _read(listed: Sequence[TopicListing], admin: Admin) -> dict[str, TopicState]:
    resources = {topic.name: ConfigResource(ResourceType.TOPIC, topic.name) for topic in listed}
    configs = admin.describe_configs_of(list(resources.values()))
    found: dict[str, TopicState] = {}
    for topic in listed:
        entries = configs[resources[topic.name]]
        if isinstance(entries, ClientError):
            if entries.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise entries
        own = {
            key: entry.value
            for key, entry in entries.items()
            if entry.source == TOPIC_SOURCE and entry.value is not None
        }
        policy = entries.get(CLEANUP_POLICY)
        is_compacted = policy is not None and "compact" in (policy.value or "")
        found[topic.name] = TopicState(topic.partitions, topic.replication_factor, own, is_compacted)
    return found


def topic_keys_of(admin: Admin) -> frozenset[str]:
    """Returns the topic settings that a cluster knows; empty if an old one has no topic yet."""
    for topic in admin.list_topics(include_internal=True):
        return frozenset(admin.topic_configs(topic.name))
    # Brokers return the settings of a topic that would be created (KIP-525).
    name = f"mirror-{uuid.uuid4().hex}"
    result = admin.create_topics([NewTopic(name, 1, 1, {})], validate_only=True)[name]
    return frozenset() if isinstance(result, ClientError) else frozenset(result.configs)
