"""Takes over a data directory of Apache Kafka: decides what the store is to hold, and writes it.

Nothing in a partition's directory changes: Kafka's files are Tidemill's (but for the markers that are asked
for to end open transactions, :mod:`tidemill.interchange.ending`). What is made is the store, with what
Kafka kept elsewhere: topics with their ids, partitions and settings, settings of brokers, the next producer
id. All partitions have the one broker as their replica, which leads them in a later epoch than any before.

What cannot be taken over without losing something is a problem, and ends the import unless a choice of
:class:`Choices` allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidemill.coordination.embedded import FILE_NAME as STORE_FILE
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.port import Create
from tidemill.interchange.cluster import NO_LEADER, ClusterMetadata, PartitionEntry, TopicEntry
from tidemill.interchange.directories import Found, FoundPartition, missing_links
from tidemill.interchange.transactions import TOPIC as TRANSACTIONS_TOPIC
from tidemill.interchange.transactions import OpenTransaction
from tidemill.interchange.zookeeper_nodes import to_nodes
from tidemill.log.checkpoints import encode_id
from tidemill.model.configs import (
    BrokerConfig,
    check_broker_settings,
    check_group_settings,
    check_topic_settings,
    while_unreadable,
)
from tidemill.model.errors import ConfigError
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition

ALONE: Final = 1
LISTED: Final = 5
"""Of many of a kind, so many are named."""
KEPT_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic whose own are not known: nothing of it goes before somebody sets them."""
OFFSETS_TOPIC: Final = "__consumer_offsets"
INTERNAL: Final = {
    OFFSETS_TOPIC: {"cleanup.policy": "compact", "compression.type": "producer"},
    TRANSACTIONS_TOPIC: {"cleanup.policy": "compact", "compression.type": "uncompressed"},
}


class Choices(NamedTuple):
    """What an import may do without."""

    missing_as_empty: bool = False
    """A partition without a directory begins empty."""
    only_whole: bool = False
    """Topics of which partitions are on other brokers are left out."""
    open_as_committed: bool = False
    """Transactions that nobody ended are committed, but for those that were about to be aborted."""


class Import(NamedTuple):
    """What is to be written, and what people should know before."""

    metadata: ClusterMetadata
    node_id: int
    problems: list[str]
    notes: list[str]
    left_alone: list[str]
    """Directories of partitions that belong to no topic that is taken over."""


def broker_of(found: Found) -> int:
    """The id of the broker whose directories these are; that of a broker alone where none is told."""
    return found.node_id if found.node_id >= 0 else ALONE


def adopted(found: Found) -> ClusterMetadata:
    """The cluster as far as the directories tell it: topics, ids and numbers of partitions."""
    metadata = ClusterMetadata("the directories of partitions", found.cluster_id)
    node_id = broker_of(found)
    for key in sorted(found.partitions):
        one = found.partitions[key]
        topic = metadata.topics.setdefault(key.topic, TopicEntry(key.topic, one.topic_id))
        if topic.topic_id == ZERO_ID:
            topic.topic_id = one.topic_id
        topic.partitions[key.partition] = PartitionEntry((node_id,))
        topic.config = dict(INTERNAL.get(key.topic, KEPT_FOR_EVER))
    if metadata.topics:
        metadata.notes.append(
            "nothing of the topics is deleted before their settings are made: they have retention.ms=-1 and "
            "retention.bytes=-1 now"
        )
    return metadata


def plan(
    metadata: ClusterMetadata, found: Found, choices: Choices, transactions: Iterable[OpenTransaction] = ()
) -> Import:
    """Puts together what the cluster's metadata says and what lies in the directories."""
    node_id = broker_of(found)
    taken = ClusterMetadata(metadata.source, metadata.cluster_id or found.cluster_id)
    taken.next_producer_id = metadata.next_producer_id
    result = Import(taken, node_id, [], list(metadata.notes), [])
    if metadata.cluster_id and found.cluster_id and metadata.cluster_id != found.cluster_id:
        result.problems.append(
            f"{found.paths[0]} is of cluster {found.cluster_id}, {metadata.source} of cluster "
            f"{metadata.cluster_id}: name what belongs together"
        )
        return result
    for topic in metadata.topics.values():
        _take_topic(topic, found, choices, result)
    _take_brokers(metadata, result)
    _take_groups(metadata, result)
    _take_group_offsets(metadata, result)
    to_commit, place = [], len(result.notes)
    for one in transactions:
        text = f"the transaction of {one.transactional_id!r} is {one.state} in {_listed(one.partitions)}"
        if choices.open_as_committed:
            how = "aborted" if one.is_aborted else "committed"
            to_commit.append(f"{text}: it is {how} there, by a marker at the end of the log")
        else:
            result.problems.append(
                f"{text}, and nobody here ends it: start Kafka for more than its timeout "
                f"({one.timeout_ms} ms), or have it {'aborted' if one.is_aborted else 'committed'} in its "
                "partitions, by --open-as-committed"
            )
    known = {
        TopicPartition(name, number) for name in taken.topics for number in taken.topics[name].partitions
    }
    problems, notes = missing_links(found, known)
    result.problems.extend(problems)
    result.notes.extend(notes)
    groups = [one.path for key, one in sorted(found.partitions.items()) if key.topic == OFFSETS_TOPIC]
    if groups and OFFSETS_TOPIC not in metadata.topics:
        result.problems.append(
            f"{groups[0]} holds committed offsets, and {metadata.source} knows no topic {OFFSETS_TOPIC}: it "
            "is older than the directories, or of another cluster; name what belongs together, take topics "
            "as their directories tell (--without-settings), or move such directories away to go without them"
        )
    result.left_alone.extend(one.path for key, one in sorted(found.partitions.items()) if key not in known)
    for kind, count in sorted(metadata.left_out.items()):
        result.notes.append(f"{count} {kind} are left out: there is no place for them here yet")
    for directory in found.directories:
        if directory.has_store:
            result.problems.append(
                f"{directory.path} holds the state of a Tidemill cluster already: serve it as it is, or "
                f"move its {STORE_FILE} away to take the topics from elsewhere"
            )
        result.notes.extend(directory.damage)
        result.problems.extend(
            f"{directory.path}/{name} was being moved to another directory: start its broker once "
            "more to end that"
            for name in directory.moving
        )
    if not result.problems:  # with some, nothing is done
        result.notes[place:place] = to_commit
    return result


def _take_topic(topic: TopicEntry, found: Found, choices: Choices, result: Import) -> None:
    entry = TopicEntry(topic.name, topic.topic_id)
    missing: list[int] = []
    elsewhere: list[int] = []
    for number, told in sorted(topic.partitions.items()):
        one = found.partitions.get(TopicPartition(topic.name, number))
        if result.node_id not in told.replicas:
            elsewhere.append(number)
            continue
        if one is None:
            missing.append(number)
        else:
            result.problems.extend(_mismatches(topic, number, told, one, result.node_id))
            entry.topic_id = one.topic_id if entry.topic_id == ZERO_ID else entry.topic_id
        epoch = max(told.leader_epoch, one.last_epoch if one is not None else 0, 0)
        entry.partitions[number] = PartitionEntry((result.node_id,), NO_LEADER, epoch, (result.node_id,))
    if elsewhere and choices.only_whole:
        result.notes.append(f"topic {topic.name} is left out: {_partitions(elsewhere)} on other brokers")
        if topic.name == OFFSETS_TOPIC:
            result.notes.append("with it go the committed offsets of all groups: they begin anew")
        return
    if elsewhere:
        result.problems.append(
            f"topic {topic.name}: {_partitions(elsewhere)} on other brokers than {result.node_id}: move "
            "all to one broker first (kafka-reassign-partitions), or leave such topics out with --only-whole"
        )
    elif sorted(topic.partitions) != list(range(len(topic.partitions))):
        result.problems.append(
            f"topic {topic.name} has the partitions {_listed(sorted(topic.partitions))}, not all from 0 on: "
            "name every directory of log.dirs"
        )
    if missing and choices.missing_as_empty:
        result.notes.append(f"topic {topic.name}: {_partitions(missing)} missing, and empty from now on")
    elif missing:
        result.problems.append(
            f"topic {topic.name}: {_partitions(missing)} in none of the directories: name every directory of "
            "log.dirs, or begin with empty ones by --missing-as-empty"
        )
    entry.config = _settings(topic, result)
    result.metadata.topics[topic.name] = entry


def _mismatches(
    topic: TopicEntry, number: int, told: PartitionEntry, one: FoundPartition, node_id: int
) -> list[str]:
    """Why the directory may not be that of the partition, as it was last."""
    if ZERO_ID not in (one.topic_id, topic.topic_id) and one.topic_id != topic.topic_id:
        return [
            f"{one.path} is of a topic with id {encode_id(one.topic_id)}, the cluster's {topic.name} has id "
            f"{encode_id(topic.topic_id)}: it is what a topic of that name left behind; move it away"
        ]
    if told.isr and node_id not in told.isr:
        return [
            f"partition {topic.name}-{number} was not in sync on broker {node_id}: import the directories of "
            f"broker {told.isr[0]}, which has all of it"
        ]
    return []


def _settings(topic: TopicEntry, result: Import) -> dict[str, str]:
    """The settings of a topic that can be made here. Others are told, and nothing goes for want of them."""
    kept: dict[str, str] = {}
    careful: dict[str, str] = {}
    for name, value in sorted(topic.config.items()):
        try:
            check_topic_settings({name: value})
        except ConfigError as problem:
            result.notes.append(f"topic {topic.name}: {name}={value} is left out ({problem})")
            careful |= while_unreadable(name)
        else:
            kept[name] = value
    if kept.get("remote.storage.enable") == "true":
        result.notes.append(
            f"topic {topic.name}: what Kafka moved to remote storage is not read here; only what is in its "
            "directories is taken over"
        )
    return kept | careful


def _take_brokers(metadata: ClusterMetadata, result: Import) -> None:
    for name, config in sorted(metadata.broker_configs.items()):
        if name not in ("", str(result.node_id)):
            result.notes.append(f"settings of broker {name} are left out: this is broker {result.node_id}")
            continue
        kept = {}
        for key, value in sorted(config.items()):
            try:
                check_broker_settings({key: value}, all_brokers=not name)
            except ConfigError as problem:
                whose = f"broker {name}" if name else "all brokers"
                result.notes.append(f"the setting {key} of {whose} is left out ({problem})")
            else:
                kept[key] = value
        if kept:
            result.metadata.broker_configs[name] = kept


def _take_groups(metadata: ClusterMetadata, result: Import) -> None:
    bounds = BrokerConfig()
    for name, config in sorted(metadata.group_configs.items()):
        kept = {}
        for key, value in sorted(config.items()):
            try:
                check_group_settings({key: value}, {key: value}, bounds)
            except ConfigError as problem:
                result.notes.append(f"the setting {key} of group {name} is left out ({problem})")
            else:
                kept[key] = value
        if kept:
            result.metadata.group_configs[name] = kept


def _take_group_offsets(metadata: ClusterMetadata, result: Import) -> None:
    topics, taken = result.metadata.topics, result.metadata.group_offsets
    without_topic: set[str] = set()
    for owner, offset in metadata.group_offsets.items():
        topic = topics.get(owner.partition.topic)
        if topic is None or owner.partition.partition not in topic.partitions:
            without_topic.add(f"{owner.partition.topic} of group {owner.group}")
        else:
            taken[owner] = offset
    if taken:
        groups = _listed(sorted({owner.group for owner in taken}))
        result.notes.append(
            f"{len(taken)} offsets that groups kept in ZooKeeper come with it, for OffsetFetch of version 0 "
            f"({groups}); consumers that read ZooKeeper themselves find none here"
        )
    if without_topic:
        result.notes.append(
            "offsets of topics or partitions that are not taken over are left out: "
            f"{_listed(sorted(without_topic))}"
        )


def _partitions(numbers: list[int]) -> str:
    return f"partition {numbers[0]} is" if len(numbers) == 1 else f"partitions {_listed(numbers)} are"


def _listed(things: Sequence[object]) -> str:
    more = f" and {len(things) - LISTED} more" if len(things) > LISTED else ""
    return ", ".join(map(str, things[:LISTED])) + more


async def write_store(files: Files, directory: str, metadata: ClusterMetadata) -> None:
    """Makes the store in ``directory``, with all of the metadata or not at all. Raises StoreError."""
    path = f"{directory}/{STORE_FILE}.new"
    for left in (path, f"{path}-wal", f"{path}-journal"):
        if files.exists(left):
            files.remove(left)
    store = EmbeddedStore.open(path)
    try:
        await store.transact([Create(node, data) for node, data in to_nodes(metadata).items()])
    finally:
        await store.close()
    files.rename(path, f"{directory}/{STORE_FILE}")
    files.sync_directory(directory)
