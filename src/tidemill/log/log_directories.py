"""The data directories of a broker: creates and locks them, and verifies their owner.

If the disk of a directory fails, at the start or later, the directory goes offline
(:meth:`DataDirectories.fail_directory`): its partitions are offline, others are unaffected. A directory that
another process has locked, or that belongs to another broker, is a configuration error and ends the start.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping

from tidemill.log.errors import StorageErrors, storage_error
from tidemill.log.failed_sync_marks import mark_directory, write_ids
from tidemill.log.file_names import (
    BOOT,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECORDS_LOST,
    RECOVERY_POINTS,
)
from tidemill.log.log import Log
from tidemill.log.meta_properties import VERSION, MetaProperties, read_meta, write_meta
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.ids import encode_id, new_id
from tidemill.model.system_interfaces import FileLock, Files
from tidemill.model.types import TopicPartition


class DataDirectory:
    """One of the broker's ``log.dirs``. ``offline_reason`` is empty while it is online."""

    __slots__ = (
        "_known_watermarks",
        "clean",
        "cleaner_offsets",
        "future_logs",
        "has_failed",
        "has_unwritten_meta",
        "high_watermarks",
        "is_blank",
        "is_outdated",
        "lock",
        "logs",
        "may_have_lost",
        "meta",
        "offline_reason",
        "path",
        "recovery_points",
        "replaced_logs",
        "start_offsets",
        "was_used",
    )

    def __init__(self, files: Files, path: str, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """``high_watermarks`` are those of all partitions of the broker, as they change."""
        self.path = path
        self.offline_reason = ""
        self.clean = False
        self.may_have_lost = False
        """The directory held logs, the shutdown was unclean, and the system was rebooted since, or a sync
        failed: unsynced data may be lost. A killed process alone loses nothing, because the system writes its
        cached pages.
        """
        self.was_used = False
        """A broker of Tidemill used it before, not only one of Kafka."""
        self.is_blank = False
        """The directory has no logs, and the controller has not processed a loss report for it yet: it is
        new, or an empty disk has replaced another.
        """
        self.is_outdated = False
        """The directory was not in use at the broker's last start: its logs may lack records acknowledged
        since.
        """
        self.has_failed = False
        """A sync in it failed before the last shutdown, or another fault of its disk took it offline."""
        self.lock: FileLock | None = None
        self.meta: MetaProperties | None = None
        self.has_unwritten_meta = False
        """The directory has no ``meta.properties`` although others have: it is new, or the mount point of a
        missing disk.
        """
        self.logs: dict[TopicPartition, Log] = {}
        self.future_logs: dict[TopicPartition, Log] = {}
        """Future logs that are being copied here from another directory (``-future``)."""
        self.replaced_logs: dict[TopicPartition, Log] = {}
        """Former logs whose partitions have been replaced by a future log, until their directories are
        renamed.

        The checkpoints keep their start offsets: a power failure before the new name is on disk brings them
        back.
        """
        self._known_watermarks = high_watermarks
        self.recovery_points = OffsetCheckpoint(files, self.file(RECOVERY_POINTS), self._recovery_point)
        """The next start assumes that logs are synced up to these offsets."""
        self.start_offsets = OffsetCheckpoint(files, self.file(LOG_STARTS), self._start_offset)
        """No start opens a log with an earlier start offset. Also for a log that starts with its first
        segment: a power failure may restore earlier segments.
        """
        self.high_watermarks = OffsetCheckpoint(files, self.file(HIGH_WATERMARKS), self._high_watermark)
        self.cleaner_offsets = OffsetCheckpoint(files, self.file(CLEANER_OFFSETS), self._clean_end)

    @property
    def is_offline(self) -> bool:
        """Whether the directory failed: its logs cannot be used until a restart."""
        return bool(self.offline_reason)

    def file(self, name: str) -> str:
        """The path of a file in this directory."""
        return f"{self.path}/{name}"

    # Logs come, move and go

    def add(self, log: Log, *, is_future: bool = False) -> None:
        """Adds a log; ``is_future``: a future log."""
        (self.future_logs if is_future else self.logs)[log.topic_partition] = log
        log.on_offset_change = self.mark_changed
        self.mark_changed(log.topic_partition)

    def remove(self, key: TopicPartition, *, is_future: bool = False) -> Log | None:
        """Removes a log, so that the next checkpoints omit it. Returns None if there is none."""
        self.mark_changed(key)
        return (self.future_logs if is_future else self.logs).pop(key, None)

    def remove_replaced(self, key: TopicPartition) -> None:
        """Removes one of :attr:`replaced_logs`, whose directory was renamed."""
        self.mark_changed(key)
        del self.replaced_logs[key]

    @property
    def checkpoints(self) -> tuple[OffsetCheckpoint, ...]:
        """All offset checkpoints of this directory."""
        return self.recovery_points, self.start_offsets, self.high_watermarks, self.cleaner_offsets

    def mark_changed(self, key: TopicPartition) -> None:
        """Records, in any thread, that an offset of a log here has changed, or that the log was added or
        removed.
        """
        for checkpoint in self.checkpoints:
            checkpoint.mark_changed(key)

    def _find(self, key: TopicPartition) -> Log | None:
        return self.logs.get(key) or self.future_logs.get(key) or self.replaced_logs.get(key)

    def _recovery_point(self, key: TopicPartition) -> int | None:
        log = self._find(key)
        return None if log is None else int(log.recovery_point)

    def _start_offset(self, key: TopicPartition) -> int | None:
        log = self._find(key)
        return None if log is None or log.start_offset <= 0 else int(log.start_offset)

    def _high_watermark(self, key: TopicPartition) -> int | None:
        return self._known_watermarks.get(key) if key in self.logs else None

    def _clean_end(self, key: TopicPartition) -> int | None:
        log = self.logs.get(key)
        return None if log is None or log.clean_end < 0 else int(log.clean_end)

    def overstates(self, log: Log) -> bool:
        """Whether a checkpoint has a higher offset for ``log`` than the log itself.

        The log was truncated, or emptied and restarted before its start offset.
        """
        return (
            self.overstates_recovery_point(log)
            or self.overstates_start(log)
            or self.overstates_clean_end(log)
        )

    def overstates_recovery_point(self, log: Log) -> bool:
        """Whether the checkpoint has a higher recovery point than ``log``."""
        return self.recovery_points.max_offset(log.topic_partition) > log.recovery_point

    def overstates_start(self, log: Log) -> bool:
        """Whether the checkpoint has a higher log start offset than ``log``."""
        return self.start_offsets.max_offset(log.topic_partition) > log.start_offset

    def overstates_clean_end(self, log: Log) -> bool:
        """Whether the checkpoint has a higher clean end than ``log``: old values would outlive their
        tombstones.
        """
        return self.cleaner_offsets.max_offset(log.topic_partition) > max(int(log.clean_end), 0)


class DataDirectories:
    """The data directories of one broker. ``warnings`` collects problems with them."""

    def __init__(self, files: Files, paths: Iterable[str]) -> None:
        self.files = files
        self.high_watermarks: dict[TopicPartition, int] = {}
        known = self.high_watermarks
        self.all = [DataDirectory(files, os.path.abspath(path), known) for path in paths]
        if len({directory.path for directory in self.all}) != len(self.all):
            raise ConfigError(f"log.dirs has a directory twice: {', '.join(d.path for d in self.all)}")
        self.logs: dict[TopicPartition, Log] = {}
        self.renamed: dict[TopicPartition, tuple[DataDirectory, ...]] = {}
        """Directories in which partition directories were renamed, for instance by deletions. The renames may
        not be on disk yet: a power failure would undo them.
        """
        self.warnings: list[str] = []
        self.ambiguous: dict[TopicPartition, str] = {}
        """Partitions whose location cannot be determined, with the reason."""
        self.distrusted: set[str] = set()
        """The ids of directories in which a sync failed, until the loss was handled, including those that
        only the coordination store has.
        """
        self._marks_lock = threading.Lock()
        self.damaged: set[TopicPartition] = set()
        """Logs that have lost records, as found when they were opened, until the loss was handled."""
        self.reported_missing: frozenset[TopicPartition] = frozenset()
        """Partitions that no data directory had at the start, as this broker has reported."""
        self.of_deleted_topics: frozenset[TopicPartition] = frozenset()
        """Logs of topics that did not exist in the cluster when this broker started."""

    @property
    def online(self) -> list[DataDirectory]:
        """The online directories."""
        return [directory for directory in self.all if not directory.is_offline]

    def fail_directory(self, path: str, reason: str) -> list[TopicPartition]:
        """Takes a data directory offline. Returns the partitions that are offline as a result."""
        for directory in self.online:
            if directory.path != path:
                continue
            directory.offline_reason = reason
            self.warnings.append(f"the data directory {path} is offline: {reason}")
            gone = list(directory.logs)
            for key in gone:
                self.logs.pop(key, None)
            for log in (*directory.logs.values(), *directory.future_logs.values()):
                log.closed = True
                # Ranges that are being sent or synced keep their file open.
                with contextlib.suppress(OSError, StorageError):
                    log.close_handlers()
            for checkpoint in directory.checkpoints:
                checkpoint.close()
            directory.logs.clear()
            directory.future_logs.clear()
            directory.replaced_logs.clear()
            return gone
        return []

    def mark_sync_failed(self, directory: DataDirectory) -> list[StorageError]:
        """Marks a directory in which a sync failed, so that the next start does not trust the page cache.

        Returns the errors of marks that could not be written. May run in a thread.
        """
        with self._marks_lock:
            if directory.meta is not None:
                self.distrusted.add(directory.meta.directory_id)
            problems = [mark_directory(self.files, directory.path), *self._write_marks(directory)]
        return [problem for problem in problems if problem is not None]

    def _write_marks(self, failed: DataDirectory | None = None) -> list[StorageError | None]:
        return [
            write_ids(self.files, other.path, self.distrusted) for other in self.online if other is not failed
        ]

    def directory_of(self, log: Log) -> DataDirectory:
        """The data directory that contains a log."""
        parent = os.path.dirname(log.directory)
        for directory in self.all:
            if directory.path == parent:
                return directory
        raise StorageError(f"{log.directory} is not in a data directory of this broker")

    def at_path(self, path: str) -> DataDirectory | None:
        """The data directory at ``path``; None if it is not in ``log.dirs``."""
        path = os.path.abspath(path)
        return next((directory for directory in self.all if directory.path == path), None)

    # Locks

    def lock(self) -> None:
        """Creates missing data directories and locks all of them.

        A directory that is unusable goes offline. Raises StorageError if none is left or another process
        holds a lock.
        """
        try:
            self._try_each("use the data directory", self._lock)
        except BaseException:
            self.unlock()
            raise

    def _try_each(self, doing: str, step: Callable[[DataDirectory], None]) -> None:
        """Runs ``step`` for every online directory. Raises StorageError if none is online afterwards."""
        for directory in self.online:
            try:
                step(directory)
            except OSError as problem:
                self.fail_directory(directory.path, str(storage_error(doing, directory.path, problem)))
        if not self.online:
            raise StorageError("no data directory is online: " + self.all[0].offline_reason)

    def _lock(self, directory: DataDirectory) -> None:
        make_durable_directory(self.files, directory.path)
        try:
            directory.lock = self.files.lock(directory.file(LOCK))
        except BlockingIOError:
            raise StorageError(
                f"the data directory {directory.path} is in use by another broker, which holds {LOCK}: "
                "stop that broker, or configure another log.dirs for this one"
            ) from None

    def unlock(self) -> None:
        """Releases the locks."""
        for directory in self.all:
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    # Owner

    def stored_cluster_id(self) -> str:
        """The cluster id in the directories' ``meta.properties``; empty if all are new.

        Raises ConfigError if two directories belong to different clusters or brokers.
        """
        self._try_each("read", self._read_meta)
        found: MetaProperties | None = None
        for directory in self.online:
            meta = directory.meta
            if meta is None:
                continue
            if found is not None and (meta.cluster_id, meta.node_id) != (found.cluster_id, found.node_id):
                raise ConfigError(
                    f"the data directory {directory.path} belongs to broker {meta.node_id} in cluster "
                    f"{meta.cluster_id}, another directory of log.dirs to broker {found.node_id} in cluster "
                    f"{found.cluster_id}: configure different directories for each broker"
                )
            found = meta
        return found.cluster_id if found is not None else ""

    def _read_meta(self, directory: DataDirectory) -> None:
        directory.meta = read_meta(self.files, directory.file(META_PROPERTIES))

    def stored_node_id(self) -> int:
        """The broker id in ``meta.properties``; -1 if all directories are new."""
        self.stored_cluster_id()
        return max((d.meta.node_id for d in self.online if d.meta is not None), default=-1)

    def claim(self, cluster_id: str, node_id: int, version: str = VERSION) -> None:
        """Verifies that the directories belong to this broker, and writes ``meta.properties`` of new ones.

        ``version`` is that of ``meta.properties``. If only some directories are new,
        :meth:`write_new_meta_properties` writes theirs after no partition was found to be missing. Raises
        ConfigError, and StorageError if no directory is left, and then releases the locks.
        """
        try:
            self.stored_cluster_id()
            is_written = [directory.meta is not None for directory in self.online]
            for directory in self.online:
                directory.has_unwritten_meta = directory.meta is None and any(is_written)
            self._try_each("write", lambda directory: self._claim(directory, cluster_id, node_id, version))
        except BaseException:
            self.unlock()
            raise

    def may_rebuild(self, topic_partition: TopicPartition) -> bool:
        """Whether the controller knows that the log of this replica is lost.

        An empty log may then be created, also in a directory with a replaced disk: it is filled from the
        leader, and not elected before.
        """
        return topic_partition in self.reported_missing

    def may_replace(self, topic_partition: TopicPartition) -> bool:
        """Whether this replica has no records, even if a log exists: that log belongs to a former topic."""
        return self.may_rebuild(topic_partition) or topic_partition in self.of_deleted_topics

    @property
    def is_blank(self) -> bool:
        """Whether no directory has logs: this broker is new, or all its logs are lost."""
        return all(directory.is_blank for directory in self.online)

    def mark_losses_handled(self) -> None:
        """Records that the losses of the last shutdown were handled. Raises StorageError."""
        handled: set[str] = set()
        for directory in self.online:
            if directory.may_have_lost or directory.is_blank or directory.is_outdated:
                path = directory.file(BOOT)
                with StorageErrors("write", path):
                    self.files.replace(path, self.files.boot_id().encode())
                directory.may_have_lost = directory.is_blank = directory.is_outdated = False
                if directory.meta is not None:
                    handled.add(directory.meta.directory_id)
        for key in list(self.damaged):
            self._remove_loss_mark(key)
            self.damaged.discard(key)
        with self._marks_lock:
            if not handled & self.distrusted:
                return
            self.distrusted -= handled
            for refused in self._write_marks():
                if refused is not None:
                    raise refused

    def _remove_loss_mark(self, key: TopicPartition) -> None:
        one = self.logs.get(key)
        if one is None:
            return  # It was deleted, or its directory has failed: the next start reports the loss again.
        path = f"{one.directory}/{RECORDS_LOST}"
        with StorageErrors("remove", path), contextlib.suppress(FileNotFoundError):
            self.files.remove(path)

    def missing_directories(self) -> list[str]:
        """Online directories that do not exist any more. May run in a thread."""
        return [
            directory.path
            for directory in self.online
            if not directory.has_unwritten_meta and not self.files.exists(directory.file(META_PROPERTIES))
        ]

    def write_new_meta_properties(self) -> None:
        """Writes ``meta.properties`` of directories that were new beside others: no partition is missing."""
        for directory in self.online:
            if directory.has_unwritten_meta and directory.meta is not None:
                path = directory.file(META_PROPERTIES)
                with StorageErrors("write", path):
                    write_meta(self.files, path, directory.meta)
                directory.has_unwritten_meta = False

    def _claim(self, directory: DataDirectory, cluster_id: str, node_id: int, version: str) -> None:
        meta = directory.meta
        path = directory.file(META_PROPERTIES)
        if meta is None:
            directory.meta = MetaProperties(cluster_id, node_id, encode_id(new_id()), version=version)
            if not directory.has_unwritten_meta:
                write_meta(self.files, path, directory.meta)
            return
        if meta.cluster_id and meta.cluster_id != cluster_id:
            raise ConfigError(
                f"the data directory {directory.path} belongs to cluster {meta.cluster_id}, but this "
                f"broker's cluster is {cluster_id}: use another log.dirs, or the store of that cluster "
                f"({path})"
            )
        if meta.node_id >= 0 and meta.node_id != node_id:
            raise ConfigError(
                f"the data directory {directory.path} belongs to broker {meta.node_id}, but this is broker "
                f"{node_id}: set node.id={meta.node_id}, or use another log.dirs ({path})"
            )
        if not meta.cluster_id or meta.node_id < 0 or not meta.directory_id or meta.version != version:
            directory_id = meta.directory_id or encode_id(new_id())
            directory.meta = MetaProperties(cluster_id, node_id, directory_id, meta.rest, version)
            write_meta(self.files, path, directory.meta)


def make_durable_directory(files: Files, path: str) -> None:
    """Creates a directory and its parents durably."""
    missing: list[str] = []
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        files.make_directory(made)
        files.sync_directory(os.path.dirname(made))
