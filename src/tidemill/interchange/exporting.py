"""Gives a broker's data to Apache Kafka 3.9 on ZooKeeper: the nodes that name topics, and the directories.

The directories of partitions are Kafka's as they are. What changes is ``meta.properties``, which is written
in the version of brokers on ZooKeeper (0), and the store, whose content goes into ZooKeeper's nodes; it loses
its name, so that nobody serves both the old state and what Kafka makes of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidemill.coordination.embedded import FILE_NAME as STORE_FILE
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.nodes import CLUSTER_ID, CONSUMERS, PRODUCER_ID_BLOCK
from tidemill.coordination.port import subtree
from tidemill.interchange.cluster import ClusterMetadata, PartitionEntry, TopicEntry
from tidemill.interchange.directories import Found, FoundDirectory, missing_links
from tidemill.interchange.zookeeper_nodes import READ_BELOW, Nodes, from_nodes
from tidemill.log.checkpoints import encode_id, read_offsets, write_clean_shutdown, write_offsets
from tidemill.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from tidemill.model.configs import (
    BROKER_KEYS,
    brokers_while_unreadable,
    check_topic_settings,
    while_unreadable,
)
from tidemill.model.configs.formats import magic_of
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import CURRENT_MAGIC

CHECKPOINTS: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)
EXPORTED: Final = f"{STORE_FILE}.exported"
OWN_SETTINGS: Final = "tidemill."
OLD_FORMAT: Final = "message.format.version"
OLD_PROTOCOL: Final = "2.8"
"""The ``inter.broker.protocol.version`` with which Kafka keeps formats v0 and v1, and knows topic ids."""
COPIED_AT_ONCE: Final = 64 * 1024 * 1024


class Export(NamedTuple):
    """What Kafka is to be told, and what people should know before."""

    metadata: ClusterMetadata
    node_id: int
    problems: list[str]
    notes: list[str]

    @property
    def old_formats(self) -> bool:
        """Whether topics are stored in message formats v0 or v1."""
        versions = [topic.config.get(OLD_FORMAT) for topic in self.metadata.topics.values()]
        return any(magic_of(version) < CURRENT_MAGIC for version in versions if version)


async def read_store(found: Found) -> Nodes:
    """The nodes of the store in the first directory. Raises StorageError without one, StoreError."""
    directory = found.directories[0]
    if not directory.has_store:
        raise StorageError(
            f"{directory.path} has no {STORE_FILE}: begin with the first of the broker's log.dirs, which "
            "holds it"
        )
    store = EmbeddedStore.open(f"{directory.path}/{STORE_FILE}")
    try:
        paths = [one for root in (*READ_BELOW, CONSUMERS) for one in await subtree(store, root)]
        paths += [CLUSTER_ID, PRODUCER_ID_BLOCK]
        nodes = await store.get_many(paths)
        return {one: node.data for one, node in zip(paths, nodes, strict=True) if node is not None}
    finally:
        await store.close()


def plan(nodes: Nodes, found: Found) -> Export:
    """What Kafka is to know of the cluster in these nodes and directories."""
    told = from_nodes(nodes, found.paths[0])
    metadata = ClusterMetadata(told.source, told.cluster_id)
    metadata.next_producer_id = told.next_producer_id
    metadata.group_offsets = told.group_offsets
    metadata.group_configs = told.group_configs
    result = Export(metadata, found.node_id, [], list(told.notes))
    if found.node_id < 0:
        result.problems.append(f"{found.paths[0]} was never served: no {META_PROPERTIES} says whose it is")
    for name, topic in sorted(told.topics.items()):
        metadata.topics[name] = TopicEntry(name, topic.topic_id)
        metadata.topics[name].config = _kafkas(
            topic.config,
            f"topic {name}",
            result.notes,
            lambda key, text: check_topic_settings({key: text}),
            while_unreadable,
        )
        for number, entry in topic.partitions.items():
            one = found.partitions.get(TopicPartition(name, number))
            if one is None:
                result.problems.append(
                    f"partition {name}-{number} is in none of the directories: name every directory of "
                    "log.dirs"
                )
            elif ZERO_ID not in (one.topic_id, topic.topic_id) and one.topic_id != topic.topic_id:
                result.problems.append(
                    f"{one.path} is of a topic with id {encode_id(one.topic_id)}, {name} has "
                    f"{encode_id(topic.topic_id)}: move it away"
                )
            metadata.topics[name].partitions[number] = PartitionEntry(
                (found.node_id,), found.node_id, entry.leader_epoch + 1, (found.node_id,)
            )
    for name, config in told.broker_configs.items():
        kept = _kafkas(
            config,
            f"broker {name}" if name else "all brokers",
            result.notes,
            _check_broker_setting,
            brokers_while_unreadable,
        )
        if kept:
            metadata.broker_configs[name] = kept
    told_partitions = {
        TopicPartition(name, n) for name, topic in told.topics.items() for n in topic.partitions
    }
    problems, notes = missing_links(found, told_partitions)
    result.problems.extend(problems)
    result.notes.extend(notes)
    for directory in found.directories:
        result.problems.extend(
            f"{directory.path}/{name} was being moved to another directory: start the broker once more "
            "to end that"
            for name in directory.moving
        )
        result.notes.extend(directory.damage)
    return result


def _kafkas(
    config: Mapping[str, str],
    whose: str,
    notes: list[str],
    check: Callable[[str, str], None],
    careful: Callable[[str], dict[str, str]],
) -> dict[str, str]:
    """The settings that Kafka knows, too, and can read. For want of the others nothing goes there, as here.

    ``check`` raises ConfigError for a value that makes no sense, ``careful`` says what holds in its place.
    """
    kept: dict[str, str] = {}
    instead: dict[str, str] = {}
    for name, value in sorted(config.items()):
        if name.startswith(OWN_SETTINGS):
            notes.append(f"{name} of {whose} is left out: Kafka has no such setting")
            continue
        try:
            check(name, value)
        except ConfigError as problem:
            held = careful(name)
            told = f"; {', '.join(f'{key}={text}' for key, text in held.items())} instead" if held else ""
            notes.append(f"{name}={value} of {whose} is left out ({problem}){told}")
            instead |= held
        else:
            kept[name] = value
    return kept | instead


def _check_broker_setting(name: str, value: str) -> None:
    if name in BROKER_KEYS:  # Others are those of listeners, or of plugins of Kafka.
        BROKER_KEYS[name].parse(value)


def server_properties(export: Export, directories: list[str], zookeeper: str) -> dict[str, str]:
    """What Kafka's ``server.properties`` has to say, beside listeners and the like."""
    lines = {
        "broker.id": str(export.node_id),
        "log.dirs": ",".join(directories),
        "zookeeper.connect": zookeeper,
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    if export.old_formats:
        lines["inter.broker.protocol.version"] = OLD_PROTOCOL
    return lines


def shell_script(nodes: Nodes) -> str:
    """The nodes as commands of ``zookeeper-shell.sh``."""
    return "".join(f"create {_word(path)} {_quoted(data)}".rstrip() + "\n" for path, data in nodes.items())


def _word(path: str) -> str:
    """A path as one word of the shell: names of groups may have spaces, and quotes of one kind."""
    if not re.search(r"[\s'\"]", path):
        return path
    return f'"{path}"' if "'" in path else f"'{path}'"


def _quoted(data: bytes) -> str:
    """Data as the shell takes it: in single quotes, which JSON can do without."""
    if not data:
        return ""
    text = json.dumps(json.loads(data), separators=(",", ":")).replace("'", "\\u0027")
    return f"'{text}'"


# -- the directories


def sign(files: Files, directory: str, export: Export) -> None:
    """Writes ``meta.properties`` as brokers on ZooKeeper have it."""
    lines = ["#", f"broker.id={export.node_id}", f"cluster.id={export.metadata.cluster_id}", "version=0", ""]
    files.replace(f"{directory}/{META_PROPERTIES}", "\n".join(lines).encode())


def give_away(files: Files, found: Found, export: Export) -> None:
    """Makes the directories Kafka's, where they are."""
    for directory in found.directories:
        sign(files, directory.path, export)
    first = found.paths[0]
    files.rename(f"{first}/{STORE_FILE}", f"{first}/{EXPORTED}")
    files.sync_directory(first)


def copy_away(
    files: Files, found: Found, target: str, export: Export, on_bytes: Callable[[int], None]
) -> None:
    """Copies all partitions into the new directory ``target``, for Kafka. Raises OSError."""
    os.makedirs(target)
    made = [f"{target}/{os.path.basename(one.path)}" for one in found.partitions.values()]
    for one, directory in zip(found.partitions.values(), made, strict=True):
        _copy_directory(one.path, directory, on_bytes)
    # All at once is much faster than file by file; logs tell each whether it went well.
    os.sync()
    for directory in made:
        for name in os.listdir(directory):
            if name.endswith(LOG) and os.path.getsize(f"{directory}/{name}"):
                _sync(f"{directory}/{name}")
    for name in CHECKPOINTS:
        _merge_checkpoints(files, found.directories, name, target)
    sign(files, target, export)
    if all(directory.clean for directory in found.directories):
        write_clean_shutdown(files, f"{target}/{CLEAN_SHUTDOWN}")
    files.sync_directory(target)


def _merge_checkpoints(files: Files, directories: list[FoundDirectory], name: str, target: str) -> None:
    offsets: dict[TopicPartition, int] = {}
    for directory in directories:
        # A crash may leave an entry of a partition that has moved to another directory.
        told = read_offsets(files, f"{directory.path}/{name}")
        offsets |= {key: offset for key, offset in told.items() if key in directory.partitions}
    write_offsets(files, f"{target}/{name}", offsets)


def _copy_directory(source: str, target: str, on_bytes: Callable[[int], None]) -> None:
    os.mkdir(target)
    for name in sorted(os.listdir(source)):
        _copy_file(f"{source}/{name}", f"{target}/{name}", on_bytes)


def _copy_file(source: str, target: str, on_bytes: Callable[[int], None]) -> None:
    """Copies what is in a file and leaves out its holes: indexes are mostly that after a crash."""
    with open(source, "rb") as old, open(target, "xb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # nothing but a hole is left
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            os.lseek(new.fileno(), at, os.SEEK_SET)
            while at < end:
                count = os.sendfile(new.fileno(), old.fileno(), at, min(end - at, COPIED_AT_ONCE))
                if count == 0:
                    raise StorageError(f"{source} became shorter while it was copied: is a broker running?")
                at += count
                on_bytes(count)
    stat = os.stat(source)
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
