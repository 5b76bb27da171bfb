"""Imports a data directory of Apache Kafka: plans the content of the coordination store, and writes it.

The partition directories do not change: Tidemill uses Kafka's files. Groups continue with
``__consumer_offsets``, transactions with ``__transaction_state``. The import creates the store with the
metadata that Kafka kept elsewhere: topics with their ids, partitions and settings, broker settings, the next
producer id, the level of ``transaction.version``. Every partition has the one broker as its only replica,
which leads it in a later epoch than any before.

Metadata or data that would be lost is a problem, and aborts the import unless a choice of :class:`Choices`
allows the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidemill.coordination.coordination_store import Create
from tidemill.coordination.embedded_store import FILE_NAME as STORE_FILE
from tidemill.coordination.embedded_store import LAST_ID_SUFFIX, EmbeddedStore
from tidemill.coordination.topic_image import OFFSETS_TOPIC, TRANSACTION_TOPIC
from tidemill.interchange.cluster import ClusterMetadata, PartitionEntry, TopicEntry
from tidemill.interchange.directories import BrokerDirectories, PartitionDirectory, missing_links
from tidemill.interchange.zookeeper_nodes import to_nodes
from tidemill.model.configs import (
    BrokerConfig,
    check_broker_settings,
    check_group_settings,
    check_topic_settings,
    while_unreadable,
)
from tidemill.model.errors import ConfigError
from tidemill.model.ids import encode_id
from tidemill.model.system_interfaces import Files
from tidemill.model.types import NO_BROKER, ZERO_ID, TopicPartition

ALONE: Final = 1
LISTED_MAX: Final = 5
"""The maximum number of items that a message lists."""
KEPT_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic with unknown settings: none of its records is deleted before they are set."""
INTERNAL: Final = {
    OFFSETS_TOPIC: {"cleanup.policy": "compact", "compression.type": "producer"},
    TRANSACTION_TOPIC: {"cleanup.policy": "compact", "compression.type": "uncompressed"},
}
CONTENTS: Final = {OFFSETS_TOPIC: "committed offsets", TRANSACTION_TOPIC: "the state of transactions"}
OMITTED: Final = {
    OFFSETS_TOPIC: (
        "the committed offsets of all groups are omitted with it: the groups start without offsets"
    ),
    TRANSACTION_TOPIC: (
        "the state of all transactions is omitted with it: no coordinator ends those that are open; "
        "'tidemill transaction find-hanging' names them after the start, and 'transaction abort' ends them"
    ),
}
"""What the loss of a topic means."""


class Choices(NamedTuple):
    """The losses that an import accepts."""

    missing_as_empty: bool = False
    """A partition without a directory is created empty."""
    only_whole: bool = False
    """Topics with partitions on other brokers are omitted."""


class Import(NamedTuple):
    """The metadata to write, and the problems and notes to show before the import."""

    metadata: ClusterMetadata
    node_id: int
    problems: list[str]
    notes: list[str]
    not_imported: list[str]
    """Partition directories of topics that are not imported."""


def broker_id_of(found: BrokerDirectories) -> int:
    """Returns the id of the broker of these directories; the id of a single broker if it is unknown."""
    return found.node_id if found.node_id >= 0 else ALONE


def metadata_of_directories(found: BrokerDirectories) -> ClusterMetadata:
    """Returns the metadata that the directories contain: topics, their ids and partition numbers."""
    metadata = ClusterMetadata("the directories of partitions", found.cluster_id)
    node_id = broker_id_of(found)
    for key in sorted(found.partitions):
        partition = found.partitions[key]
        topic = metadata.topics.setdefault(key.topic, TopicEntry(key.topic, partition.topic_id))
        if topic.topic_id == ZERO_ID:
            topic.topic_id = partition.topic_id
        topic.partitions[key.partition] = PartitionEntry((node_id,))
        topic.config = dict(INTERNAL.get(key.topic, KEPT_FOR_EVER))
    if metadata.topics:
        metadata.notes.append(
            "no records of the topics are deleted before their settings are set: they have retention.ms=-1 "
            "and retention.bytes=-1 now"
        )
    return metadata


def plan(metadata: ClusterMetadata, found: BrokerDirectories, choices: Choices) -> Import:
    """Plans an import from the cluster's metadata and the content of the directories."""
    node_id = broker_id_of(found)
    imported = ClusterMetadata(metadata.source, metadata.cluster_id or found.cluster_id)
    imported.next_producer_id = metadata.next_producer_id
    imported.transaction_version = metadata.transaction_version
    result = Import(imported, node_id, [], list(metadata.notes), [])
    if metadata.cluster_id and found.cluster_id and metadata.cluster_id != found.cluster_id:
        result.problems.append(
            f"{found.paths[0]} belongs to cluster {found.cluster_id}, {metadata.source} to cluster "
            f"{metadata.cluster_id}: name directories and metadata of one cluster"
        )
        return result
    for topic in metadata.topics.values():
        _import_topic(topic, found, choices, result)
    _import_broker_configs(metadata, result)
    _import_group_configs(metadata, result)
    _import_group_offsets(metadata, result)
    known = {
        TopicPartition(name, number)
        for name in imported.topics
        for number in imported.topics[name].partitions
    }
    problems, notes = missing_links(found, known)
    result.problems.extend(problems)
    result.notes.extend(notes)
    located = sorted(found.partitions.items())
    for name, content in CONTENTS.items():
        paths = [partition.path for key, partition in located if key.topic == name]
        if paths and name not in metadata.topics:
            result.problems.append(
                f"{paths[0]} holds {content}, and {metadata.source} has no topic {name}: it is older than "
                "the directories, or of another cluster; name metadata of this cluster, import the topics of "
                f"the directories (--without-settings), or move these directories away to omit {content}"
            )
    result.not_imported.extend(partition.path for key, partition in located if key not in known)
    for kind, count in sorted(metadata.omitted.items()):
        result.notes.append(f"{count} {kind} are omitted: Tidemill does not support them yet")
    for directory in found.directories:
        if directory.has_store:
            result.problems.append(
                f"{directory.path} already holds the state of a Tidemill cluster: start a broker on it, or "
                f"move its {STORE_FILE} away to import the topics from Kafka"
            )
        result.notes.extend(directory.damage)
        result.problems.extend(
            f"{directory.path}/{name} was being moved to another directory: start its broker once "
            "more to complete the move"
            for name in directory.moving
        )
    return result


def _import_topic(topic: TopicEntry, found: BrokerDirectories, choices: Choices, result: Import) -> None:
    entry = TopicEntry(topic.name, topic.topic_id)
    missing: list[int] = []
    elsewhere: list[int] = []
    for number, assigned in sorted(topic.partitions.items()):
        located = found.partitions.get(TopicPartition(topic.name, number))
        if result.node_id not in assigned.replicas:
            elsewhere.append(number)
            continue
        if located is None:
            missing.append(number)
        else:
            result.problems.extend(_mismatches(topic, number, assigned, located, result.node_id))
            entry.topic_id = located.topic_id if entry.topic_id == ZERO_ID else entry.topic_id
        epoch = max(assigned.leader_epoch, located.last_epoch if located is not None else 0, 0)
        entry.partitions[number] = PartitionEntry((result.node_id,), NO_BROKER, epoch, (result.node_id,))
    if elsewhere and choices.only_whole:
        result.notes.append(f"topic {topic.name} is omitted: {_partitions(elsewhere)} on other brokers")
        if topic.name in OMITTED:
            result.notes.append(OMITTED[topic.name])
        return
    if elsewhere:
        result.problems.append(
            f"topic {topic.name}: {_partitions(elsewhere)} on other brokers than {result.node_id}: move "
            "all to one broker first (kafka-reassign-partitions), or omit such topics with --only-whole"
        )
    elif sorted(topic.partitions) != list(range(len(topic.partitions))):
        result.problems.append(
            f"topic {topic.name} has the partitions {_join_names(sorted(topic.partitions))}, not all from "
            "0 on: name every directory of log.dirs"
        )
    if missing and choices.missing_as_empty:
        result.notes.append(f"topic {topic.name}: {_partitions(missing)} missing, and empty from now on")
    elif missing:
        result.problems.append(
            f"topic {topic.name}: {_partitions(missing)} in none of the directories: name every directory of "
            "log.dirs, or create empty ones with --missing-as-empty"
        )
    entry.config = _settings(topic, result)
    result.metadata.topics[topic.name] = entry


def _mismatches(
    topic: TopicEntry, number: int, assigned: PartitionEntry, located: PartitionDirectory, node_id: int
) -> list[str]:
    """Returns the problems of a directory that may not hold the partition's latest state."""
    if ZERO_ID not in (located.topic_id, topic.topic_id) and located.topic_id != topic.topic_id:
        return [
            f"{located.path} belongs to a topic with id {encode_id(located.topic_id)}, "
            f"the cluster's {topic.name} has id {encode_id(topic.topic_id)}: it belonged to a "
            "former topic of that name; move it away"
        ]
    if assigned.isr and node_id not in assigned.isr:
        return [
            f"partition {topic.name}-{number} was not in sync on broker {node_id}: import the directories of "
            f"broker {assigned.isr[0]}, which has all its records"
        ]
    return []


def _settings(topic: TopicEntry, result: Import) -> dict[str, str]:
    """Returns the supported settings of a topic; replaces others so that no data is deleted."""
    kept: dict[str, str] = {}
    careful: dict[str, str] = {}
    for name, value in sorted(topic.config.items()):
        try:
            check_topic_settings({name: value})
        except ConfigError as problem:
            result.notes.append(f"topic {topic.name}: {name}={value} is omitted ({problem})")
            careful |= while_unreadable(name)
        else:
            kept[name] = value
    if kept.get("remote.storage.enable") == "true":
        result.notes.append(
            f"topic {topic.name}: records that Kafka moved to remote storage are not read; only the records "
            "in its directories are imported"
        )
    return kept | careful


def _import_broker_configs(metadata: ClusterMetadata, result: Import) -> None:
    for name, config in sorted(metadata.broker_configs.items()):
        if name not in ("", str(result.node_id)):
            result.notes.append(f"settings of broker {name} are omitted: this is broker {result.node_id}")
            continue
        whose = f"broker {name}" if name else "all brokers"
        check = partial(check_broker_settings, all_brokers=not name)
        kept = _supported_settings(config, whose, check, result.notes)
        if kept:
            result.metadata.broker_configs[name] = kept


def _import_group_configs(metadata: ClusterMetadata, result: Import) -> None:
    bounds = BrokerConfig()

    def check(settings: Mapping[str, str]) -> None:
        check_group_settings(settings, settings, bounds)

    for name, config in sorted(metadata.group_configs.items()):
        kept = _supported_settings(config, f"group {name}", check, result.notes)
        if kept:
            result.metadata.group_configs[name] = kept


def _supported_settings(
    config: Mapping[str, str], whose: str, check: Callable[[Mapping[str, str]], None], notes: list[str]
) -> dict[str, str]:
    """Returns the settings that ``check`` accepts; adds a note for each of the others."""
    kept = {}
    for name, value in sorted(config.items()):
        try:
            check({name: value})
        except ConfigError as problem:
            notes.append(f"the setting {name} of {whose} is omitted ({problem})")
        else:
            kept[name] = value
    return kept


def _import_group_offsets(metadata: ClusterMetadata, result: Import) -> None:
    topics, imported = result.metadata.topics, result.metadata.group_offsets
    without_topic: set[str] = set()
    for owner, offset in metadata.group_offsets.items():
        topic = topics.get(owner.partition.topic)
        if topic is None or owner.partition.partition not in topic.partitions:
            without_topic.add(f"{owner.partition.topic} of group {owner.group}")
        else:
            imported[owner] = offset
    if imported:
        groups = _join_names(sorted({owner.group for owner in imported}))
        result.notes.append(
            f"{len(imported)} offsets that groups kept in ZooKeeper are imported, for OffsetFetch of "
            f"version 0 ({groups}); consumers that read ZooKeeper themselves do not find them"
        )
    if without_topic:
        result.notes.append(
            "offsets of topics or partitions that are not imported are omitted: "
            f"{_join_names(sorted(without_topic))}"
        )


def _partitions(numbers: list[int]) -> str:
    return f"partition {numbers[0]} is" if len(numbers) == 1 else f"partitions {_join_names(numbers)} are"


def _join_names(items: Sequence[object]) -> str:
    more = f" and {len(items) - LISTED_MAX} more" if len(items) > LISTED_MAX else ""
    return ", ".join(map(str, items[:LISTED_MAX])) + more


async def write_store(files: Files, directory: str, metadata: ClusterMetadata) -> None:
    """Creates the store in ``directory``, with all of the metadata or not at all. Raises StoreError."""
    path = f"{directory}/{STORE_FILE}.new"
    for left in (path, f"{path}-wal", f"{path}-journal"):
        if files.exists(left):
            files.remove(left)
    store = EmbeddedStore.open(path)
    try:
        await store.transact([Create(node, data) for node, data in to_nodes(metadata).items()])
    finally:
        await store.close()
    # First, as the number of a former store would reject this one.
    files.rename(f"{path}{LAST_ID_SUFFIX}", f"{directory}/{STORE_FILE}{LAST_ID_SUFFIX}")
    files.rename(path, f"{directory}/{STORE_FILE}")
    files.sync_directory(directory)
