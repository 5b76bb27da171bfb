"""Checks the files of a data directory, or of one partition, without changing any: ``tidemill log verify``.

Every batch is framed, its checksum taken and its records walked; offsets have to grow from batch to batch and
from segment to segment; indexes are compared with the log, leader epochs with the batches, checkpoints with
the partitions. A broker may be running: then the end of each log is where it was when the check came by.

Layouts and names: :mod:`tidemill.log.names`, :mod:`tidemill.log.checkpoints`.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidemill.log.checkpoints import CheckpointDamaged, read_offsets, read_partition_metadata
from tidemill.log.findings import Check
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.meta import DirectoryMeta, read_meta
from tidemill.log.names import (
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
from tidemill.log.producer_state import decode_snapshot
from tidemill.log.verify_segment import PartitionWalk, check_segment
from tidemill.model.errors import TidemillError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

SMALL_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Checkpoints and snapshots are read whole: a larger one is no such file."""

CHECKPOINTS: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)
QUORUM_STATE: Final = "quorum-state"
METADATA_SNAPSHOT: Final = ".checkpoint"
LEFTOVERS: Final = {
    DELETED: "was being removed: the next start does that",
    CLEANED: "is what a compaction had not finished: the next start removes it",
    SWAP: "is what a compaction had not put in place: the next start does that",
    CUT: "is what a start cut from a damaged log: nothing uses it, remove it when nobody needs it",
    ".tmp": "is a file that was being written: the next start removes it",
}
BEING_REMOVED: Final = "is being removed: the broker that is running does that"


def is_data_directory(files: Files, path: str) -> bool:
    """Whether a broker has kept logs in the directory at ``path``, or was to."""
    if files.exists(f"{path}/{META_PROPERTIES}") or files.exists(f"{path}/{RECOVERY_POINTS}"):
        return True
    return any(
        parse_partition_directory(name) is not None and is_partition_directory(files, f"{path}/{name}")
        for name in files.list(path)
    )


def is_partition_directory(files: Files, path: str) -> bool:
    """Whether segments lie in ``path``."""
    try:
        names = files.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return False  # a link to what is not there; a file of such a name
    return any(offset_of(name, LOG) >= 0 or offset_of(name, INDEX) >= 0 for name in names)


def is_in_use(path: str) -> bool:
    """Whether a process holds the lock of the data directory at ``path``; it is asked about, not taken."""
    try:
        descriptor = os.open(f"{path}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
        return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def log_bytes(files: Files, directories: Iterable[str]) -> int:
    """How much there is to go through, for a progress bar."""
    total = 0
    for directory in directories:
        for name in files.list(directory):
            if offset_of(name, LOG) >= 0:
                try:
                    total += int(files.size(f"{directory}/{name}"))
                except FileNotFoundError:
                    continue
    return total


def check_partition(check: Check, *, log_start: int = -1) -> None:
    """Checks the directory of a partition. ``log_start``: its start offset, where a checkpoint tells it."""
    try:
        _check_partition(check, log_start)
    except FileNotFoundError as problem:
        if not check.running:
            raise
        check.note(str(problem.filename), "went away while it was read: retention or a deletion took it")


def _check_partition(check: Check, log_start: int) -> None:
    directory = check.directory
    names = set(check.files.list(directory))
    bases = sorted(base for base in (offset_of(name, LOG) for name in names) if base >= 0)
    _check_names(check, names, set(bases))
    walk = PartitionWalk(check, names)
    walk.log_start = max(log_start, bases[0] if bases else 0)
    walk.epochs = _epochs(check, names)
    for base in bases:
        try:
            check_segment(walk, base, is_last=base == bases[-1])
        except OSError as problem:
            if isinstance(problem, FileNotFoundError):
                raise
            check.damage(str(problem.filename or directory), f"cannot be read: {problem.strerror}")
    if bases:
        check.start_offset, check.end_offset = walk.log_start, walk.next_offset
        if walk.log_start > walk.next_offset:
            check.damage(directory, f"its start offset is {log_start}, the log ends at {walk.next_offset}")
    else:
        # So that the checkpoints and snapshots of a log that held records tell that it is lost.
        walk.next_offset = check.start_offset = check.end_offset = 0
        text = "has no segment: a start makes an empty one"
        check.note(directory, text if names else "is empty: a start makes a partition of it")
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
                    # Only a compaction that was interrupted leaves such files amid others.
                    text += ". Unless the topic is compacted, the records of a segment are missing here"
                check.note(path, text)
        elif suffix == SNAPSHOT and offset_of(name, suffix) >= 0:
            continue
        elif name == PARTITION_METADATA:
            try:
                if not any(read_partition_metadata(check.files, path)):
                    check.note(path, "holds no topic id: it is taken from the cluster's metadata")
            except CheckpointDamaged as problem:
                check.damage(path, _without(path, problem))
        elif name == RECORDS_LOST:
            check.note(path, "a start found records lost; the broker reports that until it was heeded")
        elif name != LEADER_EPOCHS and not (
            is_metadata and (suffix == METADATA_SNAPSHOT or name == QUORUM_STATE)
        ):
            check.note(path, "is no file of a log: it is left alone")


def _without(path: str, problem: Exception) -> str:
    """The text of a problem that begins with the path, without it."""
    return str(problem).removeprefix(path).lstrip(": ")


def _too_large(check: Check, path: str) -> bool:
    size = int(check.files.size(path))
    if size > SMALL_FILE_BYTES_MAX:
        check.damage(path, f"has {size} bytes, far more than such a file can need")
    return size > SMALL_FILE_BYTES_MAX


def _epochs(check: Check, names: set[str]) -> LeaderEpochs | None:
    path = f"{check.directory}/{LEADER_EPOCHS}"
    if LEADER_EPOCHS not in names or _too_large(check, path):
        return None
    epochs = LeaderEpochs(check.files, path)
    try:
        epochs.load()
    except CheckpointDamaged as problem:
        check.damage(path, f"{_without(path, problem)}; a start reads the epochs from the log")
        return None
    return epochs


def _check_epochs_range(check: Check, walk: PartitionWalk) -> None:
    epochs = walk.epochs
    if epochs is None or not epochs.starts or walk.next_offset < 0 or check.running:
        return
    if epochs.starts[-1] > walk.next_offset:
        check.damage(
            epochs.path,
            f"says that epoch {epochs.latest} begins at offset {epochs.starts[-1]}, "
            f"the log ends at {walk.next_offset}",
        )


def _check_snapshot(check: Check, path: str, offset: int, end_offset: int) -> None:
    if _too_large(check, path):
        return
    try:
        producers = decode_snapshot(check.files.read(path), path)
    except TidemillError as problem:
        check.damage(path, f"{_without(path, problem)}; a start reads the producers from the log")
        return
    if offset > end_offset >= 0 and not check.running:
        check.damage(path, f"is of offset {offset}, the log ends at {end_offset}; a start leaves it out")
    for one in producers:
        if one.last_offset >= offset:
            check.damage(
                path, f"producer {one.producer_id} has offset {one.last_offset}, behind the snapshot's own"
            )


class DirectoryCheck:
    """The check of a data directory: :attr:`top` for its own files, and one check for each partition."""

    def __init__(
        self,
        files: Files,
        path: str,
        on_bytes: Callable[[int], None] | None = None,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.files = files
        self.unpacked_bytes_max = unpacked_bytes_max
        self.path = path
        self.on_bytes = on_bytes
        self.running = is_in_use(path)
        self.top = Check(files, path, running=self.running)
        self.meta: DirectoryMeta | None = None
        self.clean_shutdown = False
        self.partitions: dict[TopicPartition, str] = {}
        self.dangling: dict[str, TopicPartition | None] = {}
        """Links to what is not there, and the partition that each is named after."""
        self._take_stock()

    def _take_stock(self) -> None:
        top = self.top
        for name in self.files.list(self.path):
            path = f"{self.path}/{name}"
            if os.path.islink(path) and not os.path.exists(path):
                self.dangling[path] = parse_partition_directory(name)
                continue
            if not os.path.isdir(path):
                if name.endswith(".tmp"):
                    top.note(path, "is a file that was being written when the broker ended: nothing uses it")
                continue
            if is_delete_directory(name):
                text = "is a partition that was being removed: the next start does that"
                top.note(path, BEING_REMOVED if self.running else text)
            elif name.endswith(FUTURE_DIRECTORY):
                top.note(path, "is a copy on its way to this data directory: the next start goes on with it")
            elif name.endswith(STRAY_DIRECTORY):
                top.note(path, "is left alone: nothing here uses it")
            else:
                key = parse_partition_directory(name)
                if key is not None:
                    self.partitions[key] = path
                else:
                    top.note(path, "is no partition: it is left alone")
        self.clean_shutdown = self.files.exists(f"{self.path}/{CLEAN_SHUTDOWN}")
        try:
            self.meta = read_meta(self.files, f"{self.path}/{META_PROPERTIES}")
            if self.meta is None and self.partitions:
                top.note(f"{self.path}/{META_PROPERTIES}", "is not there: a start writes it anew")
        except TidemillError as problem:
            path = f"{self.path}/{META_PROPERTIES}"
            top.damage(path, _without(path, problem))
        if not self.clean_shutdown and not self.running and self.partitions:
            top.note(
                self.path, "was not stopped in order: a start checks the logs from the recovery points on"
            )

    def run(self) -> Iterator[Check]:
        """Checks partition by partition, then the checkpoints against them."""
        offsets = {name: self._read_checkpoint(name) for name in CHECKPOINTS}
        for path, named in self.dangling.items():
            if any(named in told for told in offsets.values()):
                self.top.damage(path, f"is {DANGLING}: a start leaves {named} offline until that is back")
            else:
                self.top.note(path, f"is {DANGLING}: it is left alone")
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
        for name, told in offsets.items():
            self._check_offsets(name, told, ends)

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        try:
            if not self.files.exists(path) or _too_large(self.top, path):
                return {}
            return read_offsets(self.files, path)
        except CheckpointDamaged as problem:
            self.top.damage(path, f"{_without(path, problem)}; a start leaves it out")
            return {}

    def _check_offsets(
        self, name: str, told: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> None:
        path = f"{self.path}/{name}"
        for key, offset in sorted(told.items()):
            if key in self.dangling.values():
                continue
            if key not in ends:
                self.top.note(path, f"names {key}, which has no directory here")
            elif offset > ends[key] >= 0:
                meaning = {
                    RECOVERY_POINTS: "was on the disk up to",
                    HIGH_WATERMARKS: "was acknowledged up to",
                    LOG_STARTS: "begins at",
                    CLEANER_OFFSETS: "was compacted up to",
                }[name]
                self.top.damage(
                    path, f"says that {key} {meaning} offset {offset}; the log ends at {ends[key]}"
                )
