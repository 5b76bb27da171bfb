"""Manages all logs of a broker: loads them, creates and deletes them, and runs their periodic tasks.

This module has no timers or threads. The broker calls these methods on its event loop, and runs blocking work
(:class:`~tidemill.log.flush_job.FlushJob`, :func:`~tidemill.log.delayed_file_removal.remove_path`) in
threads. The directories themselves are in :mod:`tidemill.log.log_directories`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from os.path import abspath
from typing import Final

from tidemill.log.checkpoint_files import (
    CheckpointDamaged,
    read_partition_metadata,
    write_clean_shutdown,
    write_partition_metadata,
)
from tidemill.log.close_logs import close_logs
from tidemill.log.delayed_file_removal import DelayedFileRemoval, remove_path
from tidemill.log.errors import DiskFull, StorageErrors, is_transient, storage_error
from tidemill.log.file_names import (
    CLEAN_SHUTDOWN,
    PARTITION_METADATA,
    directory_to_delete,
    partition_directory,
    stray_directory,
)
from tidemill.log.flush_job import FlushJob
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_creation import make_log
from tidemill.log.log_directories import DataDirectories, DataDirectory
from tidemill.log.log_directory_loader import LogDirectoryLoader
from tidemill.log.log_loader import LogLoader
from tidemill.log.lost_records import describe_loss
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.log.retention import POLICIES, Policy, expired_segments
from tidemill.model.errors import StorageError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_at_once, slices_of
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition

PRODUCER_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000
UNSYNCED_BYTES_MAX: Final = 1 << 30
"""The bytes of all logs together that a start after a crash may have to validate: a second or two of reads.
"""
PREFERRED_MAX: Final = 100_000
"""The number of partitions whose requested directory is remembered until they are created."""


class LogManager:
    """The logs of one broker, by partition: :attr:`logs`."""

    def __init__(
        self,
        files: Files,
        directories: Iterable[str],
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        policies: Iterable[Policy] = POLICIES,
        recovery_threads: int = 1,
        cordoned: Iterable[str] = (),
    ) -> None:
        self.dirs = DataDirectories(files, directories)
        self.files = files
        self.logs = self.dirs.logs
        """The log of each partition in an online directory; see :attr:`DataDirectories.logs`."""
        self.producer_expiration_ms = producer_expiration_ms
        self.policies = tuple(policies)
        self.recovery_threads = recovery_threads
        names = list(cordoned)
        self.cordoned = {one.path for one in self.dirs.all if "*" in names} | set(map(abspath, names))
        """Paths of data directories in which no partitions are created."""
        self.unsynced_bytes_max = UNSYNCED_BYTES_MAX
        self.missed = 0
        """The number of partitions in no data directory while the disk of one directory may be missing."""
        self._preferred: dict[TopicPartition, str] = {}
        self.promised: dict[TopicPartition, int] = {}
        """The log end offsets at a clean shutdown: offsets below are not assigned again."""
        self.removals = DelayedFileRemoval()
        self.recovered_bytes = 0

    # Loading

    def load(self, now_ms: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log; ``config_of`` returns the settings of a topic. Recovers after an unclean shutdown.

        A directory that cannot be read goes offline with a warning, and so does the second of two directories
        with the same partition, unless one of them was not in use at the last start. Raises StorageError if
        none is left.
        """
        loading = LogDirectoryLoader(self.dirs, self.removals, config_of, now_ms, self.recovery_threads)
        loading.run()
        loading.resolve_future_logs()
        self.dirs.high_watermarks |= loading.high_watermarks
        for directory in self.dirs.online:
            for checkpoint in (directory.recovery_points, directory.start_offsets, directory.high_watermarks):
                checkpoint.compare()
        self._write_lowered_checkpoints()
        if not self.dirs.online:
            raise StorageError("no data directory is online: " + self.dirs.all[0].offline_reason)
        self.promised |= loading.promised
        self.recovered_bytes = loading.recovered_bytes

    def _write_lowered_checkpoints(self) -> None:
        """Writes checkpoints with offsets above those of a log that was truncated while opening, before
        appends.
        """
        for directory in self.dirs.online:
            logs = [*directory.logs.values(), *directory.future_logs.values()]
            try:
                for checkpoint in self.overstated_checkpoints(directory, logs):
                    checkpoint.write()
            except StorageError as problem:
                self.dirs.fail_directory(directory.path, str(problem))

    # Partitions

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a partition; None if it does not exist or its directory failed."""
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
        """Creates a log in the online data directory with the fewest partitions. Raises StorageError.

        As in Apache Kafka, each partition counts as one whatever its size, and a future log counts in its
        directory.

        Returns an existing log unchanged. A log that is not new (``is_new``) may be in a failed directory:
        then none is created.
        """
        found = self.logs.get(topic_partition)
        if found is not None:
            return found
        online = self.dirs.online
        if not online:
            raise StorageError(f"{topic_partition} cannot be created: no data directory is online")
        if is_new:
            self.promised.pop(topic_partition, None)
            self.dirs.high_watermarks.pop(topic_partition, None)
        if not is_new and len(online) < len(self.dirs.all):
            failed = ", ".join(directory.path for directory in self.dirs.all if directory.is_offline)
            raise StorageError(f"{topic_partition} may be in {failed}, which failed: it stays offline")
        if topic_partition in self.dirs.ambiguous and not is_new:
            raise StorageError(self.dirs.ambiguous[topic_partition])
        is_rebuilt = not is_new and self.dirs.may_rebuild(topic_partition)
        unwritten = [directory.path for directory in online if directory.has_unwritten_meta]
        if unwritten and not is_new and not is_rebuilt:
            self.missed += 1
            raise StorageError(
                f"{topic_partition} is in no data directory, and no other broker has a replica of it. "
                f"{unwritten[0]} was new at the start: is its disk mounted? Mount it and restart. If its "
                "data is permanently lost, delete the topic and restart"
            )
        places = [
            one
            for one in online
            if one.path not in self.cordoned and (is_rebuilt or not one.has_unwritten_meta)
        ]
        directory = self._choose_directory(topic_partition, places)
        self._remove_former(topic_partition, directory, now_ms)
        path = directory.file(partition_directory(topic_partition))
        log = self.make_log(path, topic_partition, topic_id, config, now_ms)
        directory.add(log)
        self.logs[topic_partition] = log
        if self.dirs.high_watermarks.get(topic_partition):
            committed = self.dirs.high_watermarks[topic_partition]
            self.dirs.warnings.append(
                describe_loss(path, (), int(log.end_offset), committed, 0, after_clean_stop=directory.clean)
            )
        return log

    def _remove_former(self, topic_partition: TopicPartition, directory: DataDirectory, now_ms: int) -> None:
        """Removes the traces of a former log of the same name, before one is created in ``directory``.

        Its files are removed, but its checkpointed offsets would apply to the new log: high watermarks of all
        data directories do. In another directory a power failure could restore it under its name. Raises
        StorageError.
        """
        self._delete_replaced(topic_partition, now_ms)
        for one in self.dirs.online:
            files = one.checkpoints if one is directory else (one.high_watermarks,)
            stale = [checkpoint for checkpoint in files if checkpoint.max_offset(topic_partition)]
            if stale:
                one.mark_changed(topic_partition)
            for checkpoint in stale:
                if checkpoint.collect():
                    # A full disk of another directory does not prevent this log: the file is written again
                    # soon.
                    with contextlib.nullcontext() if one is directory else contextlib.suppress(DiskFull):
                        checkpoint.write()
        self.sync_renamed(one for one in self.dirs.renamed.get(topic_partition, ()) if one is not directory)
        self.dirs.renamed.pop(topic_partition, None)

    def _choose_directory(
        self, topic_partition: TopicPartition, online: list[DataDirectory]
    ) -> DataDirectory:
        """The directory for a new log: the requested one, else the one with the fewest partitions."""
        if not online:
            raise StorageError(
                f"{topic_partition} cannot be created: every online directory is in cordoned.log.dirs"
            )
        requested = self._preferred.pop(topic_partition, "")
        for directory in online:
            if directory.path == requested:
                return directory
        return min(online, key=lambda candidate: len(candidate.logs) + len(candidate.future_logs))

    def set_preferred_directory(self, topic_partition: TopicPartition, path: str) -> None:
        """Remembers the data directory at ``path`` for a partition that is not here yet."""
        if len(self._preferred) < PREFERRED_MAX:
            self._preferred[topic_partition] = path

    def make_log(
        self,
        path: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        now_ms: int,
        *,
        is_future: bool = False,
    ) -> Log:
        """Creates a log at ``path``, without adding it to a directory. Raises StorageError.

        If the directory of another topic exists there, opens its log with the id of that topic.
        """
        with StorageErrors("create the partition directory", path):
            made = make_log(self.files, path, topic_partition, topic_id, config, self.removals, now_ms)
            if made is not None:
                return made
            topic_id = self._id_in(path, topic_id)
            opening = LogLoader(
                self.files,
                path,
                topic_partition,
                config,
                removals=self.removals,
                now_ms=now_ms,
                topic_id=topic_id,
                is_future=is_future,
            )
            return opening.open()

    def _id_in(self, path: str, topic_id: bytes) -> bytes:
        """The id of the topic whose log is at ``path``. Writes ``topic_id`` if it has none."""
        metadata = f"{path}/{PARTITION_METADATA}"
        with contextlib.suppress(CheckpointDamaged):
            found = read_partition_metadata(self.files, metadata)
            if ZERO_ID not in (found, topic_id):
                return found
        if topic_id != ZERO_ID:
            write_partition_metadata(self.files, metadata, topic_id)
        return topic_id

    def assign_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Sets the topic id of a log that has none. Raises StorageError."""
        path = f"{log.directory}/{PARTITION_METADATA}"
        with StorageErrors("write", path):
            write_partition_metadata(self.files, path, topic_id)
        log.topic_id = topic_id
        log.durability.id_changed += 1

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Deletes a log: renames its directory now, and removes it after ``file.delete.delay.ms``.

        Returns False if there is none. Raises StorageError, and then keeps the log open for the next attempt:
        a directory that kept its name would become that of the next topic.
        """
        log = self.logs.get(topic_partition)
        if log is None:
            self.promised.pop(topic_partition, None)
            return False
        self._delete_future_logs(topic_partition, now_ms)
        log.close_handlers()
        self.discard(log, now_ms)
        self._forget(log)
        return True

    def _delete_future_logs(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Removes the future log, which a later move would continue."""
        self._delete_replaced(topic_partition, now_ms)
        for directory in self.dirs.online:
            copy = directory.future_logs.get(topic_partition)
            if copy is not None:
                copy.close_handlers()
                self.discard(copy, now_ms)
                directory.remove(topic_partition, is_future=True)
                copy.closed = True

    def _delete_replaced(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Removes the old directory of an unfinished move: a new log there would begin with its records."""
        for directory in self.dirs.online:
            former = directory.replaced_logs.get(topic_partition)
            if former is not None:
                self.discard(former, now_ms)
                directory.remove_replaced(topic_partition)

    def set_aside(self, topic_partition: TopicPartition, now_ms: int) -> str:
        """Removes a log but keeps its files. Returns the new path of its directory.

        Raises StorageError, and then keeps the log, unless its directory is missing.
        """
        log = self.logs.get(topic_partition)
        if log is None:
            raise StorageError(f"{topic_partition} has no log to set aside")
        self._delete_future_logs(topic_partition, now_ms)
        log.close_handlers()
        renamed = self._rename(log, stray_directory(topic_partition))
        self._forget(log)
        if not renamed:
            raise StorageError(f"{log.directory} does not exist: there is nothing to set aside")
        return renamed

    def _forget(self, log: Log) -> None:
        """Removes a log whose directory was renamed."""
        key = log.topic_partition
        self.promised.pop(key, None)
        del self.logs[key]
        self.dirs.directory_of(log).remove(key)
        self.dirs.high_watermarks.pop(key, None)
        log.closed = True

    def discard(self, log: Log, now_ms: int) -> None:
        """Renames the directory of a log with closed files, to remove it later. Raises StorageError."""
        renamed = self._rename(log, directory_to_delete(log.topic_partition))
        if renamed:
            self.removals.add(renamed, now_ms + log.config.file_delete_delay_ms)

    def _rename(self, log: Log, name: str) -> str:
        """Renames the directory of a log. Returns the new path; empty if the directory does not exist.

        Raises StorageError.
        """
        directory, key = self.dirs.directory_of(log), log.topic_partition
        renamed = directory.file(name)
        try:
            self.files.rename(log.directory, renamed)
        except FileNotFoundError:
            renamed = ""
        except OSError as problem:
            raise storage_error("rename", log.directory, problem) from problem
        if log.directory == directory.file(partition_directory(key)):
            self.dirs.renamed[key] = (*self.dirs.renamed.get(key, ()), directory)
        self.removals.drop_under(log.directory)
        return renamed

    def sync_renamed(self, directories: Iterable[DataDirectory]) -> None:
        """Syncs the renames of partition directories. Raises StorageError.

        Otherwise a start after a power failure could find a partition twice: the old log and the recreated
        one. May run in a thread.
        """
        for directory in directories:
            if directory.is_offline:
                continue
            with StorageErrors("sync", directory.path):
                self.files.sync_directory(directory.path)

    # Periodic tasks

    def remove_paths(self, paths: Iterable[str]) -> list[str]:
        """Removes paths. Returns error texts. May run in a thread."""
        problems = []
        for path in paths:
            try:
                remove_path(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("remove", path, problem)))
        return problems

    def cleanup_logs(
        self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Removes segments by the retention policies. Returns the new log start offsets.

        Removes only records before the high watermark, and nothing from a log without one: its state in the
        cluster is not known yet. A log whose disk fails is skipped with a warning.
        """
        moved: dict[TopicPartition, int] = {}
        for key, high_watermark in high_watermarks.items():
            log = self.logs.get(key)
            if log is None or log.cleaning:
                continue  # A cleaner reads its segments.
            before = log.start_offset
            try:
                count = expired_segments(log, high_watermark, now_ms, self.policies)
                log.delete_old_segments(count, now_ms)
            except OSError as problem:
                self.dirs.warnings.append(str(storage_error("apply retention to", log.directory, problem)))
            except StorageError as problem:
                self.dirs.warnings.append(str(problem))
            if log.start_offset != before:
                moved[key] = log.start_offset
        return moved

    def remove_expired_producers_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Removes expired producers of all logs, with pauses between many logs or producers."""
        for logs in slices_of(list(self.logs.values()), ITEMS_PER_SLICE):
            for log in logs:
                yield from log.producer_state.remove_expired_in_slices(now_ms, self.producer_expiration_ms)
            yield

    def producer_id_max(self) -> int:
        """The largest producer id in any log; -1 if there is none."""
        return max((one for log in self.logs.values() for one in log.producer_state.entries), default=-1)

    def flushes_due(self, now_ms: int) -> list[tuple[Log, FlushJob]]:
        """The logs to sync now, each with its job.

        These are due by ``flush.ms`` or a rolled segment, and the logs with most unsynced bytes if a recovery
        would have to read more than :attr:`unsynced_bytes_max`.
        """
        due: list[tuple[Log, FlushJob]] = []
        unsynced: list[tuple[int, Log]] = []
        for log in self.logs.values():
            try:
                if log.is_flush_due_at(now_ms):
                    due.append((log, log.begin_flush()))
                elif log.recovery_point < log.active.base_offset:
                    due.append((log, log.begin_flush(whole=False)))
                elif log.recovery_point < log.end_offset:
                    unsynced.append((int(log.unsynced_bytes), log))
            except StorageError as problem:
                self.dirs.warnings.append(str(problem))
        return due + self._safe_points(unsynced)

    def _safe_points(self, unsynced: list[tuple[int, Log]]) -> list[tuple[Log, FlushJob]]:
        """Jobs that halve the bytes that a recovery reads, if there are too many."""
        total = sum(count for count, _ in unsynced)
        if total <= self.unsynced_bytes_max:
            return []
        due: list[tuple[Log, FlushJob]] = []
        for count, log in sorted(unsynced, key=itemgetter(0), reverse=True):
            try:
                due.append((log, log.begin_safe_point()))
            except StorageError as problem:
                self.dirs.warnings.append(str(problem))
            total -= count
            if total <= self.unsynced_bytes_max // 2:
                break
        return due

    def recovery_point_checkpoints(self) -> list[OffsetCheckpoint]:
        """The recovery point checkpoints that have changed, to be written in a thread."""
        return [one.recovery_points for one in self.dirs.online if one.recovery_points.collect()]

    def start_offset_checkpoints(
        self, directories: Iterable[DataDirectory] | None = None
    ) -> list[OffsetCheckpoint]:
        """The changed log start offset checkpoints of ``directories`` (default: all), for a thread."""
        online = self.dirs.online
        chosen = online if directories is None else [one for one in directories if one in online]
        return [one.start_offsets for one in chosen if one.start_offsets.collect()]

    def log_checkpoints(self, directories: Iterable[DataDirectory]) -> list[OffsetCheckpoint]:
        """The checkpoints with which the next start opens the logs in ``directories`` and detects losses."""
        return run_at_once(self.log_checkpoints_in_slices(directories))

    def log_checkpoints_in_slices(
        self, directories: Iterable[DataDirectory]
    ) -> Generator[None, None, list[OffsetCheckpoint]]:
        """Same as :meth:`log_checkpoints`, with pauses between many logs."""
        chosen = [one for one in directories if not one.is_offline]
        taken = []
        for file in [
            file for one in chosen for file in (one.recovery_points, one.start_offsets, one.high_watermarks)
        ]:
            if (yield from file.collect_in_slices()):
                taken.append(file)
        return taken

    def high_watermark_checkpoints(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[OffsetCheckpoint]:
        """The high watermark checkpoints that have changed, to be written in a thread.

        ``high_watermarks`` are the current values of those that advanced.
        """
        for key, offset in high_watermarks.items():
            self.set_high_watermark(key, offset)
        return [one.high_watermarks for one in self.dirs.online if one.high_watermarks.collect()]

    def set_high_watermark(self, topic_partition: TopicPartition, offset: int) -> None:
        """Sets a high watermark for the next checkpoint."""
        self.dirs.high_watermarks[topic_partition] = offset
        log = self.logs.get(topic_partition)
        if log is not None:
            self.dirs.directory_of(log).high_watermarks.mark_changed(topic_partition)

    def checkpoint_recovery_points(self) -> None:
        """Writes the recovery point checkpoints. Raises StorageError. Waits for the disk."""
        for checkpoint in self.recovery_point_checkpoints():
            checkpoint.write()

    def overstated_checkpoints(self, directory: DataDirectory, logs: Iterable[Log]) -> list[OffsetCheckpoint]:
        """The checkpoints of a directory with higher offsets than one of its ``logs``."""
        logs = list(logs)
        lowered = []
        if any(map(directory.overstates_recovery_point, logs)):
            lowered.append(directory.recovery_points)
        if any(map(directory.overstates_start, logs)):
            lowered.append(directory.start_offsets)
        if any(map(directory.overstates_clean_end, logs)):
            lowered.append(directory.cleaner_offsets)
        return [checkpoint for checkpoint in lowered if checkpoint.collect()]

    # Shutdown

    def close(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> list[str]:
        """Syncs and closes every log, records the clean shutdown, and releases the locks.

        Returns error texts; the next start recovers these directories.
        """
        for key, offset in high_watermarks.items():
            self.set_high_watermark(key, offset)
        online = self.dirs.online
        try:
            with ThreadPoolExecutor(max(1, len(online)), thread_name_prefix="close") as pool:
                closing = pool.map(lambda directory: self._close_directory(directory, now_ms), online)
                return [problem for problems in closing for problem in problems]
        finally:
            self.dirs.unlock()

    def _close_directory(self, directory: DataDirectory, now_ms: int) -> list[str]:
        """Closes the logs of a directory. An error of one log does not affect the others."""
        logs = [*directory.logs.values(), *directory.future_logs.values()]
        problems, sync_failed = close_logs(logs, now_ms, len(self.dirs.online))
        try:
            # One sync for all partition directories that were created in it.
            self.files.sync_directory(directory.path)
        except OSError as problem:
            failure = storage_error("sync", directory.path, problem)
            problems.append(str(failure))
            sync_failed = sync_failed or not is_transient(failure)
        if sync_failed:
            problems += map(str, self.dirs.mark_sync_failed(directory))
        files = (directory.high_watermarks, directory.recovery_points, directory.start_offsets)
        checkpoints = [file for file in files if file.collect()]
        problems += map(str, write_checkpoints(checkpoints))
        # If a loss was not handled yet, the next start has to report it.
        if not problems and not directory.may_have_lost:
            path = directory.file(CLEAN_SHUTDOWN)
            try:
                write_clean_shutdown(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("write", path, problem)))
        return problems
