"""All logs of a broker: its data directories, and what is done to every log from time to time.

Nothing here has a timer or a thread: the broker calls these methods from its loop, and runs what waits for
the disk (:class:`~tidemill.log.flush.FlushJob`, :func:`~tidemill.log.removals.remove_path`) in a thread.

A data directory whose disk fails is put aside (:meth:`LogManager.fail_directory`): its partitions are
offline, all others never notice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidemill.log.checkpoints import (
    CheckpointDamaged,
    CheckpointJob,
    read_offsets,
    read_partition_metadata,
    remove_clean_shutdown,
    write_checkpoints,
    write_clean_shutdown,
    write_partition_metadata,
)
from tidemill.log.config import LogConfig
from tidemill.log.errors import storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.log import Log
from tidemill.log.meta import DirectoryMeta, new_id, read_meta, write_meta
from tidemill.log.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    directory_to_delete,
    is_delete_directory,
    parse_partition_directory,
    partition_directory,
)
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals, remove_path
from tidemill.log.retention import POLICIES, Policy, expired_segments
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition

PRODUCER_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000


class DataDirectory:
    """One of the broker's ``log.dirs``. ``failure`` is empty while it works."""

    __slots__ = ("clean", "failure", "lock", "logs", "meta", "path", "recovery_points", "start_offsets")

    def __init__(self, path: str) -> None:
        self.path = path
        self.failure = ""
        self.clean = False
        self.lock: Any = None
        self.meta: DirectoryMeta | None = None
        self.logs: dict[TopicPartition, Log] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.start_offsets: dict[TopicPartition, int] = {}

    def file(self, name: str) -> str:
        """The path of a file in this directory."""
        return f"{self.path}/{name}"


class LogManager:
    """The logs of one broker by partition: :attr:`logs`. ``warnings`` collects what loading met."""

    def __init__(
        self,
        files: Files,
        directories: Iterable[str],
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        policies: Iterable[Policy] = POLICIES,
    ) -> None:
        self.files = files
        self.directories = [DataDirectory(os.path.abspath(path)) for path in directories]
        if len({directory.path for directory in self.directories}) != len(self.directories):
            raise ConfigError(
                f"log.dirs names a directory twice: {', '.join(d.path for d in self.directories)}"
            )
        self.producer_expiration_ms = producer_expiration_ms
        self.policies = tuple(policies)
        self.logs: dict[TopicPartition, Log] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.removals = Removals()
        self.warnings: list[str] = []
        self.recovered_bytes = 0

    # -- taking the directories

    def lock(self) -> None:
        """Makes the data directories where they are missing, and takes their locks.

        Raises StorageError, with one line, when one cannot be used or another process holds it.
        """
        for directory in self.directories:
            try:
                self._make_directory(directory.path)
                directory.lock = self.files.lock(directory.file(LOCK))
            except BlockingIOError:
                self.unlock()
                raise StorageError(
                    f"the data directory {directory.path} is in use by another broker (it holds {LOCK}): "
                    "stop that one, or give this one a log.dirs of its own"
                ) from None
            except OSError as problem:
                self.unlock()
                raise storage_error("use the data directory", directory.path, problem) from problem

    def _make_directory(self, path: str) -> None:
        """Makes a data directory so that it is still there after a power cut."""
        missing: list[str] = []
        while not self.files.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for made in reversed(missing):
            self.files.make_directory(made)
            self.files.sync_directory(os.path.dirname(made))

    def unlock(self) -> None:
        """Gives the locks back."""
        for directory in self.directories:
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    def stored_cluster_id(self) -> str:
        """The cluster id in the directories' ``meta.properties``; empty when all are new.

        Raises ConfigError when two directories belong to different clusters or brokers.
        """
        found: DirectoryMeta | None = None
        for directory in self.directories:
            directory.meta = meta = read_meta(self.files, directory.file(META_PROPERTIES))
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

    def stored_node_id(self) -> int:
        """The broker id in ``meta.properties``; -1 when all directories are new."""
        self.stored_cluster_id()
        return max((d.meta.node_id for d in self.directories if d.meta is not None), default=-1)

    def claim(self, cluster_id: str, node_id: int) -> None:
        """Checks that the directories are this broker's, and signs the new ones.

        Raises ConfigError; the locks are given back then.
        """
        try:
            self.stored_cluster_id()
            for directory in self.directories:
                self._claim(directory, cluster_id, node_id)
        except BaseException:
            self.unlock()
            raise

    def _claim(self, directory: DataDirectory, cluster_id: str, node_id: int) -> None:
        meta = directory.meta
        path = directory.file(META_PROPERTIES)
        if meta is None:
            directory.meta = DirectoryMeta(cluster_id, node_id, new_id())
            self._write_meta(path, directory.meta)
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
        if not meta.cluster_id or meta.node_id < 0 or not meta.directory_id:
            directory.meta = DirectoryMeta(cluster_id, node_id, meta.directory_id or new_id(), meta.rest)
            self._write_meta(path, directory.meta)

    def _write_meta(self, path: str, meta: DirectoryMeta) -> None:
        try:
            write_meta(self.files, path, meta)
        except OSError as problem:
            raise storage_error("write", path, problem) from problem

    # -- loading

    def load(self, now_ms: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log; ``config_of`` gives the settings of a topic. Recovers after an unclean stop.

        A directory that cannot be read is put aside with a warning. Raises StorageError when none is left,
        or when two directories hold the same partition.
        """
        for directory in self.directories:
            try:
                self._load_directory(directory, now_ms, config_of)
            except OSError as problem:
                self.fail_directory(directory.path, str(storage_error("load", directory.path, problem)))
            except StorageError as problem:
                self.fail_directory(directory.path, str(problem))
        if all(directory.failure for directory in self.directories):
            raise StorageError("no data directory can be used: " + self.directories[0].failure)

    def _load_directory(
        self, directory: DataDirectory, now_ms: int, config_of: Callable[[str], LogConfig]
    ) -> None:
        names = self.files.list(directory.path)
        directory.clean = CLEAN_SHUTDOWN in names
        directory.recovery_points = self._read_offsets(directory.file(RECOVERY_POINTS))
        directory.start_offsets = self._read_offsets(directory.file(LOG_STARTS))
        self.high_watermarks |= self._read_offsets(directory.file(HIGH_WATERMARKS))
        # From here on a crash is an unclean stop, also one of this start.
        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)
        for name in names:
            if is_delete_directory(name):
                self.removals.add(directory.file(name), now_ms)
                continue
            key = parse_partition_directory(name)
            if key is None or name == METADATA_DIRECTORY:
                if name == METADATA_DIRECTORY or name.endswith(("-future", "-stray")):
                    self.warnings.append(f"{directory.file(name)} is left alone: nothing here uses it")
                continue
            try:
                children = self.files.list(directory.file(name))
            except NotADirectoryError:
                continue
            if not children and not self._was_partition(directory, key):
                self.warnings.append(f"{directory.file(name)} is empty, a partition is made of it")
            if key in self.logs:
                raise StorageError(
                    f"partition {key} is in {self.logs[key].directory} and in {directory.file(name)}: "
                    "move one of them away"
                )
            self._load_log(directory, key, now_ms, config_of(key.topic))

    @staticmethod
    def _was_partition(directory: DataDirectory, key: TopicPartition) -> bool:
        return key in directory.recovery_points

    def _read_offsets(self, path: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self.files, path)
        except CheckpointDamaged as problem:
            self.warnings.append(f"{problem}; it is left out")
            return {}

    def _load_log(
        self, directory: DataDirectory, key: TopicPartition, now_ms: int, config: LogConfig
    ) -> None:
        path = directory.file(partition_directory(key))
        try:
            topic_id = read_partition_metadata(self.files, f"{path}/{PARTITION_METADATA}")
        except CheckpointDamaged as problem:
            self.warnings.append(f"{problem}; the topic's id is taken from the store")
            topic_id = ZERO_ID
        opening = Opening(
            self.files,
            path,
            key,
            config,
            removals=self.removals,
            now_ms=now_ms,
            topic_id=topic_id,
            recovery_point=directory.recovery_points.get(key, 0),
            start_offset=directory.start_offsets.get(key, 0),
            clean=directory.clean,
        )
        log = opening.open()
        self.warnings += opening.warnings
        self.recovered_bytes += opening.recovered_bytes
        directory.logs[key] = log
        self.logs[key] = log

    # -- partitions come and go

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a partition; None when there is none, or when its directory failed."""
        return self.logs.get(topic_partition)

    def create(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        now_ms: int,
        *,
        is_new: bool = True,
    ) -> Log:
        """A new log, in the working data directory that has the fewest. Raises StorageError.

        A log that is there already is returned as it is. One that is not new (``is_new``) may lie in a
        directory that failed: then none is made beside it.
        """
        found = self.logs.get(topic_partition)
        if found is not None:
            return found
        working = self._working()
        if not working:
            raise StorageError(f"no data directory works: {topic_partition} cannot be created")
        if not is_new and len(working) < len(self.directories):
            failed = ", ".join(directory.path for directory in self.directories if directory.failure)
            raise StorageError(f"{topic_partition} may lie in {failed}, which failed: it stays offline")
        directory = min(working, key=lambda candidate: len(candidate.logs))
        path = directory.file(partition_directory(topic_partition))
        try:
            self.files.make_directory(path)
            if topic_id != ZERO_ID:
                write_partition_metadata(self.files, f"{path}/{PARTITION_METADATA}", topic_id)
            opening = Opening(
                self.files,
                path,
                topic_partition,
                config,
                removals=self.removals,
                now_ms=now_ms,
                topic_id=topic_id,
            )
            log = opening.open()
        except OSError as problem:
            raise storage_error("create the partition directory", path, problem) from problem
        directory.logs[topic_partition] = log
        self.logs[topic_partition] = log
        return log

    def assign_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Gives a log the id of its topic, where it has none. Raises StorageError."""
        path = f"{log.directory}/{PARTITION_METADATA}"
        try:
            write_partition_metadata(self.files, path, topic_id)
        except OSError as problem:
            raise storage_error("write", path, problem) from problem
        log.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Removes a log: its directory is renamed now, and removed after ``file.delete.delay.ms``.

        False when there is none. Raises StorageError.
        """
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return False
        directory = self.directory_of(log)
        directory.logs.pop(topic_partition, None)
        directory.recovery_points.pop(topic_partition, None)
        directory.start_offsets.pop(topic_partition, None)
        self.high_watermarks.pop(topic_partition, None)
        log.closed = True
        log.release()
        self.removals.forget_under(log.directory)
        renamed = directory.file(directory_to_delete(topic_partition))
        try:
            self.files.rename(log.directory, renamed)
        except OSError as problem:
            raise storage_error("rename", log.directory, problem) from problem
        self.removals.add(renamed, now_ms + log.config.file_delete_delay_ms)
        return True

    def directory_of(self, log: Log) -> DataDirectory:
        """The data directory in which a log lies."""
        parent = os.path.dirname(log.directory)
        for directory in self.directories:
            if directory.path == parent:
                return directory
        raise StorageError(f"{log.directory} is in none of this broker's data directories")

    def fail_directory(self, path: str, reason: str) -> list[TopicPartition]:
        """Puts a data directory aside; the partitions that are offline by that."""
        for directory in self.directories:
            if directory.path != path or directory.failure:
                continue
            directory.failure = reason
            self.warnings.append(f"the data directory {path} is put aside: {reason}")
            gone = list(directory.logs)
            for key in gone:
                self.logs.pop(key, None)
            directory.logs.clear()
            return gone
        return []

    # -- from time to time

    def due_removals(self, now_ms: int) -> list[str]:
        """Paths that may be removed now; the caller does it (``remove_path``, in a thread)."""
        return self.removals.take_due(now_ms)

    def remove_paths(self, paths: Iterable[str]) -> list[str]:
        """Removes paths; texts about what did not go. May run in a thread."""
        problems = []
        for path in paths:
            try:
                remove_path(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("remove", path, problem)))
        return problems

    def retain(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Removes the segments that the deletion policies let go; the new start offsets.

        Only what lies before a partition's high watermark goes. A log whose disk fails is left out, with a
        warning.
        """
        moved: dict[TopicPartition, int] = {}
        for key, log in self.logs.items():
            before = log.start_offset
            try:
                count = expired_segments(log, high_watermarks.get(key, log.end_offset), now_ms, self.policies)
                log.remove_segments(count, now_ms)
            except OSError as problem:
                self.warnings.append(str(storage_error("apply retention to", log.directory, problem)))
            except StorageError as problem:
                self.warnings.append(str(problem))
            if log.start_offset != before:
                moved[key] = log.start_offset
        return moved

    def expire_producers(self, now_ms: int) -> int:
        """Forgets silent producers of all logs; how many."""
        return sum(
            log.producer_state.expire(now_ms, self.producer_expiration_ms) for log in self.logs.values()
        )

    def flushes_due(self, now_ms: int) -> list[tuple[Log, FlushJob]]:
        """The logs that ``flush.ms`` or a rolled segment asks to sync, each with its job."""
        due: list[tuple[Log, FlushJob]] = []
        for log in self.logs.values():
            try:
                if log.needs_flush_by(now_ms):
                    due.append((log, log.begin_flush()))
                elif log.recovery_point < log.active.base_offset:
                    due.append((log, log.begin_flush(whole=False)))
            except StorageError as problem:
                self.warnings.append(str(problem))
        return due

    def recovery_point_checkpoints(self) -> list[CheckpointJob]:
        """From where recovery would begin, as it is now, to be written in a thread."""
        return [self._recovery_points_of(directory) for directory in self._working()]

    def start_offset_checkpoints(self) -> list[CheckpointJob]:
        """The start offsets that no file name tells, as they are now, to be written in a thread."""
        return [self._start_offsets_of(directory) for directory in self._working()]

    def high_watermark_checkpoints(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[CheckpointJob]:
        """The high watermarks, to be written in a thread."""
        self.high_watermarks.update(high_watermarks)
        return [self._high_watermarks_of(directory) for directory in self._working()]

    def checkpoint_recovery_points(self) -> None:
        """Writes from where recovery would begin. Raises StorageError; waits for the disk."""
        for job in self.recovery_point_checkpoints():
            job.run()

    def _working(self) -> list[DataDirectory]:
        return [directory for directory in self.directories if not directory.failure]

    def _recovery_points_of(self, directory: DataDirectory) -> CheckpointJob:
        offsets = {key: int(log.recovery_point) for key, log in directory.logs.items()}
        return CheckpointJob(self.files, directory.file(RECOVERY_POINTS), offsets)

    def _start_offsets_of(self, directory: DataDirectory) -> CheckpointJob:
        offsets = {
            key: int(log.start_offset)
            for key, log in directory.logs.items()
            if log.start_offset > log.segments[0].base_offset
        }
        return CheckpointJob(self.files, directory.file(LOG_STARTS), offsets)

    def _high_watermarks_of(self, directory: DataDirectory) -> CheckpointJob:
        offsets = {key: self.high_watermarks[key] for key in directory.logs if key in self.high_watermarks}
        return CheckpointJob(self.files, directory.file(HIGH_WATERMARKS), offsets)

    # -- the end

    def close(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> list[str]:
        """Syncs and closes every log, says that the stop is a clean one, and gives the locks back.

        Texts about what did not work; that directory will be recovered at the next start.
        """
        self.high_watermarks.update(high_watermarks)
        problems: list[str] = []
        try:
            for directory in self._working():
                problems += self._close_directory(directory, now_ms)
        finally:
            self.unlock()
        return problems

    def _close_directory(self, directory: DataDirectory, now_ms: int) -> list[str]:
        """What goes wrong with one log does not keep the others from the disk."""
        problems: list[str] = []
        for log in directory.logs.values():
            try:
                log.close(now_ms)
            except OSError as problem:
                problems.append(str(storage_error("close", log.directory, problem)))
            except StorageError as problem:
                problems.append(str(problem))
        problems += write_checkpoints(
            [
                self._high_watermarks_of(directory),
                self._recovery_points_of(directory),
                self._start_offsets_of(directory),
            ]
        )
        if not problems:
            path = directory.file(CLEAN_SHUTDOWN)
            try:
                write_clean_shutdown(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("write", path, problem)))
        return problems
