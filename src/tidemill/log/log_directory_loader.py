"""Opens the logs of all data directories at the start of a broker.

After an unclean shutdown, logs are recovered from their recovery points on, in all directories at the same
time and by several threads each (``num.recovery.threads.per.data.dir``), with progress reports. Reads and
checksums of larger batches release Python's lock, so two threads are faster than one. A directory after a
clean shutdown is opened by one thread: there is nothing to read.

A move between directories that was interrupted is continued:

- A future log continues to be filled after a truncation to its common end with the current log. A future
  log of a former topic of the same name is removed.
- A partition with the file ``moved-to`` was about to be replaced by the future log in the directory that the
  file names. If that log already has the partition's name, or has been moved further, it is the partition,
  and this one is removed. Otherwise the file is removed, and this one is the partition. If that directory is
  offline, the partition stays offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from tidemill.log.checkpoint_files import (
    CheckpointDamaged,
    read_partition_metadata,
    remove_clean_shutdown,
)
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.errors import is_disk_broken, is_disk_full, storage_error
from tidemill.log.failed_sync_marks import NO_BOOT, read_ids
from tidemill.log.file_names import (
    BOOT,
    CLEAN_SHUTDOWN,
    DANGLING,
    METADATA_DIRECTORY,
    MOVED_TO,
    PARTITION_METADATA,
    RECORDS_LOST,
    START,
    directory_to_delete,
    is_delete_directory,
    parse_future_directory,
    parse_partition_directory,
    partition_directory,
    stray_directory,
)
from tidemill.log.future_log_history import truncate_to_common_end
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_directories import DataDirectories, DataDirectory
from tidemill.log.log_loader import LogLoader
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.log.recovery_walk import Stopped
from tidemill.model.errors import StorageError
from tidemill.model.types import ZERO_ID, TopicPartition

logger = logging.getLogger("tidemill.log")

LOST_AND_FOUND: Final = "lost+found"
NAMES_SHOWN: Final = 5
"""The number of names of other directories in a warning."""
PROGRESS_S: Final = 5.0
"""The interval of progress reports about a directory."""


class Place(NamedTuple):
    """A directory of a partition, or of its future log (``is_future``)."""

    key: TopicPartition
    path: str
    is_future: bool
    names: list[str] | None = None
    """The files in it, if known."""


class DirectoryLoading:
    """The state of a data directory while its logs are opened."""

    def __init__(
        self, directory: DataDirectory, places: list[Place], high_watermarks: dict[TopicPartition, int]
    ) -> None:
        self.directory = directory
        self.places = places
        self.high_watermarks = high_watermarks
        """The high watermarks in its checkpoint, which are exact after a clean shutdown."""
        self.openings: list[LogLoader] = []
        """The started loaders."""
        self.opened: list[Future[tuple[LogLoader, Log]]] = []
        """The logs that threads open, in the order of :attr:`places`."""
        self.stopping = False

    @property
    def progress(self) -> str:
        """The progress, as text."""
        done = sum(future.done() for future in self.opened)
        checked = sum(opening.recovered_bytes for opening in self.openings)
        busy = [one for one in self.openings if 0 < one.recovered_bytes < one.progress.bytes_to_check]
        at = ", ".join(
            f"{one.topic_partition} ({100 * one.recovered_bytes // one.progress.bytes_to_check} %)"
            for one in busy
        )
        return (
            f"{done} of {len(self.places)} logs are open, {checked / 1e6:.1f} MB checked"
            f"{'; recovering ' + at if at else ''}"
        )

    def stop(self) -> None:
        """Stops the loaders in progress, from any thread."""
        self.stopping = True
        for future in self.opened:
            future.cancel()
        for opening in self.openings:
            opening.progress.stop = True


class LogDirectoryLoader:
    """Loads the logs of every online directory in ``directories``."""

    def __init__(
        self,
        directories: DataDirectories,
        removals: DelayedFileRemoval,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        threads: int,
    ) -> None:
        self.all = directories
        self.files = directories.files
        self.removals = removals
        self.config_of = config_of
        self.now_ms = now_ms
        self.threads = max(1, threads)
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.promised: dict[TopicPartition, int] = {}
        """High watermarks after a clean shutdown, which are exact."""
        self.recovered_bytes = 0

    def run(self) -> None:
        """Opens every log. A directory that is unusable goes offline."""
        loadings: list[DirectoryLoading] = []
        for directory in self.all.online:
            with self._failing_directory(directory):
                self.all.distrusted |= read_ids(self.files, directory.path)
        for directory in self.all.online:
            with self._failing_directory(directory):
                loadings.append(self._scan_directory(directory))
        self._merge_high_watermarks(loadings)
        unclean = [loading for loading in loadings if not loading.directory.clean and loading.places]
        with ExitStack() as stack:
            for loading in unclean:
                pool = ThreadPoolExecutor(self.threads, thread_name_prefix="recovery")
                stack.enter_context(pool)
                stack.callback(loading.stop)  # Before the pool waits for its threads.
                loading.opened = [pool.submit(self._open, loading, place) for place in loading.places]
            for loading in loadings:
                if loading not in unclean:
                    with self._failing_directory(loading.directory):
                        self._open_clean(loading)
            self._wait(unclean)
            for loading in unclean:
                with self._failing_directory(loading.directory):
                    self._add_logs(loading)

    @contextmanager
    def _failing_directory(self, directory: DataDirectory) -> Iterator[None]:
        """Takes the directory offline if an operation in the block fails."""
        try:
            yield
        except OSError as problem:
            self._fail_directory(directory, storage_error("load", directory.path, problem))
        except StorageError as problem:
            self._fail_directory(directory, problem)

    def _fail_directory(self, directory: DataDirectory, problem: StorageError) -> None:
        self.all.fail_directory(directory.path, str(problem))
        if is_disk_broken(problem):
            self.all.warnings += map(str, self.all.mark_sync_failed(directory))

    def _scan_directory(self, directory: DataDirectory) -> DirectoryLoading:
        """Reads the names and checkpoints of a directory. Raises OSError and StorageError."""
        names = self.files.list(directory.path)
        is_distrusted = directory.meta is not None and directory.meta.directory_id in self.all.distrusted
        directory.clean = CLEAN_SHUTDOWN in names and not is_distrusted
        self._read_offsets(directory.recovery_points)
        self._read_offsets(directory.start_offsets)
        high_watermarks = self._read_offsets(directory.high_watermarks)
        places = [place for name in names if (place := self._place(directory, name)) is not None]
        self._warn_of_other_directories(directory, names)
        self._record_boot(directory, bool(places), is_distrusted)
        # From here on, any crash is an unclean shutdown, including a crash of this start.
        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)
        return DirectoryLoading(directory, places, high_watermarks)

    def _merge_high_watermarks(self, loadings: list[DirectoryLoading]) -> None:
        """Merges the high watermarks. A directory that was not in use adds only those that others lack."""
        in_use: set[TopicPartition] = set()
        for loading in sorted(loadings, key=lambda one: _was_offline(one.directory)):
            offsets = loading.high_watermarks
            if _was_offline(loading.directory):
                offsets = {key: offset for key, offset in offsets.items() if key not in in_use}
            else:
                in_use.update(place.key for place in loading.places if not place.is_future)
            self.high_watermarks |= offsets
            if loading.directory.clean:
                self.promised |= offsets

    def _record_boot(self, directory: DataDirectory, has_logs: bool, is_distrusted: bool) -> None:
        """Detects a reboot of the system since the last shutdown, and records the current boot.

        A failed sync in the directory counts as a reboot. If records may be lost, or there are no logs at
        all, the boot is recorded only after the loss was handled: if this start ends earlier, the next one
        repeats it.
        """
        path = directory.file(BOOT)
        current = self.files.boot_id()
        was_used = directory.was_used = self.files.exists(path)
        known = self.files.read(path).decode(errors="replace") if was_used else ""
        is_distrusted = directory.has_failed = is_distrusted or known == NO_BOOT.decode()
        if is_distrusted:
            self.all.warnings.append(
                f"{directory.path}: a sync failed before the last shutdown: its logs are read from the "
                "disk, and acknowledged records that were not synced may be lost"
            )
        is_same = bool(current) and known == current and not is_distrusted
        directory.is_blank = not was_used and not has_logs
        directory.may_have_lost = not directory.is_blank and not directory.clean and not is_same
        if not directory.is_blank and not directory.may_have_lost and (not was_used or known != current):
            try:
                self.files.replace(path, current.encode())
            except OSError as problem:
                # The former boot id stays: after a crash, more counts as lost than is. Retention may free
                # space.
                if not is_disk_full(problem):
                    raise

    def _open_clean(self, loading: DirectoryLoading) -> None:
        for place in loading.places:
            self._add_log(loading.directory, place, *self._open(loading, place))

    def _wait(self, loadings: list[DirectoryLoading]) -> None:
        """Waits for the threads, and logs their progress."""
        left = {future for loading in loadings for future in loading.opened}
        while left:
            _, left = wait(left, PROGRESS_S)
            for loading in loadings:
                if left & set(loading.opened):
                    logger.info("%s: %s", loading.directory.path, loading.progress)

    def _add_logs(self, loading: DirectoryLoading) -> None:
        """Adds the logs that threads opened. Raises the error of a thread."""
        for future in loading.opened:
            problem = None if future.cancelled() else future.exception()
            if problem is not None and not isinstance(problem, Stopped):
                raise problem
        for place, future in zip(loading.places, loading.opened, strict=True):
            self._add_log(loading.directory, place, *future.result())

    def _place(self, directory: DataDirectory, name: str) -> Place | None:
        """The log in a directory of this name; None if there is none to open."""
        path = directory.file(name)
        if is_delete_directory(name):
            self.removals.add(path, self.now_ms)
            return None
        future = parse_future_directory(name)
        if future is not None and not self.files.exists(path):
            self.all.warnings.append(f"{path} is {DANGLING}: it is ignored")
            return None
        if future is not None:
            return Place(future, path, True)
        key = parse_partition_directory(name)
        if key is None or name == METADATA_DIRECTORY:
            if name == METADATA_DIRECTORY or name.endswith("-stray"):
                self.all.warnings.append(f"{path} is ignored")
            return None
        try:
            children = self.files.list(path)
        except NotADirectoryError:
            return None
        except FileNotFoundError:
            # It may be the partition, and another disk may have its acknowledged records.
            self._mark_ambiguous(
                key,
                f"{path} is {DANGLING}: the partition {key} stays offline until the target of the link is "
                "back and the broker is restarted; remove the link if the target is permanently lost",
            )
            return None
        if MOVED_TO in children and self._was_moved(directory, key, path):
            return None
        if not children and not directory.recovery_points.holds(key):
            self.all.warnings.append(f"{path} is empty: a new partition is created in it")
        return Place(key, path, False, children)

    def _warn_of_other_directories(self, directory: DataDirectory, names: Sequence[str]) -> None:
        """Adds a warning for directories with other names than those of partitions.

        They show that ``log.dirs`` may be wrong.
        """
        others = [
            name
            for name in names
            if not name.startswith((".", LOST_AND_FOUND)) and self._is_other_directory(directory, name)
        ]
        if others:
            more = f" and {len(others) - NAMES_SHOWN} more" if len(others) > NAMES_SHOWN else ""
            self.all.warnings.append(
                f"{directory.path} has directories that are no partitions, and are ignored: "
                f"{', '.join(others[:NAMES_SHOWN])}{more}; if this is not the data directory of a broker, "
                "set another log.dirs"
            )

    def _is_other_directory(self, directory: DataDirectory, name: str) -> bool:
        if parse_partition_directory(name) or parse_future_directory(name) or is_delete_directory(name):
            return False
        try:
            self.files.list(directory.file(name))
        except (NotADirectoryError, FileNotFoundError):
            return False
        return not name.endswith("-stray")

    def _mark_ambiguous(self, key: TopicPartition, reason: str) -> None:
        """Records that the location of a partition cannot be determined."""
        self.all.ambiguous[key] = reason
        self.all.warnings.append(reason)

    def _was_moved(self, directory: DataDirectory, key: TopicPartition, path: str) -> bool:
        """Whether the log at ``path`` has been replaced by a future log in another directory."""
        marker = f"{path}/{MOVED_TO}"
        target = self.all.at_path(self.files.read(marker).decode(errors="replace").strip() or "/")
        if target is None or target.is_offline:
            where = self.files.read(marker).decode(errors="replace").strip()
            self._mark_ambiguous(
                key,
                f"{path} was being moved to {where}, which is offline: it stays offline until that "
                "directory is back",
            )
            return True
        is_there = self.files.exists(target.file(partition_directory(key)))
        if not is_there and not self._has_moved_on(directory, key):
            self.files.remove(marker)
            return False
        renamed = directory.file(directory_to_delete(key))
        self.files.rename(path, renamed)
        self.removals.add(renamed, self.now_ms)
        return True

    def _has_moved_on(self, directory: DataDirectory, key: TopicPartition) -> bool:
        """Whether the future log has been moved further: this log was not removed and lacks later records."""
        others = [one.file(partition_directory(key)) for one in self.all.online if one is not directory]
        return any(self.files.exists(path) and not self.files.exists(f"{path}/{MOVED_TO}") for path in others)

    def _read_offsets(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
        try:
            return checkpoint.load()
        except CheckpointDamaged as problem:
            self.all.warnings.append(f"{problem}; it is ignored")
            return {}

    def _open(self, loading: DirectoryLoading, place: Place) -> tuple[LogLoader, Log]:
        """Opens one log, in any thread: changes only the state of its loader."""
        directory = loading.directory
        warnings: list[str] = []
        try:
            topic_id = read_partition_metadata(self.files, f"{place.path}/{PARTITION_METADATA}")
        except CheckpointDamaged as problem:
            warnings.append(f"{problem}; the topic id is read from the store")
            topic_id = ZERO_ID
        opening = LogLoader(
            self.files,
            place.path,
            place.key,
            self.config_of(place.key.topic),
            removals=DelayedFileRemoval(),
            now_ms=self.now_ms,
            topic_id=topic_id,
            recovery_point=directory.recovery_points.max_offset(place.key),
            start_offset=directory.start_offsets.max_offset(place.key),
            high_watermark=self.high_watermarks.get(place.key, 0),
            clean=directory.clean,
            is_future=place.is_future,
            names=place.names,
            lost_unsynced=directory.may_have_lost,
            # A full disk may have rejected the mark that it was used.
            cleaned_behind_checkpoint=directory.was_used or self.files.exists(directory.file(START)),
        )
        loading.openings.append(opening)
        opening.warnings += warnings
        opening.progress.stop = loading.stopping
        try:
            if directory.may_have_lost:
                self._forget_cached(place)
            opened = opening.open()
        except BaseException:
            loading.stop()  # The other logs are unusable too.
            raise
        return opening, opened

    def _forget_cached(self, place: Place) -> None:
        """Drops the page cache of a log: the system may hold pages that the disk rejected."""
        try:
            for name in self.files.list(place.path):
                self.files.forget_cached(f"{place.path}/{name}")
        except OSError as problem:
            raise storage_error("sync", problem.filename or place.path, problem) from problem

    def _add_log(self, directory: DataDirectory, place: Place, opening: LogLoader, one: Log) -> None:
        """Adds an open log."""
        if not place.is_future:
            found = self.all.logs.get(place.key)
            if found is not None:
                holder = self.all.directory_of(found)
                if _was_offline(holder) == _was_offline(directory):
                    raise StorageError(
                        f"partition {place.key} exists in {found.directory} and in {place.path}: "
                        "move one of them away"
                    )
                if _was_offline(directory):
                    self._make_stray(directory, one, found)
                    return
                holder.remove(place.key)
                self.all.damaged.discard(place.key)
                self.all.logs[place.key] = one
                with self._failing_directory(holder):
                    self._make_stray(holder, found, one)
            self.all.logs[place.key] = one
        directory.add(one, is_future=place.is_future)
        is_noted = RECORDS_LOST in (place.names or ())
        if (opening.has_lost or is_noted) and not place.is_future:
            self.all.damaged.add(place.key)
        self.all.warnings += opening.warnings
        self.recovered_bytes += opening.recovered_bytes
        self.removals.merge(opening.removals)
        one.segment_list.removals = self.removals

    def _make_stray(self, directory: DataDirectory, former: Log, current: Log) -> None:
        """Renames the log of a directory that was not in use if the partition was recreated elsewhere.

        The rename is synced: the next start may count the directory as used. Raises OSError.
        """
        former.closed = True
        former.close_handlers()
        renamed = directory.file(stray_directory(former.topic_partition))
        self.files.rename(former.directory, renamed)
        self.files.sync_directory(directory.path)
        self.all.warnings.append(
            f"{former.directory} was renamed to {renamed}: {directory.path} was offline when "
            f"{former.topic_partition} was recreated in {current.directory}; remove {renamed} if its "
            "records are not needed"
        )

    def resolve_future_logs(self) -> None:
        """Removes the future logs without a partition here, after all directories are open."""
        seen: set[TopicPartition] = set()
        for directory in self.all.online:
            with self._failing_directory(directory):
                self._resolve_future_logs_in(directory, seen)

    def _resolve_future_logs_in(self, directory: DataDirectory, seen: set[TopicPartition]) -> None:
        for key, copy in list(directory.future_logs.items()):
            current = self.all.logs.get(key)
            if current is None:
                self.all.warnings.append(f"{copy.directory} is ignored: this broker has no replica of {key}")
            elif (
                key in seen
                or key in directory.logs
                or _are_of_two_topics(copy, current)
                or not self._truncated_to_common_end(copy, current)
            ):
                renamed = directory.file(directory_to_delete(key))
                self.files.rename(copy.directory, renamed)
                self.removals.add(renamed, self.now_ms)
            else:
                seen.add(key)
                continue
            copy.closed = True
            copy.close_handlers()
            directory.remove(key, is_future=True)

    def _truncated_to_common_end(self, copy: Log, current: Log) -> bool:
        """Truncates a future log to its common end with the current log. Returns False on a read error.

        Records that a power failure removed from the partition must not stay in the future log. Raises
        StorageError if the future log cannot be truncated, or the truncation cannot be synced.
        """
        truncations = copy.truncations
        try:
            truncate_to_common_end(copy, current, self.now_ms)
        except StorageError as problem:
            if copy.has_unfinished_truncation:
                raise
            # The disk of the current log may have failed, which is no reason to take the other disk offline.
            self.all.warnings.append(f"{copy.directory} is removed: {problem}; request the move again")
            return False
        if copy.truncations != truncations:
            copy.flush(self.now_ms)
        return True


def _was_offline(directory: DataDirectory) -> bool:
    """Whether its partitions may have been recreated elsewhere: it was not mounted, or had failed."""
    return directory.is_outdated or directory.has_failed


def _are_of_two_topics(copy: Log, current: Log) -> bool:
    """Whether a future log belongs to a former topic of the same name."""
    return ZERO_ID not in (copy.topic_id, current.topic_id) and copy.topic_id != current.topic_id
