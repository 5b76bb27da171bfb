"""All logs of a broker: its data directories, and what is done to every log from time to time.

Nothing here has a timer or a thread: the broker calls these methods from its loop, and runs what waits for
the disk (:class:`~tidemill.log.flush.FlushJob`, :func:`~tidemill.log.removals.remove_path`) in a thread.

The directories themselves are in :mod:`tidemill.log.directories`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from os.path import abspath
from typing import Final

from tidemill.log.checkpoints import (
    CheckpointDamaged,
    read_partition_metadata,
    write_clean_shutdown,
    write_partition_metadata,
)
from tidemill.log.closing import close_logs
from tidemill.log.config import LogConfig
from tidemill.log.directories import DataDirectories, DataDirectory
from tidemill.log.errors import DiskFull, may_pass, storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.loading import Loading
from tidemill.log.log import Log
from tidemill.log.losses import loss_of
from tidemill.log.making import make_log
from tidemill.log.names import (
    CLEAN_SHUTDOWN,
    PARTITION_METADATA,
    directory_to_delete,
    partition_directory,
    stray_directory,
)
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals, remove_path
from tidemill.log.retention import POLICIES, Policy, expired_segments
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files
from tidemill.model.slices import in_one_go
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
        self.promised: dict[TopicPartition, int] = {}
        """Up to where partitions held records at a clean stop: such offsets are not given out again."""
        self.removals = Removals()
        self.recovered_bytes = 0

    # -- loading

    def load(self, now_ms: int, config_of: Callable[[str], LogConfig]) -> None:
        """Opens every log; ``config_of`` gives the settings of a topic. Recovers after an unclean stop.

        A directory that cannot be read is put aside with a warning, and so is the second of two that hold the
        same partition, unless one of them was not in use at the last start. Raises StorageError when none is
        left.
        """
        loading = Loading(self, self.removals, config_of, now_ms, self.recovery_threads)
        loading.run()
        loading.settle_arriving()
        self.high_watermarks |= loading.high_watermarks
        for directory in self.working:
            for checkpoint in (directory.recovery_points, directory.start_offsets, directory.high_watermarks):
                checkpoint.compare()
        self._write_lowered_checkpoints()
        if not self.working:
            raise StorageError("no data directory can be used: " + self.directories[0].failure)
        self.promised |= loading.promised
        self.recovered_bytes = loading.recovered_bytes

    def _write_lowered_checkpoints(self) -> None:
        """Writes the checkpoints that overstate a log which was cut at its opening, before appends to it."""
        for directory in self.working:
            logs = [*directory.logs.values(), *directory.arriving.values()]
            try:
                for checkpoint in self.lowered_checkpoints_of(directory, logs):
                    checkpoint.write()
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
        unsigned = [directory.path for directory in working if directory.is_unsigned]
        if unsigned and not is_new and not is_rebuilt:
            self.missed += 1
            raise StorageError(
                f"{topic_partition} is in no data directory, and no other broker has a replica of it. "
                f"{unsigned[0]} was new at the start: is its disk mounted? Mount it and start again. If what "
                "it held is gone for good, delete the topic and start again"
            )
        places = [
            one for one in working if one.path not in self.cordoned and (is_rebuilt or not one.is_unsigned)
        ]
        directory = self._choose(topic_partition, places)
        self._settle_former(topic_partition, directory, now_ms)
        path = directory.file(partition_directory(topic_partition))
        log = self.make_log(path, topic_partition, topic_id, config, now_ms)
        directory.add(log)
        self.logs[topic_partition] = log
        if self.high_watermarks.get(topic_partition):
            committed = self.high_watermarks[topic_partition]
            self.warnings.append(
                loss_of(path, (), int(log.end_offset), committed, 0, after_clean_stop=directory.clean)
            )
        return log

    def _settle_former(self, topic_partition: TopicPartition, directory: DataDirectory, now_ms: int) -> None:
        """Has a start find nothing of a log that had the name before, once one is made in ``directory``.

        Its files are gone, and the checkpoints would count for those that are made now: the high watermarks
        of all data directories do. In another directory a power cut could bring it back under its name.
        Raises StorageError.
        """
        self._delete_left(topic_partition, now_ms)
        for one in self.working:
            files = one.checkpoints if one is directory else (one.high_watermarks,)
            stale = [checkpoint for checkpoint in files if checkpoint.said(topic_partition)]
            if stale:
                one.note(topic_partition)
            for checkpoint in stale:
                if checkpoint.take():
                    # Another directory that is full keeps no log from this one: it is written again soon.
                    with contextlib.nullcontext() if one is directory else contextlib.suppress(DiskFull):
                        checkpoint.write()
        self.sync_renamed(one for one in self.renamed.get(topic_partition, ()) if one is not directory)
        self.renamed.pop(topic_partition, None)

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
        """A new log at ``path``, which no directory knows of yet. Raises StorageError.

        Where a directory of another topic lies there, its log is opened as what it is: with that topic's id.
        """
        try:
            made = make_log(self.files, path, topic_partition, topic_id, config, self.removals, now_ms)
            if made is not None:
                return made
            topic_id = self._id_in(path, topic_id)
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

    def _id_in(self, path: str, topic_id: bytes) -> bytes:
        """The id of the topic whose log lies at ``path``: ``topic_id`` is written there if there is none."""
        metadata = f"{path}/{PARTITION_METADATA}"
        with contextlib.suppress(CheckpointDamaged):
            found = read_partition_metadata(self.files, metadata)
            if ZERO_ID not in (found, topic_id):
                return found
        if topic_id != ZERO_ID:
            write_partition_metadata(self.files, metadata, topic_id)
        return topic_id

    def assign_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Gives a log the id of its topic, where it has none. Raises StorageError."""
        path = f"{log.directory}/{PARTITION_METADATA}"
        try:
            write_partition_metadata(self.files, path, topic_id)
        except OSError as problem:
            raise storage_error("write", path, problem) from problem
        log.topic_id = topic_id
        log.id_changed += 1

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Removes a log: its directory is renamed now, and removed after ``file.delete.delay.ms``.

        False when there is none. Raises StorageError; the log is still there then, and open, so that the
        next call tries again: a directory that keeps its name and is forgotten would be the next topic's.
        """
        log = self.logs.get(topic_partition)
        if log is None:
            self.promised.pop(topic_partition, None)
            return False
        self._delete_copies(topic_partition, now_ms)
        log.release()
        self.discard(log, now_ms)
        self._forget(log)
        return True

    def _delete_copies(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Removes what was on its way to another data directory: a later move would go on with it."""
        self._delete_left(topic_partition, now_ms)
        for directory in self.working:
            copy = directory.arriving.get(topic_partition)
            if copy is not None:
                copy.release()
                self.discard(copy, now_ms)
                directory.remove(topic_partition, is_copy=True)
                copy.closed = True

    def _delete_left(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Removes what a move that has not ended left: a log that is made there would begin with it."""
        for directory in self.working:
            former = directory.leaving.get(topic_partition)
            if former is not None:
                self.discard(former, now_ms)
                directory.remove_left(topic_partition)

    def set_aside(self, topic_partition: TopicPartition, now_ms: int) -> str:
        """Lets go of a log, and keeps its files; the new path of their directory.

        Raises StorageError; the log is still there then, unless its directory is gone.
        """
        log = self.logs.get(topic_partition)
        if log is None:
            raise StorageError(f"there is no log of {topic_partition} that could be set aside")
        self._delete_copies(topic_partition, now_ms)
        log.release()
        renamed = self._rename(log, stray_directory(topic_partition))
        self._forget(log)
        if not renamed:
            raise StorageError(f"{log.directory} is gone: there is nothing to set aside")
        return renamed

    def _forget(self, log: Log) -> None:
        """Lets go of a log whose directory has lost its name."""
        key = log.topic_partition
        self.promised.pop(key, None)
        del self.logs[key]
        self.directory_of(log).remove(key)
        self.high_watermarks.pop(key, None)
        log.closed = True

    def discard(self, log: Log, now_ms: int) -> None:
        """Renames the directory of a log with closed files, to remove it later. Raises StorageError."""
        renamed = self._rename(log, directory_to_delete(log.topic_partition))
        if renamed:
            self.removals.add(renamed, now_ms + log.config.file_delete_delay_ms)

    def _rename(self, log: Log, name: str) -> str:
        """Gives the directory of a log another name; its new path, empty when somebody has removed it.

        Raises StorageError.
        """
        directory, key = self.directory_of(log), log.topic_partition
        renamed = directory.file(name)
        try:
            self.files.rename(log.directory, renamed)
        except FileNotFoundError:
            renamed = ""
        except OSError as problem:
            raise storage_error("rename", log.directory, problem) from problem
        if log.directory == directory.file(partition_directory(key)):
            self.renamed[key] = (*self.renamed.get(key, ()), directory)
        self.removals.forget_under(log.directory)
        return renamed

    def sync_renamed(self, directories: Iterable[DataDirectory]) -> None:
        """Brings to the disk that directories of partitions have lost their names. Raises StorageError.

        Else a start after a power cut could find a partition twice: as it was, and where it was made anew.
        May run in a thread.
        """
        for directory in directories:
            if directory.failure:
                continue
            try:
                self.files.sync_directory(directory.path)
            except OSError as problem:
                raise storage_error("sync", directory.path, problem) from problem

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
        for key, high_watermark in high_watermarks.items():
            log = self.logs.get(key)
            if log is None or log.cleaning:
                continue  # what a cleaner reads stays until it is done
            before = log.start_offset
            try:
                count = expired_segments(log, high_watermark, now_ms, self.policies)
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

    def producer_id_max(self) -> int:
        """The largest producer id that a log knows; -1 when none knows any."""
        return max((one for log in self.logs.values() for one in log.producer_state.entries), default=-1)

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

    def recovery_point_checkpoints(self) -> list[OffsetCheckpoint]:
        """Where recovery would begin, to be written in a thread: of directories in which that moved."""
        return [one.recovery_points for one in self.working if one.recovery_points.take()]

    def start_offset_checkpoints(
        self, directories: Iterable[DataDirectory] | None = None
    ) -> list[OffsetCheckpoint]:
        """The starts of logs, to be written in a thread: of directories (all) in which one moved."""
        working = self.working
        chosen = working if directories is None else [one for one in directories if one in working]
        return [one.start_offsets for one in chosen if one.start_offsets.take()]

    def log_checkpoints(self, directories: Iterable[DataDirectory]) -> list[OffsetCheckpoint]:
        """The checkpoints by which the next start opens the logs in ``directories``, and finds losses."""
        return in_one_go(self.taking_log_checkpoints(directories))

    def taking_log_checkpoints(
        self, directories: Iterable[DataDirectory]
    ) -> Generator[None, None, list[OffsetCheckpoint]]:
        """As :meth:`log_checkpoints`, with a pause after some logs each."""
        chosen = [one for one in directories if not one.failure]
        taken = []
        for file in [
            file for one in chosen for file in (one.recovery_points, one.start_offsets, one.high_watermarks)
        ]:
            if (yield from file.taking()):
                taken.append(file)
        return taken

    def high_watermark_checkpoints(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[OffsetCheckpoint]:
        """The high watermarks, to be written in a thread: of directories in which one moved.

        ``high_watermarks`` are those that moved, as they are now.
        """
        for key, offset in high_watermarks.items():
            self.set_high_watermark(key, offset)
        return [one.high_watermarks for one in self.working if one.high_watermarks.take()]

    def set_high_watermark(self, topic_partition: TopicPartition, offset: int) -> None:
        """Has the next checkpoint hold it."""
        self.high_watermarks[topic_partition] = offset
        log = self.logs.get(topic_partition)
        if log is not None:
            self.directory_of(log).high_watermarks.note(topic_partition)

    def checkpoint_recovery_points(self) -> None:
        """Writes from where recovery would begin. Raises StorageError; waits for the disk."""
        for checkpoint in self.recovery_point_checkpoints():
            checkpoint.write()

    def lowered_checkpoints_of(self, directory: DataDirectory, logs: Iterable[Log]) -> list[OffsetCheckpoint]:
        """The checkpoints of a directory that overstate one of ``logs``, which are in it."""
        logs = list(logs)
        lowered = []
        if any(map(directory.overstates_recovery_point, logs)):
            lowered.append(directory.recovery_points)
        if any(map(directory.overstates_start, logs)):
            lowered.append(directory.start_offsets)
        if any(map(directory.overstates_clean_end, logs)):
            lowered.append(directory.cleaner_offsets)
        return [checkpoint for checkpoint in lowered if checkpoint.take()]

    # -- the end

    def close(self, now_ms: int, high_watermarks: Mapping[TopicPartition, int]) -> list[str]:
        """Syncs and closes every log, says that the stop is a clean one, and gives the locks back.

        Texts about what did not work; that directory will be recovered at the next start.
        """
        for key, offset in high_watermarks.items():
            self.set_high_watermark(key, offset)
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
        try:
            # Once for all the directories of partitions that were made in it.
            self.files.sync_directory(directory.path)
        except OSError as problem:
            failure = storage_error("sync", directory.path, problem)
            problems.append(str(failure))
            sync_failed = sync_failed or not may_pass(failure)
        if sync_failed:
            problems += map(str, self.distrust(directory))
        files = (directory.high_watermarks, directory.recovery_points, directory.start_offsets)
        checkpoints = [file for file in files if file.take()]
        problems += map(str, write_checkpoints(checkpoints))
        # Where a loss was not heeded yet, the next start has to tell of it.
        if not problems and not directory.may_have_lost:
            path = directory.file(CLEAN_SHUTDOWN)
            try:
                write_clean_shutdown(self.files, path)
            except OSError as problem:
                problems.append(str(storage_error("write", path, problem)))
        return problems
