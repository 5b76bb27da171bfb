"""What is told of disks that are full or fail now and then: not with every request that meets it."""

from __future__ import annotations

import logging
from typing import Final

from tidemill.log.directories import DataDirectories
from tidemill.log.errors import DiskFull
from tidemill.model.errors import StorageError
from tidemill.model.ports import Clock
from tidemill.model.types import TopicPartition

log = logging.getLogger("tidemill.replication")

ROOM_BYTES_LEAST: Final = 1024 * 1024
"""A directory with less room stays full until something was written to it: a batch may have as many bytes."""
FULL_TOLD_S: Final = 10.0
"""A disk that stays full is told of so often."""
TOLD_PATHS_MAX: Final = 10_000


class FullDisks:
    """The data directories that had no room lately: :attr:`since` holds when that was, in seconds."""

    def __init__(self, logs: DataDirectories, clock: Clock) -> None:
        self.since: dict[str, float] = {}
        self._logs = logs
        self._clock = clock
        self._told: dict[str, float] = {}
        self._ends: dict[str, int] = {}
        """Of directories of which nobody was refused lately, the ends of all logs together."""

    def refused(self, path: str, problem: DiskFull) -> None:
        """Appends to the data directory at ``path`` found no room."""
        self.since[path] = self._clock.monotonic()
        self.tell(path, f"produces to {path} are refused: {problem}")

    def move_waits(self, key: TopicPartition, problem: DiskFull) -> None:
        """A move found no room; it will be tried again."""
        for directory in self._logs.directories:
            if problem.path.startswith(f"{directory.path}/"):
                self.since[directory.path] = self._clock.monotonic()
        self.tell(f"the move of {key}", f"the move of {key} waits for room: {problem}")

    def flush_fails(self, key: TopicPartition, problem: StorageError) -> None:
        """A log could not be synced for want of room, descriptors or memory; it will be tried again."""
        self.tell(f"the flush of {key}", f"{key} could not be flushed; it is tried again: {problem}")

    def tell(self, about: str, text: str) -> None:
        """Logs ``text``, unless something was told about the same a moment ago."""
        now = self._clock.monotonic()
        if now - self._told.get(about, -FULL_TOLD_S) >= FULL_TOLD_S:
            if len(self._told) >= TOLD_PATHS_MAX:
                self._told.clear()
            self._told[about] = now
            log.error("%s", text)

    def forget_old(self) -> None:
        """Forgets directories of which nobody was refused lately, and which have room or took something.

        Without the second a disk would count as well as soon as its producers have given up.
        """
        now = self._clock.monotonic()
        for path, last in list(self.since.items()):
            if now - last < 2 * FULL_TOLD_S:
                self._ends.pop(path, None)
                continue
            ends = self._ends_in(path)
            if self._has_room(path) or self._ends.setdefault(path, ends) != ends:
                del self.since[path]
                self._ends.pop(path, None)
                log.info("nothing was refused for want of room in %s lately", path)

    def _ends_in(self, path: str) -> int:
        return sum(
            int(one.end_offset)
            for directory in self._logs.directories
            if directory.path == path
            for one in directory.logs.values()
        )

    def _has_room(self, path: str) -> bool:
        try:
            return int(self._logs.files.free_bytes(path)) >= ROOM_BYTES_LEAST
        except OSError:
            return True  # Its disk has more than a want of room, which others tell.
