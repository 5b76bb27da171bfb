"""Checks the files of a data directory, or of one partition, without changing any: ``tidemill log verify``.

It checks the framing, the checksum and the records of every batch. Offsets have to increase from batch to
batch and from segment to segment. Indexes are compared with the log, leader epochs with the batches,
checkpoints with the partitions. A broker may be running: then a log is checked up to its end at the time of
the check.

Layouts and names: :mod:`tidemill.log.file_names`, :mod:`tidemill.log.checkpoint_files`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from tidemill.log.checkpoint_files import read_offsets, read_partition_metadata
from tidemill.log.file_names import (
    CLEAN_SHUTDOWN,
    CLEANED,
    CLEANER_OFFSETS,
    CUT,
    DANGLING,
    DELETED,
    FUTURE_DIRECTORY,
    HIGH_WATERMARKS,
    INDEX,
    LEADER_EPOCHS,
    LOCK,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    METADATA_SNAPSHOT,
    PARTITION_METADATA,
    RECORDS_LOST,
    RECOVERY_POINTS,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    STRAY_DIRECTORY,
    SWAP,
    is_delete_directory,
    offset_of,
    parse_partition_directory,
)
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.meta_properties import MetaProperties, read_meta
from tidemill.log.producer_state_manager import ProducerEntry, decode_snapshot
from tidemill.log_tools.findings import Check
from tidemill.log_tools.verify_segment import PartitionWalk, check_segment
from tidemill.model.errors import TidemillError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition

Content = TypeVar("Content")
"""The decoded content of a file."""

SMALL_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Checkpoints and snapshots are read whole: a larger file is not one of them."""

CHECKPOINTS: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)
QUORUM_STATE: Final = "quorum-state"
LEFTOVERS: Final = {
    DELETED: "is to be deleted: the next start does that",
    CLEANED: "is the output of an unfinished compaction: the next start removes it",
    SWAP: "is the output of a compaction that was not put in place: the next start does that",
    CUT: "was truncated from a damaged log by a start: it is unused, and may be removed",
    ".tmp": "is an incompletely written file: the next start removes it",
}
BEING_REMOVED: Final = "is being deleted: the running broker does that"


def is_data_directory(files: Files, path: str) -> bool:
    """Whether the directory at ``path`` is, or was prepared as, a broker's data directory."""
    if files.exists(f"{path}/{META_PROPERTIES}") or files.exists(f"{path}/{RECOVERY_POINTS}"):
        return True
    return any(
        parse_partition_directory(name) is not None and is_partition_directory(files, f"{path}/{name}")
        for name in files.list(path)
    )


def is_partition_directory(files: Files, path: str) -> bool:
    """Whether ``path`` contains segments."""
    try:
        names = files.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return False  # A dangling link; a file of such a name.
    return any(offset_of(name, LOG) >= 0 or offset_of(name, INDEX) >= 0 for name in names)


def is_in_use(path: str) -> bool:
    """Whether a process holds the lock of the data directory at ``path``; does not take the lock."""
    try:
        descriptor = os.open(f"{path}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        reply = fcntl.fcntl(descriptor, fcntl.F_GETLK, query)
        return bool(struct.unpack("hhqqi", reply)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def log_bytes(files: Files, directories: Iterable[str]) -> int:
    """The total size of the logs to check, for a progress bar. The check reports unreadable directories."""
    total = 0
    for directory in directories:
        with contextlib.suppress(OSError):
            for name in files.list(directory):
                if offset_of(name, LOG) >= 0:
                    total += int(files.size(f"{directory}/{name}"))
    return total


def check_partition(check: Check, *, log_start: int = -1) -> None:
    """Checks the directory of a partition. ``log_start``: its log start offset, if a checkpoint has it."""
    try:
        _check_partition(check, log_start)
    except FileNotFoundError as problem:
        if not check.running:
            raise
        check.note(str(problem.filename), "was removed during the check, by retention or a deletion")
    except OSError as problem:
        check.unreadable(check.directory, problem)


def _check_partition(check: Check, log_start: int) -> None:
    directory = check.directory
    names = set(check.files.list(directory))
    bases = sorted(base for base in (offset_of(name, LOG) for name in names) if base >= 0)
    _check_names(check, names, set(bases))
    walk = PartitionWalk(check, names)
    walk.log_start = max(log_start, bases[0] if bases else 0)
    if LEADER_EPOCHS in names:
        rebuilt = "; the next start reads the epochs from the log"
        walk.epochs = _read_small(check, f"{directory}/{LEADER_EPOCHS}", _read_epochs, rebuilt)
    for base in bases:
        try:
            check_segment(walk, base, is_last=base == bases[-1])
        except FileNotFoundError:
            raise
        except OSError as problem:
            check.unreadable(directory, problem)
    if bases:
        check.start_offset, check.end_offset = walk.log_start, walk.next_offset
        if walk.log_start > walk.next_offset:
            check.damage(
                directory, f"log start offset {log_start} is beyond log end offset {walk.next_offset}"
            )
    else:
        # So that the checkpoints and snapshots show that a log with records is lost.
        walk.next_offset = check.start_offset = check.end_offset = 0
        text = "has no segment: the next start creates an empty one"
        check.note(directory, text if names else "is empty: the next start makes a partition of it")
    _check_epochs_range(check, walk)
    for name in sorted(names):
        offset = offset_of(name, SNAPSHOT)
        if offset >= 0:
            _check_snapshot(check, f"{directory}/{name}", offset, walk.next_offset)


def _check_names(check: Check, names: set[str], bases: set[int]) -> None:
    is_metadata = os.path.basename(check.directory) == METADATA_DIRECTORY
    for name in sorted(names):
        path = f"{check.directory}/{name}"
        suffix = "." + name.rpartition(".")[2]
        if suffix in LEFTOVERS:
            running = suffix == DELETED and check.running
            check.note(path, BEING_REMOVED if running else LEFTOVERS[suffix])
        elif suffix in SEGMENT_SUFFIXES and offset_of(name, suffix) >= 0:
            offset = offset_of(name, suffix)
            if offset not in bases:
                text = "has no log file beside it: the next start removes it"
                if bases and min(bases) < offset < max(bases):
                    # Only an interrupted compaction leaves such files between others.
                    text += ". Unless the topic is compacted, the records of a segment are missing here"
                check.note(path, text)
        elif suffix == SNAPSHOT and offset_of(name, suffix) >= 0:
            continue
        elif name == PARTITION_METADATA:
            topic_id = _read_small(check, path, read_partition_metadata)
            if topic_id == ZERO_ID:
                check.note(path, "contains no topic id: it is taken from the cluster's metadata")
        elif name == RECORDS_LOST:
            check.note(path, "a start found records lost; the broker reports that until it is handled")
        elif name != LEADER_EPOCHS and not (
            is_metadata and (suffix == METADATA_SNAPSHOT or name == QUORUM_STATE)
        ):
            check.note(path, "is not a file of a log: it is ignored")


def _read_small(
    check: Check, path: str, read: Callable[[Files, str], Content], consequence: str = ""
) -> Content | None:
    """Reads a small file; None, and a damage, if the file is unreadable or damaged.

    Raises FileNotFoundError. ``consequence`` follows the text of a damage to the content.
    """
    try:
        size = int(check.files.size(path))
        if size <= SMALL_FILE_BYTES_MAX:
            return read(check.files, path)
        check.damage(path, f"has {size} bytes, far more than such a file can need")
    except FileNotFoundError:
        raise
    except OSError as problem:
        check.unreadable(path, problem)
    except TidemillError as problem:
        check.damage(path, str(problem).removeprefix(path).lstrip(": ") + consequence)
    return None


def _read_epochs(files: Files, path: str) -> LeaderEpochFileCache:
    epochs = LeaderEpochFileCache(files, path)
    epochs.load()
    return epochs


def _read_snapshot(files: Files, path: str) -> list[ProducerEntry]:
    return decode_snapshot(files.read(path), path)


def _check_epochs_range(check: Check, walk: PartitionWalk) -> None:
    epochs = walk.epochs
    if epochs is None or not epochs.starts or walk.next_offset < 0 or check.running:
        return
    if epochs.starts[-1] > walk.next_offset:
        check.damage(
            epochs.path,
            f"says that epoch {epochs.latest} starts at offset {epochs.starts[-1]}, "
            f"the log end offset is {walk.next_offset}",
        )


def _check_snapshot(check: Check, path: str, offset: int, end_offset: int) -> None:
    rebuilt = "; the next start reads the producers from the log"
    producers = _read_small(check, path, _read_snapshot, rebuilt)
    if producers is None:
        return
    if offset > end_offset >= 0 and not check.running:
        check.damage(path, f"is for offset {offset}, the log end offset is {end_offset}; a start ignores it")
    for one in producers:
        if one.last_offset >= offset:
            check.damage(
                path, f"producer {one.producer_id} has offset {one.last_offset}, beyond the snapshot's own"
            )


class DirectoryCheck:
    """The check of a data directory: :attr:`top` for its own files, and one check per partition."""

    def __init__(
        self,
        files: Files,
        path: str,
        on_bytes: Callable[[int], None] | None = None,
        *,
        unpacked_bytes_max: int,
    ) -> None:
        self.files = files
        self.unpacked_bytes_max = unpacked_bytes_max
        self.path = path
        self.on_bytes = on_bytes
        self.running = is_in_use(path)
        self.top = Check(files, path, running=self.running, unpacked_bytes_max=unpacked_bytes_max)
        self.meta: MetaProperties | None = None
        self.clean_shutdown = False
        self.partitions: dict[TopicPartition, str] = {}
        self.dangling: dict[str, TopicPartition | None] = {}
        """Dangling links, and the partition that each is named after."""
        self._list_directory()

    def _list_directory(self) -> None:
        top = self.top
        for name in self.files.list(self.path):
            path = f"{self.path}/{name}"
            if os.path.islink(path) and not os.path.exists(path):
                self.dangling[path] = parse_partition_directory(name)
                continue
            if not os.path.isdir(path):
                if name.endswith(".tmp"):
                    top.note(path, "is an incompletely written file: it is unused")
                continue
            if is_delete_directory(name):
                text = "is a partition to be deleted: the next start does that"
                top.note(path, BEING_REMOVED if self.running else text)
            elif name.endswith(FUTURE_DIRECTORY):
                top.note(path, "is an incomplete copy for this data directory: the next start continues it")
            elif name.endswith(STRAY_DIRECTORY):
                top.note(path, "is ignored: it is unused")
            else:
                key = parse_partition_directory(name)
                if key is not None:
                    self.partitions[key] = path
                else:
                    top.note(path, "is not a partition: it is ignored")
        self.clean_shutdown = self.files.exists(f"{self.path}/{CLEAN_SHUTDOWN}")
        path = f"{self.path}/{META_PROPERTIES}"
        if self.files.exists(path):
            self.meta = _read_small(top, path, read_meta)
        elif self.partitions:
            top.note(path, "is missing: the next start writes it")
        if not self.clean_shutdown and not self.running and self.partitions:
            top.note(
                self.path, "was not stopped cleanly: a start checks the logs from the recovery points on"
            )

    def run(self) -> Iterator[Check]:
        """Checks all partitions, then the checkpoints against them."""
        offsets = {name: self._read_checkpoint(name) for name in CHECKPOINTS}
        for path, named in self.dangling.items():
            if any(named in offsets_by_partition for offsets_by_partition in offsets.values()):
                self.top.damage(
                    path, f"is {DANGLING}: a start leaves {named} offline until the target is back"
                )
            else:
                self.top.note(path, f"is {DANGLING}: it is ignored")
        ends: dict[TopicPartition, int] = {}
        for key, path in sorted(self.partitions.items()):
            check = Check(
                self.files,
                path,
                running=self.running,
                on_bytes=self.on_bytes,
                unpacked_bytes_max=self.unpacked_bytes_max,
            )
            check_partition(check, log_start=offsets[LOG_STARTS].get(key, -1))
            ends[key] = check.end_offset
            yield check
        for name, offsets_by_partition in offsets.items():
            self._check_offsets(name, offsets_by_partition, ends)

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        if not self.files.exists(path):
            return {}
        return _read_small(self.top, path, read_offsets, "; a start ignores it") or {}

    def _check_offsets(
        self, name: str, offsets_by_partition: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> None:
        path = f"{self.path}/{name}"
        for key, offset in sorted(offsets_by_partition.items()):
            if key in self.dangling.values():
                continue
            if key not in ends:
                self.top.note(path, f"names {key}, which has no directory here")
            elif offset > ends[key] >= 0:
                meaning = {
                    RECOVERY_POINTS: "was flushed up to",
                    HIGH_WATERMARKS: "was acknowledged up to",
                    LOG_STARTS: "starts at",
                    CLEANER_OFFSETS: "was compacted up to",
                }[name]
                self.top.damage(
                    path, f"says that {key} {meaning} offset {offset}; the log end offset is {ends[key]}"
                )
