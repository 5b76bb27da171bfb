"""What lies in the data directories of a broker, whoever wrote them, told without changing anything.

Layouts and names: :mod:`tidemill.log.names`, :mod:`tidemill.log.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from tidemill.coordination.embedded import FILE_NAME as STORE_FILE
from tidemill.log.checkpoints import CheckpointDamaged, read_offsets, read_partition_metadata
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.meta import DirectoryMeta, read_meta
from tidemill.log.names import (
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
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition

SET_ASIDE: Final = (DELETE_DIRECTORY, FUTURE_DIRECTORY, STRAY_DIRECTORY)


class FoundPartition(NamedTuple):
    """The directory of a partition: its topic's id (zeros: none is told), its last epoch, its bytes."""

    path: str
    topic_id: bytes
    last_epoch: int
    size: int


class Dangling(NamedTuple):
    """A link with the name of a partition that leads to nothing: a disk that is not mounted, or left over."""

    key: TopicPartition
    path: str
    is_known: bool
    """Whether a checkpoint names the partition: it was here."""


class FoundDirectory(NamedTuple):
    """One data directory."""

    path: str
    meta: DirectoryMeta | None
    partitions: dict[TopicPartition, FoundPartition]
    set_aside: list[str]
    """Names of what was being removed or moved."""
    moving: list[str]
    """Names of partitions that were about to be replaced by their copies elsewhere."""
    metadata: str
    """KRaft's metadata, or empty."""
    clean: bool
    """Whether its broker was stopped in order."""
    has_store: bool
    """Whether the state of a Tidemill cluster is in it."""
    damage: list[str]
    dangling: list[Dangling]


class Found(NamedTuple):
    """All data directories of one broker."""

    directories: list[FoundDirectory]
    cluster_id: str
    node_id: int
    partitions: dict[TopicPartition, FoundPartition]

    @property
    def paths(self) -> list[str]:
        """Where they are."""
        return [directory.path for directory in self.directories]


def is_data_directory(files: Files, path: str) -> bool:
    """Whether a broker's data is in the directory ``path``."""
    return META_PROPERTIES in files.list(path) or bool(partitions_in(files, path))


def partitions_in(files: Files, path: str) -> list[TopicPartition]:
    """The partitions of which there is something in the data directory ``path``."""
    return [key for name in files.list(path) if (key := _partition_in(files, path, name)) is not None]


def _partition_in(files: Files, path: str, name: str) -> TopicPartition | None:
    key = parse_partition_directory(name)
    if key is None or name == METADATA_DIRECTORY:
        return None
    try:
        names = files.list(f"{path}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return key if any(offset_of(one, LOG) >= 0 for one in names) or PARTITION_METADATA in names else None


def find(files: Files, paths: Iterable[str]) -> Found:
    """Reads what is there. Raises StorageError and ConfigError when they cannot be of one broker."""
    directories = [_find_one(files, path) for path in paths]
    signed = [one for one in directories if one.meta is not None]
    partitions: dict[TopicPartition, FoundPartition] = {}
    for one in directories:
        for key, found in one.partitions.items():
            if key in partitions:
                raise StorageError(
                    f"partition {key} is in {partitions[key].path} and in {found.path}: start the broker "
                    "that was moving it, or move one of them away"
                )
            partitions[key] = found
    names = {(one.meta.cluster_id, one.meta.node_id) for one in signed if one.meta is not None}
    if len(names) > 1:
        told = "; ".join(
            f"{one.path}: broker {one.meta.node_id} of cluster {one.meta.cluster_id}"
            for one in signed
            if one.meta is not None
        )
        raise StorageError(f"these are not the directories of one broker ({told}): name those of one")
    cluster_id, node_id = names.pop() if names else ("", -1)
    return Found(directories, cluster_id, node_id, partitions)


def _find_one(files: Files, path: str) -> FoundDirectory:
    if not is_data_directory(files, path):
        raise StorageError(
            f"{path} is no data directory of a broker: it has neither {META_PROPERTIES} nor partitions; "
            "name the log.dirs of the broker, as its server.properties has them"
        )
    names = files.list(path)
    found = FoundDirectory(
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
    """The partitions that the checkpoints of a data directory name."""
    known: set[TopicPartition] = set()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        try:
            known |= read_offsets(files, f"{path}/{name}").keys()
        except CheckpointDamaged:
            continue  # a start says so
    return known


def missing_links(found: Found, told: Container[TopicPartition]) -> tuple[list[str], list[str]]:
    """What links to nothing mean: problems where they are of partitions (``told``, or known), and notes."""
    problems: list[str] = []
    notes: list[str] = []
    for one in (link for directory in found.directories for link in directory.dangling):
        if one.is_known or one.key in told:
            problems.append(
                f"{one.path} is {DANGLING}, and {one.key} was in it: bring back what it leads to, or remove "
                "the link when that is gone for good"
            )
        else:
            notes.append(f"{one.path} is {DANGLING}: it is left alone")
    return problems, notes


def _partition(files: Files, path: str, damage: list[str]) -> FoundPartition:
    epochs = LeaderEpochs(files, f"{path}/{LEADER_EPOCHS}")
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
    return FoundPartition(path, topic_id, epochs.latest, size)
