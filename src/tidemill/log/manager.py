"""All logs of a broker: its data directories, and what is done to every log from time to time.

Nothing here has a timer or a thread: the broker calls these methods from its loop, and runs what waits for
the disk (:class:`~tidemill.log.flush.FlushJob`, :func:`~tidemill.log.removals.remove_path`) in a thread.

The directories themselves are in :mod:`tidemill.log.directories`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from os.path import abspath
from typing import Final

from tidemill.log.checkpoints import (
    CheckpointJob,
    write_checkpoints,
    write_clean_shutdown,
    write_partition_metadata,
)
from tidemill.log.closing import close_logs
from tidemill.log.config import LogConfig
from tidemill.log.directories import DataDirectories, DataDirectory
from tidemill.log.errors import storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.loading import Loading
from tidemill.log.log import Log
from tidemill.log.losses import loss_of
from tidemill.log.making import make_log
from tidemill.log.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    directory_to_delete,
    partition_directory,
    stray_directory,
)
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals, remove_path
from tidemill.log.retention import POLICIES, Policy, expired_segments
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition

PRODUCER_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000
UNSYNCED_BYTES_MAX: Final = 1 << 30
"""What a start after a crash may have to read and check, of all logs together: a second or two of a disk."""
PREFERRED_MAX: Final = 100_000
"""Partitions that are not here, and whose directory is remembered for when they come."""


class LogManager(DataDirectories):
    """The logs of one broker by partition: :attr:`logs`."""

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
        super().__init__(files, directories)
        self.producer_expiration_ms = producer_expiration_ms
        self.policies = tuple(policies)
        self.recovery_threads = recovery_threads
        names = list(cordoned)
        self.cordoned = {one.path for one in self.directories if "*" in names} | set(map(abspath, names))
        """Paths of data directories that get no new partitions."""
        self.unsynced_bytes_max = UNSYNCED_BYTES_MAX
        self.missed = 0
        """Partitions that are in no data directory, while one of these may be the place of another disk."""
        self._preferred: dict[TopicPartition, str] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.promised: dict[TopicPartition, int] = {}
        """Up to where partitions held records at a clean stop: such offsets are not given out again."""
        self.removals = Removals()
        self.recovered_bytes = 0

    # -- loading

    def load(self, now_ms: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log; ``config_of`` gives the settings of a topic. Recovers after an unclean stop.

        A directory that cannot be read is put aside with a warning, and so is the second of two that hold the
        same partition. Raises StorageError when none is left.
        """
        loading = Loading(self, self.removals, config_of, now_ms, self.recovery_threads)
        loading.run()
        loading.settle_arriving()
        self._lower_recovery_points()
        if not self.working:
            raise StorageError("no data directory can be used: " + self.directories[0].failure)
        self.high_watermarks |= loading.high_watermarks
        self.promised |= loading.promised
        self.recovered_bytes = loading.recovered_bytes

    def _lower_recovery_points(self) -> None:
        """Where a log was cut as it was opened, says so before anything is appended to it."""
        for directory in self.working:
            logs = [*directory.logs.values(), *directory.arriving.values()]
            try:
                for job in self.lowered_checkpoints_of(directory, logs):
                    job.run()
            except StorageError as problem:
                self.fail_directory(directory.path, str(problem))

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
        """A new log, in the working data directory that has the fewest partitions. Raises StorageError.

        As in Apache Kafka a partition counts as one whatever its size, and a copy that is on its way into a
        directory counts there.

        A log that is there already is returned as it is. One that is not new (``is_new``) may lie in a
        directory that failed: then none is made beside it.
        """
        found = self.logs.get(topic_partition)
        if found is not None:
            return found
        working = self.working
        if not working:
            raise StorageError(f"no data directory works: {topic_partition} cannot be created")
        if is_new:
            self.promised.pop(topic_partition, None)
            self.high_watermarks.pop(topic_partition, None)
        if not is_new and len(working) < len(self.directories):
            failed = ", ".join(directory.path for directory in self.directories if directory.failure)
            raise StorageError(f"{topic_partition} may lie in {failed}, which failed: it stays offline")
        if topic_partition in self.undecided and not is_new:
            raise StorageError(self.undecided[topic_partition])
        is_rebuilt = not is_new and self.may_rebuild(topic_partition)
        strange = [directory.path for directory in working if directory.is_strange]
        if strange and not is_new and not is_rebuilt:
            self.missed += 1
            raise StorageError(
                f"{topic_partition} is in no data directory, and no other broker has a replica of it. "
                f"{strange[0]} was new at the start: is its disk mounted? Mount it and start again. If what "
                "it held is gone for good, delete the topic and start again"
            )
        places = [
            one for one in working if one.path not in self.cordoned and (is_rebuilt or not one.is_strange)
        ]
        directory = self._choose(topic_partition, places)
        if topic_partition in directory.recovery_points or topic_partition in directory.start_offsets:
            # Its files are gone, and the checkpoints would count for those that are made now.
            self.recovery_points_of(directory).run()
            self.start_offsets_of(directory).run()
        path = directory.file(partition_directory(topic_partition))
        log = self.make_log(path, topic_partition, topic_id, config, now_ms)
        directory.logs[topic_partition] = log
        self.logs[topic_partition] = log
        if self.high_watermarks.get(topic_partition):
            self.warnings.append(
                loss_of(path, (), int(log.end_offset), self.high_watermarks[topic_partition], 0)
            )
        return log

    def _choose(self, topic_partition: TopicPartition, working: list[DataDirectory]) -> DataDirectory:
        """The directory for a new log: where it was asked for, else the one with the fewest."""
        if not working:
            raise StorageError(
                f"{topic_partition} cannot be created: cordoned.log.dirs names every directory that works"
            )
        wanted = self._preferred.pop(topic_partition, "")
        for directory in working:
            if directory.path == wanted:
                return directory
        return min(working, key=lambda candidate: len(candidate.logs) + len(candidate.arriving))

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Puts a partition that is not here yet into the data directory at ``path``, when it comes."""
        if len(self._preferred) < PREFERRED_MAX:
            self._preferred[topic_partition] = path

    def make_log(
        self, path: str, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, now_ms: int
    ) -> Log:
        """A new log at ``path``, which no directory knows of yet. Raises StorageError."""
        try:
            made = make_log(self.files, path, topic_partition, topic_id, config, self.removals, now_ms)
            if made is not None:
                return made
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
            return opening.open()
        except OSError as problem:
            raise storage_error("create the partition directory", path, problem) from problem

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
        log = self._forget(topic_partition)
        if log is None:
            return False
        for other in self.working:
            copy = other.arriving.pop(topic_partition, None)
            if copy is not None:
                copy.closed = True
                copy.release()
                self.discard(copy, now_ms)
        self.discard(log, now_ms)
        return True

    def set_aside(self, topic_partition: TopicPartition) -> str:
        """Lets go of a log, and keeps its files; the new name of their directory. Raises StorageError."""
        log = self._forget(topic_partition)
        if log is None:
            raise StorageError(f"there is no log of {topic_partition} that could be set aside")
        self.removals.forget_under(log.directory)
        renamed = self.directory_of(log).file(stray_directory(topic_partition))
        try:
            self.files.rename(log.directory, renamed)
        except OSError as problem:
            raise storage_error("rename", log.directory, problem) from problem
        return renamed

    def _forget(self, topic_partition: TopicPartition) -> Log | None:
        self.promised.pop(topic_partition, None)
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return None
        directory = self.directory_of(log)
        directory.logs.pop(topic_partition, None)
        directory.recovery_points.pop(topic_partition, None)
        directory.start_offsets.pop(topic_partition, None)
        directory.marks_changed += 1
        self.high_watermarks.pop(topic_partition, None)
        log.closed = True
        log.release()
        return log

    def discard(self, log: Log, now_ms: int) -> None:
        """Renames the directory of a log that is closed, and removes it later. Raises StorageError."""
        directory = self.directory_of(log)
        self.removals.forget_under(log.directory)
        renamed = directory.file(directory_to_delete(log.topic_partition))
        try:
            self.files.rename(log.directory, renamed)
        except OSError as problem:
            raise storage_error("rename", log.directory, problem) from problem
        self.removals.add(renamed, now_ms + log.config.file_delete_delay_ms)

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

        Only what lies before a partition's high watermark goes, and nothing of a log without one: nobody has
        said yet, or can say, what is to become of it. A log whose disk fails is left out, with a warning.
        """
        moved: dict[TopicPartition, int] = {}
        for key, log in self.logs.items():
            if log.cleaning or key not in high_watermarks:
                continue  # what a cleaner reads stays until it is done
            before = log.start_offset
            try:
                count = expired_segments(log, high_watermarks[key], now_ms, self.policies)
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
        """The logs that are to be synced now, each with its job.

        Those that ``flush.ms`` or a rolled segment asks for; and when a recovery would have to read more than
        :attr:`unsynced_bytes_max`, those with most of it.
        """
        due: list[tuple[Log, FlushJob]] = []
        unsynced: list[tuple[int, Log]] = []
        for log in self.logs.values():
            try:
                if log.needs_flush_by(now_ms):
                    due.append((log, log.begin_flush()))
                elif log.recovery_point < log.active.base_offset:
                    job = log.begin_flush(whole=False)
                    job.is_safe_point = True
                    due.append((log, job))
                elif log.recovery_point < log.end_offset:
                    unsynced.append((int(log.unsynced_bytes), log))
            except StorageError as problem:
                self.warnings.append(str(problem))
        return due + self._safe_points(unsynced)

    def _safe_points(self, unsynced: list[tuple[int, Log]]) -> list[tuple[Log, FlushJob]]:
        """Jobs that halve what a recovery reads, when that is too much."""
        total = sum(count for count, _ in unsynced)
        if total <= self.unsynced_bytes_max:
            return []
        due: list[tuple[Log, FlushJob]] = []
        for count, log in sorted(unsynced, key=itemgetter(0), reverse=True):
            try:
                due.append((log, log.begin_safe_point()))
            except StorageError as problem:
                self.warnings.append(str(problem))
            total -= count
            if total <= self.unsynced_bytes_max // 2:
                break
        return due

    def recovery_point_checkpoints(self) -> list[CheckpointJob]:
        """From where recovery would begin, as it is now, to be written in a thread."""
        return [self.recovery_points_of(directory) for directory in self.working]

    def start_offset_checkpoints(self) -> list[CheckpointJob]:
        """The start offsets that no file name tells, as they are now, to be written in a thread."""
        return [self.start_offsets_of(directory) for directory in self.working]

    def high_watermark_checkpoints(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[CheckpointJob]:
        """The high watermarks, to be written in a thread, of directories where those that moved lie.

        Of the others the files are as they should be.
        """
        for key, offset in high_watermarks.items():
            self.set_high_watermark(key, offset)
        return [
            self._high_watermarks_of(one) for one in self.working if one.marks_stored != one.marks_changed
        ]

    def set_high_watermark(self, topic_partition: TopicPartition, offset: int) -> None:
        """Has the next checkpoint hold it."""
        self.high_watermarks[topic_partition] = offset
        log = self.logs.get(topic_partition)
        if log is not None:
            self.directory_of(log).marks_changed += 1

    def checkpoint_recovery_points(self) -> None:
        """Writes from where recovery would begin. Raises StorageError; waits for the disk."""
        for job in self.recovery_point_checkpoints():
            job.run()

    def recovery_points_of(self, directory: DataDirectory) -> CheckpointJob:
        """Of one directory, as they are now; with those of logs that are on their way into it."""
        logs = directory.arriving | directory.logs
        offsets = {key: int(log.recovery_point) for key, log in logs.items()}
        path = directory.file(RECOVERY_POINTS)
        return CheckpointJob(self.files, path, offsets, directory.stored_recovery_points)

    def lowered_checkpoints_of(self, directory: DataDirectory, logs: Iterable[Log]) -> list[CheckpointJob]:
        """The checkpoints of a directory that overstate one of ``logs``, which are in it."""
        jobs = []
        logs = list(logs)
        if any(map(directory.overstates_recovery_point, logs)):
            jobs.append(self.recovery_points_of(directory))
        if any(map(directory.overstates_start, logs)):
            jobs.append(self.start_offsets_of(directory))
        return jobs

    def start_offsets_of(self, directory: DataDirectory) -> CheckpointJob:
        """Of one directory, as they are now; with those of logs that are on their way into it.

        Also of a log that starts with its first segment: a power cut may bring those before it back.
        """
        offsets = {
            key: int(log.start_offset)
            for key, log in (directory.arriving | directory.logs).items()
            if log.start_offset > 0
        }
        path = directory.file(LOG_STARTS)
        return CheckpointJob(self.files, path, offsets, directory.stored_start_offsets)

    def _high_watermarks_of(self, directory: DataDirectory) -> CheckpointJob:
        known, keys, changes = dict(self.high_watermarks), list(directory.logs), directory.marks_changed

        def stored(offsets: dict[TopicPartition, int], is_done: bool) -> None:
            if is_done:
                directory.marks_stored = changes

        return CheckpointJob(
            self.files,
            directory.file(HIGH_WATERMARKS),
            # In the thread: there are many, and copies are made at once.
            lambda: {key: known[key] for key in keys if key in known},
            stored,
        )

    # -- the end

    def close(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> list[str]:
        """Syncs and closes every log, says that the stop is a clean one, and gives the locks back.

        Texts about what did not work; that directory will be recovered at the next start.
        """
        self.high_watermarks.update(high_watermarks)
        working = self.working
        try:
            with ThreadPoolExecutor(max(1, len(working)), thread_name_prefix="close") as pool:
                closing = pool.map(lambda directory: self._close_directory(directory, now_ms), working)
                return [problem for problems in closing for problem in problems]
        finally:
            self.unlock()

    def _close_directory(self, directory: DataDirectory, now_ms: int) -> list[str]:
        """What goes wrong with one log does not keep the others from the disk."""
        logs = [*directory.logs.values(), *directory.arriving.values()]
        problems, sync_failed = close_logs(logs, now_ms, len(self.working))
        if sync_failed:
            problems += map(str, self.distrust(directory))
        try:
            # Once for all the directories of partitions that were made in it.
            self.files.sync_directory(directory.path)
        except OSError as problem:
            problems.append(str(storage_error("sync", directory.path, problem)))
        checkpoints = [
            self._high_watermarks_of(directory),
            self.recovery_points_of(directory),
            self.start_offsets_of(directory),
        ]
        problems += map(str, write_checkpoints(checkpoints))
        # Where a loss was not heeded yet, the next start has to tell of it.
        if not problems and not directory.may_have_lost:
            path = directory.file(CLEAN_SHUTDOWN)
            try:
                write_clean_shutdown(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("write", path, problem)))
        return problems
