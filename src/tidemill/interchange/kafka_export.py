"""Exports a broker's data to Apache Kafka 3.9 on ZooKeeper: ZooKeeper's nodes and the data directories.

Kafka uses the partition directories unchanged. ``meta.properties`` is rewritten in version 0, that of brokers
on ZooKeeper. The content of the store goes into ZooKeeper's nodes. The store is then renamed, so that no
broker serves its old state after Kafka has changed the data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidemill.coordination.coordination_store import subtree
from tidemill.coordination.embedded_store import FILE_NAME as STORE_FILE
from tidemill.coordination.embedded_store import EmbeddedStore, sync_path
from tidemill.coordination.nodes import CONSUMERS
from tidemill.interchange.cluster import (
    ClusterMetadata,
    PartitionEntry,
    TopicEntry,
)
from tidemill.interchange.directories import BrokerDirectories, KafkaLogDirectory, missing_links
from tidemill.interchange.zookeeper_nodes import READ_BELOW, SINGLE, Nodes, from_nodes
from tidemill.log.checkpoint_files import read_offsets, write_clean_shutdown, write_offsets
from tidemill.log.file_names import (
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
from tidemill.model.configs.message_format_versions import magic_of
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.ids import encode_id
from tidemill.model.system_interfaces import Files
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import CURRENT_MAGIC

CHECKPOINTS: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)
EXPORTED: Final = f"{STORE_FILE}.exported"
OWN_SETTINGS: Final = "tidemill."
OLD_FORMAT: Final = "message.format.version"
OLD_PROTOCOL: Final = "2.8"
"""The ``inter.broker.protocol.version`` with which Kafka keeps formats v0 and v1 and supports topic ids."""
COPIED_AT_ONCE: Final = 64 * 1024 * 1024


class Export(NamedTuple):
    """The metadata for Kafka, and the problems and notes to show before the export."""

    metadata: ClusterMetadata
    node_id: int
    problems: list[str]
    notes: list[str]

    @property
    def old_formats(self) -> bool:
        """Whether topics are stored in message formats v0 or v1."""
        versions = [topic.config.get(OLD_FORMAT) for topic in self.metadata.topics.values()]
        return any(magic_of(version) < CURRENT_MAGIC for version in versions if version)


async def read_store(found: BrokerDirectories) -> Nodes:
    """Reads the nodes of the store in the first directory. Raises StorageError if it has none; StoreError."""
    directory = found.directories[0]
    if not directory.has_store:
        raise StorageError(
            f"{directory.path} has no {STORE_FILE}: begin with the first of the broker's log.dirs, which "
            "holds it"
        )
    store = EmbeddedStore.open(f"{directory.path}/{STORE_FILE}")
    try:
        paths = [path for root in (*READ_BELOW, CONSUMERS) for path in await subtree(store, root)]
        paths += SINGLE
        nodes = await store.get_many(paths)
        return {path: node.data for path, node in zip(paths, nodes, strict=True) if node is not None}
    finally:
        await store.close()


def plan(nodes: Nodes, found: BrokerDirectories) -> Export:
    """Plans the export of the cluster in these nodes and directories."""
    source = from_nodes(nodes, found.paths[0])
    metadata = ClusterMetadata(source.source, source.cluster_id)
    metadata.next_producer_id = source.next_producer_id
    metadata.group_offsets = source.group_offsets
    metadata.group_configs = source.group_configs
    result = Export(metadata, found.node_id, [], list(source.notes))
    if found.node_id < 0:
        result.problems.append(f"{found.paths[0]} has no {META_PROPERTIES}: no broker has used it yet")
    for name, topic in sorted(source.topics.items()):
        metadata.topics[name] = TopicEntry(name, topic.topic_id)
        metadata.topics[name].config = _supported_settings(
            topic.config,
            f"topic {name}",
            result.notes,
            lambda key, text: check_topic_settings({key: text}),
            while_unreadable,
        )
        for number, entry in topic.partitions.items():
            partition = found.partitions.get(TopicPartition(name, number))
            if partition is None:
                result.problems.append(
                    f"partition {name}-{number} is in none of the directories: name every directory of "
                    "log.dirs"
                )
            elif ZERO_ID not in (partition.topic_id, topic.topic_id) and partition.topic_id != topic.topic_id:
                result.problems.append(
                    f"{partition.path} belongs to a topic with id {encode_id(partition.topic_id)}, "
                    f"{name} has {encode_id(topic.topic_id)}: move it away"
                )
            metadata.topics[name].partitions[number] = PartitionEntry(
                (found.node_id,), found.node_id, entry.leader_epoch + 1, (found.node_id,)
            )
    if source.transaction_version:
        result.notes.append(
            f"{TRANSACTION_VERSION} {source.transaction_version} is omitted: Kafka 3.9 on ZooKeeper has "
            "level 0"
        )
    for name, config in source.broker_configs.items():
        kept = _supported_settings(
            config,
            f"broker {name}" if name else "all brokers",
            result.notes,
            _check_broker_setting,
            brokers_while_unreadable,
        )
        if kept:
            metadata.broker_configs[name] = kept
    known = {TopicPartition(name, n) for name, topic in source.topics.items() for n in topic.partitions}
    problems, notes = missing_links(found, known)
    result.problems.extend(problems)
    result.notes.extend(notes)
    for directory in found.directories:
        result.problems.extend(
            f"{directory.path}/{name} was being moved to another directory: start the broker once more "
            "to complete the move"
            for name in directory.moving
        )
        result.notes.extend(directory.damage)
    return result


def _supported_settings(
    config: Mapping[str, str],
    whose: str,
    notes: list[str],
    check: Callable[[str, str], None],
    careful: Callable[[str], dict[str, str]],
) -> dict[str, str]:
    """Returns the settings that Kafka supports; others are replaced so that no data is deleted.

    ``check`` raises ConfigError for an invalid value. ``careful`` returns the settings that replace it.
    """
    kept: dict[str, str] = {}
    instead: dict[str, str] = {}
    for name, value in sorted(config.items()):
        if name.startswith(OWN_SETTINGS):
            notes.append(f"{name} of {whose} is omitted: Kafka has no such setting")
            continue
        try:
            check(name, value)
        except ConfigError as problem:
            held = careful(name)
            other = f"; {', '.join(f'{key}={text}' for key, text in held.items())} instead" if held else ""
            notes.append(f"{name}={value} of {whose} is omitted ({problem}){other}")
            instead |= held
        else:
            kept[name] = value
    return kept | instead


def _check_broker_setting(name: str, value: str) -> None:
    if name in BROKER_KEYS:  # Others belong to listeners, or to Kafka's plugins.
        BROKER_KEYS[name].parse(value)


def server_properties(export: Export, directories: list[str], zookeeper: str) -> dict[str, str]:
    """Returns the required entries of Kafka's ``server.properties``, without listeners and the like."""
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
    """Returns commands for ``zookeeper-shell.sh`` that create the nodes."""
    return "".join(f"create {_word(path)} {_quoted(data)}".rstrip() + "\n" for path, data in nodes.items())


def _word(path: str) -> str:
    """Quotes a path as one word of the shell: group names may have spaces, and quotes of one kind."""
    if not re.search(r"[\s'\"]", path):
        return path
    return f'"{path}"' if "'" in path else f"'{path}'"


def _quoted(data: bytes) -> str:
    """Quotes data for the shell in single quotes, which JSON can escape."""
    if not data:
        return ""
    text = json.dumps(json.loads(data), separators=(",", ":")).replace("'", "\\u0027")
    return f"'{text}'"


# -- the directories


def write_meta_properties(files: Files, directory: str, export: Export) -> None:
    """Writes ``meta.properties`` in the format of brokers on ZooKeeper."""
    lines = ["#", f"broker.id={export.node_id}", f"cluster.id={export.metadata.cluster_id}", "version=0", ""]
    files.replace(f"{directory}/{META_PROPERTIES}", "\n".join(lines).encode())


def convert_in_place(files: Files, found: BrokerDirectories, export: Export) -> None:
    """Converts the directories for Kafka in place."""
    for directory in found.directories:
        write_meta_properties(files, directory.path, export)
    first = found.paths[0]
    files.rename(f"{first}/{STORE_FILE}", f"{first}/{EXPORTED}")
    files.sync_directory(first)


def copy_converted(
    files: Files, found: BrokerDirectories, target: str, export: Export, on_bytes: Callable[[int], None]
) -> None:
    """Copies all partitions into the new directory ``target``, converted for Kafka. Raises OSError."""
    os.makedirs(target)
    made = [f"{target}/{os.path.basename(partition.path)}" for partition in found.partitions.values()]
    for partition, directory in zip(found.partitions.values(), made, strict=True):
        _copy_directory(partition.path, directory, on_bytes)
    # One sync of all files is much faster than one per file; the syncs of the logs report errors.
    os.sync()
    for directory in made:
        for name in os.listdir(directory):
            if name.endswith(LOG) and os.path.getsize(f"{directory}/{name}"):
                sync_path(f"{directory}/{name}")
    for name in CHECKPOINTS:
        _merge_checkpoints(files, found.directories, name, target)
    write_meta_properties(files, target, export)
    if all(directory.clean for directory in found.directories):
        write_clean_shutdown(files, f"{target}/{CLEAN_SHUTDOWN}")
    files.sync_directory(target)


def _merge_checkpoints(files: Files, directories: list[KafkaLogDirectory], name: str, target: str) -> None:
    offsets: dict[TopicPartition, int] = {}
    for directory in directories:
        # A crash may leave an entry of a partition that has moved to another directory.
        read = read_offsets(files, f"{directory.path}/{name}")
        offsets |= {key: offset for key, offset in read.items() if key in directory.partitions}
    write_offsets(files, f"{target}/{name}", offsets)


def _copy_directory(source: str, target: str, on_bytes: Callable[[int], None]) -> None:
    os.mkdir(target)
    for name in sorted(os.listdir(source)):
        _copy_file(f"{source}/{name}", f"{target}/{name}", on_bytes)


def _copy_file(source: str, target: str, on_bytes: Callable[[int], None]) -> None:
    """Copies a file without its holes: after a crash, indexes consist mostly of holes."""
    with open(source, "rb") as old, open(target, "xb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # only a hole is left
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
