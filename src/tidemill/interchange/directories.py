"""Examines the data directories of a Kafka or Tidemill broker, read-only.

Layouts and names: :mod:`tidemill.log.file_names`, :mod:`tidemill.log.checkpoint_files`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from tidemill.coordination.embedded_store import FILE_NAME as STORE_FILE
from tidemill.log.checkpoint_files import CheckpointDamaged, read_offsets, read_partition_metadata
from tidemill.log.file_names import (
    CLEAN_SHUTDOWN,
    DANGLING,
    DELETE_DIRECTORY,
    FUTURE_DIRECTORY,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    MOVED_TO,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_DIRECTORY,
    offset_of,
    parse_partition_directory,
)
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.meta_properties import MetaProperties, read_meta
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition

SET_ASIDE: Final = (DELETE_DIRECTORY, FUTURE_DIRECTORY, STRAY_DIRECTORY)


class PartitionDirectory(NamedTuple):
    """A partition's directory: its topic id (zeros if unknown), its last leader epoch, its size in bytes."""

    path: str
    topic_id: bytes
    last_epoch: int
    size: int


class Dangling(NamedTuple):
    """A broken link with a partition's name: a disk is not mounted, or the link is left over."""

    key: TopicPartition
    path: str
    is_known: bool
    """Whether a checkpoint contains the partition, so that it was in this directory."""


class KafkaLogDirectory(NamedTuple):
    """One data directory."""

    path: str
    meta: MetaProperties | None
    partitions: dict[TopicPartition, PartitionDirectory]
    set_aside: list[str]
    """Names of partition directories that were being removed or moved."""
    moving: list[str]
    """Names of partition directories that were about to be replaced by their copies in other directories."""
    metadata: str
    """The path of KRaft's metadata directory, or empty."""
    clean: bool
    """Whether its broker had a clean shutdown."""
    has_store: bool
    """Whether it contains the coordination store of a Tidemill cluster."""
    damage: list[str]
    dangling: list[Dangling]


class BrokerDirectories(NamedTuple):
    """All data directories of one broker."""

    directories: list[KafkaLogDirectory]
    cluster_id: str
    node_id: int
    partitions: dict[TopicPartition, PartitionDirectory]

    @property
    def paths(self) -> list[str]:
        """The paths of the directories."""
        return [directory.path for directory in self.directories]


def is_data_directory(files: Files, path: str) -> bool:
    """Whether ``path`` is a broker's data directory."""
    return META_PROPERTIES in files.list(path) or bool(partitions_in(files, path))


def partitions_in(files: Files, path: str) -> list[TopicPartition]:
    """Returns the partitions that have files in the data directory ``path``."""
    return [key for name in files.list(path) if (key := _partition_in(files, path, name)) is not None]


def _partition_in(files: Files, path: str, name: str) -> TopicPartition | None:
    key = parse_partition_directory(name)
    if key is None or name == METADATA_DIRECTORY:
        return None
    try:
        names = files.list(f"{path}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return key if any(offset_of(name, LOG) >= 0 for name in names) or PARTITION_METADATA in names else None


def read_directories(files: Files, paths: Iterable[str]) -> BrokerDirectories:
    """Reads the directories. Raises StorageError or ConfigError if they are not those of one broker."""
    directories = [_read_directory(files, path) for path in paths]
    signed = [directory for directory in directories if directory.meta is not None]
    partitions: dict[TopicPartition, PartitionDirectory] = {}
    for directory in directories:
        for key, found in directory.partitions.items():
            if key in partitions:
                raise StorageError(
                    f"partition {key} is in {partitions[key].path} and in {found.path}: start the broker "
                    "that was moving it, or move one of them away"
                )
            partitions[key] = found
    names = {
        (directory.meta.cluster_id, directory.meta.node_id)
        for directory in signed
        if directory.meta is not None
    }
    if len(names) > 1:
        described = "; ".join(
            f"{directory.path}: broker {directory.meta.node_id} of cluster {directory.meta.cluster_id}"
            for directory in signed
            if directory.meta is not None
        )
        raise StorageError(f"these are not the directories of one broker ({described}): name those of one")
    cluster_id, node_id = names.pop() if names else ("", -1)
    return BrokerDirectories(directories, cluster_id, node_id, partitions)


def _read_directory(files: Files, path: str) -> KafkaLogDirectory:
    if not is_data_directory(files, path):
        raise StorageError(
            f"{path} is not a data directory of a broker: it has neither {META_PROPERTIES} nor partitions; "
            "name the log.dirs of the broker, as its server.properties has them"
        )
    names = files.list(path)
    found = KafkaLogDirectory(
        path,
        read_meta(files, f"{path}/{META_PROPERTIES}"),
        {},
        [name for name in names if name.endswith(SET_ASIDE)],
        [],
        f"{path}/{METADATA_DIRECTORY}" if METADATA_DIRECTORY in names else "",
        CLEAN_SHUTDOWN in names,
        STORE_FILE in names,
        [],
        [],
    )
    known = _checkpointed(files, path)
    for name in names:
        key = _partition_in(files, path, name)
        if key is not None:
            found.partitions[key] = _partition(files, f"{path}/{name}", found.damage)
            if files.exists(f"{path}/{name}/{MOVED_TO}"):
                found.moving.append(name)
        named = parse_partition_directory(name)
        if key is None and named is not None and not files.exists(f"{path}/{name}"):
            found.dangling.append(Dangling(named, f"{path}/{name}", named in known))
    return found


def _checkpointed(files: Files, path: str) -> set[TopicPartition]:
    """Returns the partitions in the checkpoints of a data directory."""
    known: set[TopicPartition] = set()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        try:
            known |= read_offsets(files, f"{path}/{name}").keys()
        except CheckpointDamaged:
            continue  # the start of the broker reports it
    return known


def missing_links(found: BrokerDirectories, known: Container[TopicPartition]) -> tuple[list[str], list[str]]:
    """Returns problems for broken links of ``known`` or checkpointed partitions, and notes for others."""
    problems: list[str] = []
    notes: list[str] = []
    for link in (dangling for directory in found.directories for dangling in directory.dangling):
        if link.is_known or link.key in known:
            problems.append(
                f"{link.path} is {DANGLING}, and {link.key} was in it: restore the target of the link, or "
                "remove the link if the target is permanently lost"
            )
        else:
            notes.append(f"{link.path} is {DANGLING}: it is ignored")
    return problems, notes


def _partition(files: Files, path: str, damage: list[str]) -> PartitionDirectory:
    epochs = LeaderEpochFileCache(files, f"{path}/{LEADER_EPOCHS}")
    topic_id = ZERO_ID
    try:
        topic_id = read_partition_metadata(files, f"{path}/{PARTITION_METADATA}")
    except CheckpointDamaged as problem:
        damage.append(str(problem))
    try:
        epochs.load()
    except CheckpointDamaged as problem:
        damage.append(str(problem))
    size = sum(int(files.size(f"{path}/{name}")) for name in files.list(path) if offset_of(name, LOG) >= 0)
    return PartitionDirectory(path, topic_id, epochs.latest, size)
