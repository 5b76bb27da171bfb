"""The data directories of a broker: made, locked, and told apart from those of other brokers.

A directory whose disk fails is put aside (:meth:`DataDirectories.fail_directory`), at the start as later: its
partitions are offline, all others never notice. One that another process holds, or that is of another broker,
is the operator's mistake and ends the start.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.log.errors import storage_error
from tidemill.log.failed_sync_marks import mark_itself, write_ids
from tidemill.log.log import Log
from tidemill.log.meta import VERSION, DirectoryMeta, new_id, read_meta, write_meta
from tidemill.log.names import (
    BOOT,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECORDS_LOST,
    RECOVERY_POINTS,
)
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition


class DataDirectory:
    """One of the broker's ``log.dirs``. ``failure`` is empty while it works."""

    __slots__ = (
        "_known_watermarks",
        "arriving",
        "clean",
        "cleaner_offsets",
        "failure",
        "has_failed",
        "high_watermarks",
        "is_blank",
        "is_outdated",
        "is_unsigned",
        "leaving",
        "lock",
        "logs",
        "may_have_lost",
        "meta",
        "path",
        "recovery_points",
        "start_offsets",
        "was_used",
    )

    def __init__(self, files: Files, path: str, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """``high_watermarks`` are those of all partitions of the broker, as they change."""
        self.path = path
        self.failure = ""
        self.clean = False
        self.may_have_lost = False
        """It held logs, the stop was not clean, and the system was started since, or a sync failed: what was
        not synced may be gone. A killed process alone loses nothing, as the system writes what it holds."""
        self.was_used = False
        """A broker of Tidemill had it before, not only one of Kafka."""
        self.is_blank = False
        """It holds no logs, and the controller has not processed a loss report for it yet: it is new, or an
        empty disk is in the place of another."""
        self.is_outdated = False
        """It was not in use at the broker's last start: its logs may lack what was acknowledged since."""
        self.has_failed = False
        """A sync failed in it before the last stop, or another fault of its disk took it offline."""
        self.lock: Any = None
        self.meta: DirectoryMeta | None = None
        self.is_unsigned = False
        """It has no ``meta.properties`` although others have: new, or the place of an unmounted disk."""
        self.logs: dict[TopicPartition, Log] = {}
        self.arriving: dict[TopicPartition, Log] = {}
        """Logs that are being moved here from another directory (``-future``)."""
        self.leaving: dict[TopicPartition, Log] = {}
        """Logs whose partition is a copy in another directory now, until their own loses its name.

        The checkpoints know where they start: a power cut before the copy's name is on the disk brings them
        back.
        """
        self._known_watermarks = high_watermarks
        self.recovery_points = OffsetCheckpoint(files, self.file(RECOVERY_POINTS), self._recovery_point)
        """Up to there a start takes a log for synced."""
        self.start_offsets = OffsetCheckpoint(files, self.file(LOG_STARTS), self._start_offset)
        """No start takes a log to begin before that. Also of a log that starts with its first segment: a
        power cut may bring those before it back."""
        self.high_watermarks = OffsetCheckpoint(files, self.file(HIGH_WATERMARKS), self._high_watermark)
        self.cleaner_offsets = OffsetCheckpoint(files, self.file(CLEANER_OFFSETS), self._clean_end)

    def file(self, name: str) -> str:
        """The path of a file in this directory."""
        return f"{self.path}/{name}"

    # -- logs come, move and go

    def add(self, log: Log, *, is_copy: bool = False) -> None:
        """Takes a log in; ``is_copy``: one that is on its way here."""
        (self.arriving if is_copy else self.logs)[log.topic_partition] = log
        log.on_moved = self.note
        self.note(log.topic_partition)

    def remove(self, key: TopicPartition, *, is_copy: bool = False) -> Log | None:
        """Lets go of a log, which the next checkpoints leave out; None when there is none."""
        self.note(key)
        return (self.arriving if is_copy else self.logs).pop(key, None)

    def remove_left(self, key: TopicPartition) -> None:
        """Lets go of one of :attr:`leaving`, which has lost its name."""
        self.note(key)
        del self.leaving[key]

    @property
    def checkpoints(self) -> tuple[OffsetCheckpoint, ...]:
        """All files of offsets in this directory."""
        return self.recovery_points, self.start_offsets, self.high_watermarks, self.cleaner_offsets

    def note(self, key: TopicPartition) -> None:
        """An offset of a log here is another than was written, or the log has come or gone; in any thread."""
        for checkpoint in self.checkpoints:
            checkpoint.note(key)

    def _find(self, key: TopicPartition) -> Log | None:
        return self.logs.get(key) or self.arriving.get(key) or self.leaving.get(key)

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
        """Whether a start would take more of ``log``, which is here, for synced, deleted or clean than is.

        The log was cut, or emptied and begun anew before its start.
        """
        return (
            self.overstates_recovery_point(log)
            or self.overstates_start(log)
            or self.overstates_clean_end(log)
        )

    def overstates_recovery_point(self, log: Log) -> bool:
        """Whether more of ``log`` counts as synced than is."""
        return self.recovery_points.said(log.topic_partition) > log.recovery_point

    def overstates_start(self, log: Log) -> bool:
        """Whether more of ``log`` counts as deleted than is."""
        return self.start_offsets.said(log.topic_partition) > log.start_offset

    def overstates_clean_end(self, log: Log) -> bool:
        """Whether the checkpoint calls more of ``log`` clean than is: old values would outlive tombstones."""
        return self.cleaner_offsets.said(log.topic_partition) > max(int(log.clean_end), 0)


class DataDirectories:
    """The data directories of one broker. ``warnings`` collects what using them met."""

    def __init__(self, files: Files, paths: Iterable[str]) -> None:
        self.files = files
        self.high_watermarks: dict[TopicPartition, int] = {}
        known = self.high_watermarks
        self.directories = [DataDirectory(files, os.path.abspath(path), known) for path in paths]
        if len({directory.path for directory in self.directories}) != len(self.directories):
            raise ConfigError(
                f"log.dirs names a directory twice: {', '.join(d.path for d in self.directories)}"
            )
        self.logs: dict[TopicPartition, Log] = {}
        self.renamed: dict[TopicPartition, tuple[DataDirectory, ...]] = {}
        """Where directories of partitions have lost their names, by deletions for instance. That may not be
        on the disk yet: a power cut would bring them back."""
        self.warnings: list[str] = []
        self.undecided: dict[TopicPartition, str] = {}
        """Partitions of which nobody can tell where they are, by the reason."""
        self.distrusted: set[str] = set()
        """The ids of directories in which a sync failed, until that was heeded: also those that only the
        coordination store knows."""
        self._marking = threading.Lock()
        self.damaged: set[TopicPartition] = set()
        """Logs that have lost records, as their opening found, until that was heeded."""
        self.reported_missing: frozenset[TopicPartition] = frozenset()
        """Partitions that were in no data directory at the start, as this broker has reported."""
        self.of_deleted_topics: frozenset[TopicPartition] = frozenset()
        """Logs of topics that the cluster did not have when this broker started."""

    @property
    def working(self) -> list[DataDirectory]:
        """The directories that did not fail."""
        return [directory for directory in self.directories if not directory.failure]

    def fail_directory(self, path: str, reason: str) -> list[TopicPartition]:
        """Puts a data directory aside; the partitions that are offline by that."""
        for directory in self.working:
            if directory.path != path:
                continue
            directory.failure = reason
            self.warnings.append(f"the data directory {path} is put aside: {reason}")
            gone = list(directory.logs)
            for key in gone:
                self.logs.pop(key, None)
            for log in (*directory.logs.values(), *directory.arriving.values()):
                log.closed = True
                # What is being sent or synced just now holds its file by itself.
                with contextlib.suppress(OSError, StorageError):
                    log.release()
            for checkpoint in directory.checkpoints:
                checkpoint.close()
            directory.logs.clear()
            directory.arriving.clear()
            directory.leaving.clear()
            return gone
        return []

    def distrust(self, directory: DataDirectory) -> list[StorageError]:
        """Marks a directory in which a sync failed, so that the next start does not trust the page cache.

        What is wrong where the mark could not be left. May run in a thread.
        """
        with self._marking:
            if directory.meta is not None:
                self.distrusted.add(directory.meta.directory_id)
            problems = [mark_itself(self.files, directory.path), *self._write_distrusted(directory)]
        return [problem for problem in problems if problem is not None]

    def _write_distrusted(self, failed: DataDirectory | None = None) -> list[StorageError | None]:
        return [
            write_ids(self.files, other.path, self.distrusted)
            for other in self.working
            if other is not failed
        ]

    def directory_of(self, log: Log) -> DataDirectory:
        """The data directory in which a log lies."""
        parent = os.path.dirname(log.directory)
        for directory in self.directories:
            if directory.path == parent:
                return directory
        raise StorageError(f"{log.directory} is in none of this broker's data directories")

    def at_path(self, path: str) -> DataDirectory | None:
        """The data directory at ``path``; None when ``log.dirs`` does not name it."""
        path = os.path.abspath(path)
        return next((directory for directory in self.directories if directory.path == path), None)

    # -- locks

    def lock(self) -> None:
        """Makes the data directories where they are missing, and takes their locks.

        A directory that cannot be used is put aside. Raises StorageError, with one line, when none is left
        or another process holds one.
        """
        try:
            self._try_each("use the data directory", self._lock)
        except BaseException:
            self.unlock()
            raise

    def _try_each(self, doing: str, step: Callable[[DataDirectory], None]) -> None:
        """Takes ``step`` for every working directory. StorageError when no directory works after that."""
        for directory in self.working:
            try:
                step(directory)
            except OSError as problem:
                self.fail_directory(directory.path, str(storage_error(doing, directory.path, problem)))
        if not self.working:
            raise StorageError("no data directory can be used: " + self.directories[0].failure)

    def _lock(self, directory: DataDirectory) -> None:
        make_durable_directory(self.files, directory.path)
        try:
            directory.lock = self.files.lock(directory.file(LOCK))
        except BlockingIOError:
            raise StorageError(
                f"the data directory {directory.path} is in use by another broker (it holds {LOCK}): "
                "stop that one, or give this one a log.dirs of its own"
            ) from None

    def unlock(self) -> None:
        """Gives the locks back."""
        for directory in self.directories:
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    # -- whose they are

    def stored_cluster_id(self) -> str:
        """The cluster id in the directories' ``meta.properties``; empty when all are new.

        Raises ConfigError when two directories belong to different clusters or brokers.
        """
        self._try_each("read", self._read_meta)
        found: DirectoryMeta | None = None
        for directory in self.working:
            meta = directory.meta
            if meta is None:
                continue
            if found is not None and (meta.cluster_id, meta.node_id) != (found.cluster_id, found.node_id):
                raise ConfigError(
                    f"the data directory {directory.path} is of broker {meta.node_id} in cluster "
                    f"{meta.cluster_id}, another one of log.dirs of broker {found.node_id} in cluster "
                    f"{found.cluster_id}: give each broker directories of its own"
                )
            found = meta
        return found.cluster_id if found is not None else ""

    def _read_meta(self, directory: DataDirectory) -> None:
        directory.meta = read_meta(self.files, directory.file(META_PROPERTIES))

    def stored_node_id(self) -> int:
        """The broker id in ``meta.properties``; -1 when all directories are new."""
        self.stored_cluster_id()
        return max((d.meta.node_id for d in self.working if d.meta is not None), default=-1)

    def claim(self, cluster_id: str, node_id: int, version: str = VERSION) -> None:
        """Checks that the directories are this broker's, and signs the new ones.

        ``version`` is that of ``meta.properties``. One that is new beside others that are not is signed by
        :meth:`accept`, once no partition is missed.

        Raises ConfigError, and StorageError when no directory is left; the locks are given back then.
        """
        try:
            self.stored_cluster_id()
            is_signed = [directory.meta is not None for directory in self.working]
            for directory in self.working:
                directory.is_unsigned = directory.meta is None and any(is_signed)
            self._try_each("write", lambda directory: self._claim(directory, cluster_id, node_id, version))
        except BaseException:
            self.unlock()
            raise

    def may_rebuild(self, topic_partition: TopicPartition) -> bool:
        """Whether the controller knows that the log of this replica is gone.

        An empty log can be made then, also in a directory whose disk was replaced: it is filled from the
        leader, and not elected before.
        """
        return topic_partition in self.reported_missing

    def may_replace(self, topic_partition: TopicPartition) -> bool:
        """Whether this replica has no records, also where there is a log: that is of a former topic."""
        return self.may_rebuild(topic_partition) or topic_partition in self.of_deleted_topics

    @property
    def may_have_lost(self) -> bool:
        """Whether acknowledged records that were not synced may be gone since the last stop."""
        return any(directory.may_have_lost for directory in self.directories)

    @property
    def is_blank(self) -> bool:
        """Whether nothing lies anywhere: this broker is new, or all that it had is gone."""
        return all(directory.is_blank for directory in self.working)

    def loss_heeded(self) -> None:
        """Nobody counts any more on what the last stop may have cost. Raises StorageError."""
        heeded: set[str] = set()
        for directory in self.working:
            if directory.may_have_lost or directory.is_blank or directory.is_outdated:
                path = directory.file(BOOT)
                try:
                    self.files.replace(path, self.files.boot_id().encode())
                except OSError as problem:
                    raise storage_error("write", path, problem) from problem
                directory.may_have_lost = directory.is_blank = directory.is_outdated = False
                if directory.meta is not None:
                    heeded.add(directory.meta.directory_id)
        for key in list(self.damaged):
            self._forget_noted_loss(key)
            self.damaged.discard(key)
        with self._marking:
            if not heeded & self.distrusted:
                return
            self.distrusted -= heeded
            for refused in self._write_distrusted():
                if refused is not None:
                    raise refused

    def _forget_noted_loss(self, key: TopicPartition) -> None:
        one = self.logs.get(key)
        if one is None:
            return  # It was deleted, or its directory has failed: the next start tells of it once more.
        path = f"{one.directory}/{RECORDS_LOST}"
        try:
            with contextlib.suppress(FileNotFoundError):
                self.files.remove(path)
        except OSError as problem:
            raise storage_error("remove", path, problem) from problem

    def vanished(self) -> list[str]:
        """Working directories that are there no longer; may run in a thread."""
        return [
            directory.path
            for directory in self.working
            if not directory.is_unsigned and not self.files.exists(directory.file(META_PROPERTIES))
        ]

    def accept(self) -> None:
        """Signs what was new at the start, beside directories that were not: nothing was missed."""
        for directory in self.working:
            if directory.is_unsigned and directory.meta is not None:
                path = directory.file(META_PROPERTIES)
                try:
                    write_meta(self.files, path, directory.meta)
                except OSError as problem:
                    raise storage_error("write", path, problem) from problem
                directory.is_unsigned = False

    def _claim(self, directory: DataDirectory, cluster_id: str, node_id: int, version: str) -> None:
        meta = directory.meta
        path = directory.file(META_PROPERTIES)
        if meta is None:
            directory.meta = DirectoryMeta(cluster_id, node_id, new_id(), version=version)
            if not directory.is_unsigned:
                write_meta(self.files, path, directory.meta)
            return
        if meta.cluster_id and meta.cluster_id != cluster_id:
            raise ConfigError(
                f"the data directory {directory.path} is of cluster {meta.cluster_id}, this broker's "
                f"cluster is {cluster_id}: use another log.dirs, or the store of that cluster ({path})"
            )
        if meta.node_id >= 0 and meta.node_id != node_id:
            raise ConfigError(
                f"the data directory {directory.path} is of broker {meta.node_id}, this one is broker "
                f"{node_id}: set broker.id={meta.node_id}, or use another log.dirs ({path})"
            )
        if not meta.cluster_id or meta.node_id < 0 or not meta.directory_id or meta.version != version:
            directory_id = meta.directory_id or new_id()
            directory.meta = DirectoryMeta(cluster_id, node_id, directory_id, meta.rest, version)
            write_meta(self.files, path, directory.meta)


def make_durable_directory(files: Files, path: str) -> None:
    """Makes a directory, and those above it, so that it is still there after a power cut."""
    missing: list[str] = []
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        files.make_directory(made)
        files.sync_directory(os.path.dirname(made))
