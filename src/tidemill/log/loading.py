"""Opens the logs of one data directory at the start of a broker.

After an unclean stop logs are read from their recovery points on, by several threads a directory
(``num.recovery.threads.per.data.dir``); what takes long is told while it goes on. A clean directory is opened
by one thread: there is nothing to read, and Python's threads take turns.

A move between directories that a stop interrupted is taken up where it was:

- a ``-future`` directory goes on being filled, cut to what its partition holds now;
- a partition with the file ``moved-to`` was about to be replaced by the copy in the directory that the file
  names. When the copy has the partition's own name there, it is the partition, and this one is removed;
  otherwise the file is removed and this one is. When that directory failed nobody can tell: the partition
  stays offline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from tidemill.log.checkpoints import (
    CheckpointDamaged,
    read_offsets,
    read_partition_metadata,
    remove_clean_shutdown,
)
from tidemill.log.config import LogConfig
from tidemill.log.directories import DataDirectories, DataDirectory
from tidemill.log.log import Log
from tidemill.log.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    METADATA_DIRECTORY,
    MOVED_TO,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    directory_to_delete,
    is_delete_directory,
    parse_future_directory,
    parse_partition_directory,
    partition_directory,
)
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals
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


class Loading:
    """One start: every working directory of ``directories`` in turn."""

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
        self.threads = threads
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.recovered_bytes = 0

    def load(self, directory: DataDirectory) -> None:
        """Opens the logs of one directory. Raises OSError and StorageError when it cannot be used."""
        names = self.files.list(directory.path)
        directory.clean = CLEAN_SHUTDOWN in names
        directory.recovery_points = self._read_offsets(directory.file(RECOVERY_POINTS))
        directory.start_offsets = self._read_offsets(directory.file(LOG_STARTS))
        self.high_watermarks |= self._read_offsets(directory.file(HIGH_WATERMARKS))
        # From here on a crash is an unclean stop, also one of this start.
        remove_clean_shutdown(self.files, directory.file(CLEAN_SHUTDOWN), directory.path)
        places = [place for name in names if (place := self._place(directory, name)) is not None]
        if directory.clean or self.threads <= 1 or len(places) <= 1:
            opened: Iterable[tuple[Opening, Log]] = (self._open(directory, place) for place in places)
            self._take(directory, places, opened)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="recovery") as pool:
            self._take(directory, places, pool.map(lambda place: self._open(directory, place), places))

    def _place(self, directory: DataDirectory, name: str) -> Place | None:
        """What lies in a directory of this name; None when no log is to be opened there."""
        path = directory.file(name)
        if is_delete_directory(name):
            self.removals.add(path, self.now_ms)
            return None
        future = parse_future_directory(name)
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
        if MOVED_TO in children and self._was_moved(directory, key, path):
            return None
        if not children and key not in directory.recovery_points:
            self.all.warnings.append(f"{path} is empty, a partition is made of it")
        if key in self.all.logs:
            raise StorageError(
                f"partition {key} is in {self.all.logs[key].directory} and in {path}: move one of them away"
            )
        return Place(key, path, False)

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
        if not self.files.exists(target.file(partition_directory(key))):
            self.files.remove(marker)
            return False
        renamed = directory.file(directory_to_delete(key))
        self.files.rename(path, renamed)
        self.removals.add(renamed, self.now_ms)
        return True

    def _read_offsets(self, path: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self.files, path)
        except CheckpointDamaged as problem:
            self.all.warnings.append(f"{problem}; it is left out")
            return {}

    def _open(self, directory: DataDirectory, place: Place) -> tuple[Opening, Log]:
        """Opens one log; in any thread, so that nothing but the opening's own state changes."""
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
            recovery_point=directory.recovery_points.get(place.key, 0),
            start_offset=directory.start_offsets.get(place.key, 0),
            clean=directory.clean,
        )
        opened = opening.open()
        opening.warnings[:0] = warnings
        return opening, opened

    def _take(
        self, directory: DataDirectory, places: list[Place], opened: Iterable[tuple[Opening, Log]]
    ) -> None:
        """Takes over the logs as they come, and tells of the progress when that takes long."""
        told = time.monotonic()
        for count, (place, (opening, one)) in enumerate(zip(places, opened, strict=True), 1):
            self.all.warnings += opening.warnings
            self.recovered_bytes += opening.recovered_bytes
            self.removals.take_over(opening.removals)
            one.removals = self.removals
            (directory.arriving if place.is_future else directory.logs)[place.key] = one
            if not place.is_future:
                self.all.logs[place.key] = one
            if time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                log.info(
                    "%s: %d of %d logs are open, %.1f MB were checked; last %s",
                    directory.path,
                    count,
                    len(places),
                    self.recovered_bytes / 1e6,
                    place.key,
                )

    def settle_arriving(self) -> None:
        """Once all directories are open: drops the copies that no partition here waits for."""
        seen: set[TopicPartition] = set()
        for directory in self.all.working:
            for key, copy in list(directory.arriving.items()):
                current = self.all.logs.get(key)
                if current is None:
                    self.all.warnings.append(f"{copy.directory} is left alone: {key} itself is not here")
                elif key in seen or key in directory.logs:
                    renamed = directory.file(directory_to_delete(key))
                    self.files.rename(copy.directory, renamed)
                    self.removals.add(renamed, self.now_ms)
                else:
                    seen.add(key)
                    # What a power cut took from the partition must not stay in the copy.
                    copy.truncate_to(current.end_offset, self.now_ms)
                    continue
                copy.closed = True
                copy.release()
                del directory.arriving[key]
