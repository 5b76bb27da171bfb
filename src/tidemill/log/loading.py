"""Opens the logs of the data directories at the start of a broker.

After an unclean stop logs are read from their recovery points on, in all directories at once, by several
threads each (``num.recovery.threads.per.data.dir``); what takes long is told while it goes on. Reads, and the
checksums of larger batches, leave Python's lock to others, so that two threads are faster than one. A clean
directory is opened by one thread: there is nothing to read.

A move between directories that a stop interrupted is taken up where it was:

- a ``-future`` directory goes on being filled, cut to what it has in common with its partition; one of
  another topic of the name is removed;
- a partition with the file ``moved-to`` was about to be replaced by the copy in the directory that the file
  names. When the copy has the partition's own name there, it is the partition, and this one is removed; also
  when it has moved on from there. Otherwise the file is removed and this one is the partition. When that
  directory failed nobody can tell: the partition stays offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from tidemill.log.checkpoints import (
    CheckpointDamaged,
    read_partition_metadata,
    remove_clean_shutdown,
)
from tidemill.log.common_history import rejoin
from tidemill.log.config import LogConfig
from tidemill.log.directories import DataDirectories, DataDirectory
from tidemill.log.errors import is_disk_broken, is_disk_full, storage_error
from tidemill.log.failed_sync_marks import NO_BOOT, read_ids
from tidemill.log.log import Log
from tidemill.log.losses import has_no_segment, loss_of
from tidemill.log.names import (
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
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals
from tidemill.log.walk import Stopped
from tidemill.model.errors import StorageError
from tidemill.model.types import ZERO_ID, TopicPartition

log = logging.getLogger("tidemill.log")

PROGRESS_S: Final = 5.0
"""Between two lines about a directory that takes long."""


class Place(NamedTuple):
    """A directory of a partition: its own, or that of a copy on its way here (``is_future``)."""

    key: TopicPartition
    path: str
    is_future: bool
    names: list[str] | None = None
    """What is in it, where that is known."""


class DirectoryLoading:
    """A data directory while its logs are opened: where they lie, and how far each is."""

    def __init__(
        self, directory: DataDirectory, places: list[Place], high_watermarks: dict[TopicPartition, int]
    ) -> None:
        self.directory = directory
        self.places = places
        self.high_watermarks = high_watermarks
        """Those in its checkpoint; they are exact after a clean stop."""
        self.openings: list[Opening] = []
        """Those that have begun."""
        self.opened: list[Future[tuple[Opening, Log]]] = []
        """Those that are opened by threads, in the order of :attr:`places`."""
        self.stopping = False

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        done = sum(future.done() for future in self.opened)
        checked = sum(opening.recovered_bytes for opening in self.openings)
        busy = [one for one in self.openings if 0 < one.recovered_bytes < one.progress.bytes_to_check]
        at = ", ".join(
            f"{one.topic_partition} ({100 * one.recovered_bytes // one.progress.bytes_to_check} %)"
            for one in busy
        )
        return (
            f"{done} of {len(self.places)} logs are open, {checked / 1e6:.1f} MB were checked"
            f"{'; now at ' + at if at else ''}"
        )

    def stop(self) -> None:
        """Ends the openings that are under way, from any thread."""
        self.stopping = True
        for future in self.opened:
            future.cancel()
        for opening in self.openings:
            opening.progress.stop = True


class Loading:
    """One start: every working directory of ``directories``."""

    def __init__(
        self,
        directories: DataDirectories,
        removals: Removals,
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
        """High watermarks that were exact, as the stop was a clean one."""
        self.recovered_bytes = 0

    def run(self) -> None:
        """Opens every log; a directory that cannot be used is put aside."""
        loadings: list[DirectoryLoading] = []
        for directory in self.all.working:
            with self._putting_aside(directory):
                self.all.distrusted |= read_ids(self.files, directory.path)
        for directory in self.all.working:
            with self._putting_aside(directory):
                loadings.append(self._take_stock(directory))
        self._merge_high_watermarks(loadings)
        unclean = [loading for loading in loadings if not loading.directory.clean and loading.places]
        with ExitStack() as stack:
            for loading in unclean:
                pool = ThreadPoolExecutor(self.threads, thread_name_prefix="recovery")
                stack.enter_context(pool)
                stack.callback(loading.stop)  # before the pool waits for its threads
                loading.opened = [pool.submit(self._open, loading, place) for place in loading.places]
            for loading in loadings:
                if loading not in unclean:
                    with self._putting_aside(loading.directory):
                        self._open_clean(loading)
            self._wait(unclean)
            for loading in unclean:
                with self._putting_aside(loading.directory):
                    self._take_all(loading)

    @contextmanager
    def _putting_aside(self, directory: DataDirectory) -> Iterator[None]:
        """Puts the directory aside when what is done in the block fails by it."""
        try:
            yield
        except OSError as problem:
            self._put_aside(directory, storage_error("load", directory.path, problem))
        except StorageError as problem:
            self._put_aside(directory, problem)

    def _put_aside(self, directory: DataDirectory, problem: StorageError) -> None:
        self.all.fail_directory(directory.path, str(problem))
        if is_disk_broken(problem):
            self.all.warnings += map(str, self.all.distrust(directory))

    def _take_stock(self, directory: DataDirectory) -> DirectoryLoading:
        """Finds out what lies in a directory. Raises OSError and StorageError when it cannot be used."""
        names = self.files.list(directory.path)
        is_distrusted = directory.meta is not None and directory.meta.directory_id in self.all.distrusted
        directory.clean = CLEAN_SHUTDOWN in names and not is_distrusted
        self._read_offsets(directory.recovery_points)
        self._read_offsets(directory.start_offsets)
        high_watermarks = self._read_offsets(directory.high_watermarks)
        places = [place for name in names if (place := self._place(directory, name)) is not None]
        self._note_boot(directory, bool(places), is_distrusted)
        # From here on a crash is an unclean stop, also one of this start.
        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)
        return DirectoryLoading(directory, places, high_watermarks)

    def _merge_high_watermarks(self, loadings: list[DirectoryLoading]) -> None:
        """Takes over the high watermarks; of a directory that was not in use only of what the others lack."""
        in_use: set[TopicPartition] = set()
        for loading in sorted(loadings, key=lambda one: _was_away(one.directory)):
            offsets = loading.high_watermarks
            if _was_away(loading.directory):
                offsets = {key: offset for key, offset in offsets.items() if key not in in_use}
            else:
                in_use.update(place.key for place in loading.places if not place.is_future)
            self.high_watermarks |= offsets
            if loading.directory.clean:
                self.promised |= offsets

    def _note_boot(self, directory: DataDirectory, has_logs: bool, is_distrusted: bool) -> None:
        """Finds out whether the system was started anew since the last stop, and notes this boot.

        A directory in which a sync failed counts as one that the system was started anew with.

        Where something may have been lost, or nothing is there at all, the boot is noted once that was
        heeded: a start that ends before that leaves it to the next one.
        """
        path = directory.file(BOOT)
        current = self.files.boot_id()
        was_used = directory.was_used = self.files.exists(path)
        known = self.files.read(path).decode(errors="replace") if was_used else ""
        is_distrusted = directory.has_failed = is_distrusted or known == NO_BOOT.decode()
        if is_distrusted:
            self.all.warnings.append(
                f"{directory.path}: a sync failed before the last stop: its logs are read from the disk, and "
                "records that were acknowledged and not synced may be lost"
            )
        is_same = bool(current) and known == current and not is_distrusted
        directory.is_blank = not was_used and not has_logs
        directory.may_have_lost = not directory.is_blank and not directory.clean and not is_same
        if not directory.is_blank and not directory.may_have_lost and (not was_used or known != current):
            try:
                self.files.replace(path, current.encode())
            except OSError as problem:
                # The former one stays: after a crash more is taken for lost than is. Retention may make room.
                if not is_disk_full(problem):
                    raise

    def _open_clean(self, loading: DirectoryLoading) -> None:
        for place in loading.places:
            self._take(loading.directory, place, *self._open(loading, place))

    def _wait(self, loadings: list[DirectoryLoading]) -> None:
        """Waits for the threads, and tells of their progress when that takes long."""
        left = {future for loading in loadings for future in loading.opened}
        while left:
            _, left = wait(left, PROGRESS_S)
            for loading in loadings:
                if left & set(loading.opened):
                    log.info("%s: %s", loading.directory.path, loading.progress)

    def _take_all(self, loading: DirectoryLoading) -> None:
        """Takes over the logs that threads opened; raises what one of them met."""
        for future in loading.opened:
            problem = None if future.cancelled() else future.exception()
            if problem is not None and not isinstance(problem, Stopped):
                raise problem
        for place, future in zip(loading.places, loading.opened, strict=True):
            self._take(loading.directory, place, *future.result())

    def _place(self, directory: DataDirectory, name: str) -> Place | None:
        """What lies in a directory of this name; None when no log is to be opened there."""
        path = directory.file(name)
        if is_delete_directory(name):
            self.removals.add(path, self.now_ms)
            return None
        future = parse_future_directory(name)
        if future is not None and not self.files.exists(path):
            self.all.warnings.append(f"{path} is {DANGLING}: it is left alone")
            return None
        if future is not None:
            return Place(future, path, True)
        key = parse_partition_directory(name)
        if key is None or name == METADATA_DIRECTORY:
            if name == METADATA_DIRECTORY or name.endswith("-stray"):
                self.all.warnings.append(f"{path} is left alone: nothing here uses it")
            return None
        try:
            children = self.files.list(path)
        except NotADirectoryError:
            return None
        except FileNotFoundError:
            # It may be the partition's, and then another disk has what was acknowledged.
            self.all.undecided[key] = (
                f"{path} is {DANGLING}: a partition {key} stays offline until what it leads to is back and "
                "the broker is started again; remove the link when that is gone for good"
            )
            self.all.warnings.append(self.all.undecided[key])
            return None
        if MOVED_TO in children and self._was_moved(directory, key, path):
            return None
        if not children and not directory.recovery_points.holds(key):
            self.all.warnings.append(f"{path} is empty, a partition is made of it")
        return Place(key, path, False, children)

    def _was_moved(self, directory: DataDirectory, key: TopicPartition, path: str) -> bool:
        """Whether the log at ``path`` does not count any more, as its copy elsewhere does."""
        marker = f"{path}/{MOVED_TO}"
        target = self.all.at_path(self.files.read(marker).decode(errors="replace").strip() or "/")
        if target is None or target.failure:
            where = self.files.read(marker).decode(errors="replace").strip()
            self.all.undecided[key] = (
                f"{path} was being moved to {where}, which cannot be used: "
                "it stays offline until that directory is back in log.dirs"
            )
            self.all.warnings.append(self.all.undecided[key])
            return True
        is_there = self.files.exists(target.file(partition_directory(key)))
        if not is_there and not self._lies_elsewhere(directory, key):
            self.files.remove(marker)
            return False
        renamed = directory.file(directory_to_delete(key))
        self.files.rename(path, renamed)
        self.removals.add(renamed, self.now_ms)
        return True

    def _lies_elsewhere(self, directory: DataDirectory, key: TopicPartition) -> bool:
        """Whether the copy has moved on: this one could not be removed then, and lacks what came since."""
        others = [one.file(partition_directory(key)) for one in self.all.working if one is not directory]
        return any(self.files.exists(path) and not self.files.exists(f"{path}/{MOVED_TO}") for path in others)

    def _read_offsets(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
        try:
            return checkpoint.load()
        except CheckpointDamaged as problem:
            self.all.warnings.append(f"{problem}; it is left out")
            return {}

    def _open(self, loading: DirectoryLoading, place: Place) -> tuple[Opening, Log]:
        """Opens one log; in any thread, so that nothing but the opening's own state changes."""
        directory = loading.directory
        warnings: list[str] = []
        try:
            topic_id = read_partition_metadata(self.files, f"{place.path}/{PARTITION_METADATA}")
        except CheckpointDamaged as problem:
            warnings.append(f"{problem}; the topic's id is taken from the store")
            topic_id = ZERO_ID
        opening = Opening(
            self.files,
            place.path,
            place.key,
            self.config_of(place.key.topic),
            removals=Removals(),
            now_ms=self.now_ms,
            topic_id=topic_id,
            recovery_point=directory.recovery_points.said(place.key),
            start_offset=directory.start_offsets.said(place.key),
            clean=directory.clean,
            names=place.names,
            lost_unsynced=directory.may_have_lost,
            # A full disk may have kept out the mark that it was used.
            cleaned_behind_checkpoint=directory.was_used or self.files.exists(directory.file(START)),
        )
        loading.openings.append(opening)
        opening.warnings += warnings
        opening.progress.stop = loading.stopping
        if not place.is_future:
            opening.before_loss = lambda: self._note_loss(place)
        try:
            if directory.may_have_lost:
                self._forget_cached(place)
            if has_no_segment(place.names or ()) and self._loss_of(directory, place, opening.start_offset):
                opening.before_loss()  # A segment is made now.
            opened = opening.open()
        except BaseException:
            loading.stop()  # the others cannot be used either
            raise
        return opening, opened

    def _forget_cached(self, place: Place) -> None:
        """Has everything of a log be read from the disk: the system may hold what the disk refused."""
        try:
            for name in self.files.list(place.path):
                self.files.forget_cached(f"{place.path}/{name}")
        except OSError as problem:
            raise storage_error("sync", problem.filename or place.path, problem) from problem

    def _loss_of(self, directory: DataDirectory, place: Place, end_offset: int) -> str:
        return loss_of(
            place.path,
            place.names or (),
            end_offset,
            self.high_watermarks.get(place.key, 0),
            directory.recovery_points.said(place.key),
            after_clean_stop=directory.clean,
        )

    def _note_loss(self, place: Place) -> None:
        """Notes durably that a log has lost records: this start may end before that was heeded.

        Raises StorageError.
        """
        path = f"{place.path}/{RECORDS_LOST}"
        try:
            self.files.replace(path, b"")
        except OSError as problem:
            raise storage_error("write", path, problem) from problem

    def _take(self, directory: DataDirectory, place: Place, opening: Opening, one: Log) -> None:
        """Takes over a log that is open."""
        if not place.is_future:
            found = self.all.logs.get(place.key)
            if found is not None:
                holder = self.all.directory_of(found)
                if _was_away(holder) == _was_away(directory):
                    raise StorageError(
                        f"partition {place.key} is in {found.directory} and in {place.path}: "
                        "move one of them away"
                    )
                if _was_away(directory):
                    self._set_aside(directory, one, found)
                    return
                holder.remove(place.key)
                self.all.damaged.discard(place.key)
                self.all.logs[place.key] = one
                with self._putting_aside(holder):
                    self._set_aside(holder, found, one)
            self.all.logs[place.key] = one
        directory.add(one, is_copy=place.is_future)
        lost = self._loss_of(directory, place, int(one.end_offset))
        if lost and not place.is_future:
            self._note_loss(place)  # The checkpoint that tells of it is written anew.
        is_noted = RECORDS_LOST in (place.names or ())
        if (lost or opening.has_lost or is_noted) and not place.is_future:
            self.all.damaged.add(place.key)
        if lost and not place.is_future:
            if opening.cut_warning >= 0:
                # Each loss gets one warning.
                opening.warnings[opening.cut_warning] += f". {lost}"
            else:
                opening.warnings.append(lost)
        self.all.warnings += opening.warnings
        self.recovered_bytes += opening.recovered_bytes
        self.removals.take_over(opening.removals)
        one.removals = self.removals

    def _set_aside(self, directory: DataDirectory, former: Log, current: Log) -> None:
        """Keeps what a directory that was not in use has of a partition that was made anew elsewhere.

        It is synced: at the next start the directory may count as one that was in use. Raises OSError.
        """
        former.closed = True
        former.release()
        renamed = directory.file(stray_directory(former.topic_partition))
        self.files.rename(former.directory, renamed)
        self.files.sync_directory(directory.path)
        self.all.warnings.append(
            f"{former.directory} was renamed to {renamed}: {directory.path} was offline when "
            f"{former.topic_partition} was made anew in {current.directory}; remove {renamed} when its "
            "records are not needed"
        )

    def settle_arriving(self) -> None:
        """Once all directories are open: drops the copies that no partition here waits for."""
        seen: set[TopicPartition] = set()
        for directory in self.all.working:
            with self._putting_aside(directory):
                self._settle_arriving_in(directory, seen)

    def _settle_arriving_in(self, directory: DataDirectory, seen: set[TopicPartition]) -> None:
        for key, copy in list(directory.arriving.items()):
            current = self.all.logs.get(key)
            if current is None:
                self.all.warnings.append(f"{copy.directory} is left alone: {key} itself is not here")
            elif (
                key in seen
                or key in directory.logs
                or _are_of_two_topics(copy, current)
                or not self._is_rejoined(copy, current)
            ):
                renamed = directory.file(directory_to_delete(key))
                self.files.rename(copy.directory, renamed)
                self.removals.add(renamed, self.now_ms)
            else:
                seen.add(key)
                continue
            copy.closed = True
            copy.release()
            directory.remove(key, is_copy=True)

    def _is_rejoined(self, copy: Log, current: Log) -> bool:
        """Cuts a copy to what its partition has; False where one of them cannot be read.

        What a power cut took from the partition must not stay in the copy, or come back to it. Raises
        StorageError when the copy cannot be cut, or the cut not be brought to the disk.
        """
        truncations = copy.truncations
        try:
            rejoin(copy, current, self.now_ms)
        except StorageError as problem:
            if copy.has_unfinished_cut:
                raise
            # It may be the partition's disk that fails: that is no reason to do without the copy's.
            self.all.warnings.append(f"{copy.directory} is removed: {problem}; request the move again")
            return False
        if copy.truncations != truncations:
            copy.flush(self.now_ms)
        return True


def _was_away(directory: DataDirectory) -> bool:
    """Whether its partitions may have been made anew elsewhere: it was not mounted, or had failed."""
    return directory.is_outdated or directory.has_failed


def _are_of_two_topics(copy: Log, current: Log) -> bool:
    """Whether a copy was made of the partition of a topic that had the name before."""
    return ZERO_ID not in (copy.topic_id, current.topic_id) and copy.topic_id != current.topic_id
