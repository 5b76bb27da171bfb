"""Logs full and temporarily failing disks, with a limited rate."""

from __future__ import annotations

import logging
from typing import Final

from tidemill.log.errors import DiskFull
from tidemill.log.log_directories import DataDirectories
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import TopicPartition

logger = logging.getLogger("tidemill.replication")

FREE_BYTES_MIN: Final = 1024 * 1024
"""A directory with less space stays full until a write succeeds: a batch may be this large."""
LOG_INTERVAL_S: Final = 10.0
"""The interval between two log lines about one full disk."""
LOGGED_KEYS_MAX: Final = 10_000


class FullDiskLog:
    """The data directories without space: :attr:`since` has the time of the last rejection in seconds."""

    def __init__(self, logs: DataDirectories, clock: Clock) -> None:
        self.since: dict[str, float] = {}
        self._logs = logs
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._ends: dict[str, int] = {}
        """For directories without a recent rejection: the sum of the log end offsets of all logs."""

    def report_warnings(self) -> None:
        """Logs the warnings of the log layer since the last report."""
        for warning in self._logs.warnings:
            logger.warning("%s", warning)
        self._logs.warnings.clear()

    def append_rejected(self, path: str, problem: DiskFull) -> None:
        """An append to the data directory at ``path`` found no space."""
        self.since[path] = self._clock.monotonic()
        self.log_limited(path, f"produce requests to {path} are rejected: {problem}")

    def move_delayed(self, key: TopicPartition, problem: DiskFull) -> None:
        """A move found no space; it will be retried."""
        for directory in self._logs.all:
            if problem.path.startswith(f"{directory.path}/"):
                self.since[directory.path] = self._clock.monotonic()
        self.log_limited(f"the move of {key}", f"the move of {key} waits for disk space: {problem}")

    def flush_failed(self, key: TopicPartition, problem: StorageError) -> None:
        """A log could not be synced for lack of space, descriptors or memory; it will be retried."""
        self.log_limited(f"the flush of {key}", f"{key} could not be flushed, will retry: {problem}")

    def log_limited(self, about: str, text: str) -> None:
        """Logs ``text``, unless there was a recent line for the same key."""
        now = self._clock.monotonic()
        if now - self._logged.get(about, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            if len(self._logged) >= LOGGED_KEYS_MAX:
                self._logged.clear()
            self._logged[about] = now
            logger.error("%s", text)

    def remove_recovered(self) -> None:
        """Removes directories without a recent rejection that have space or accepted a write.

        Without the second condition, a full disk would count as recovered when its producers have stopped.
        """
        now = self._clock.monotonic()
        for path, last in list(self.since.items()):
            if now - last < 2 * LOG_INTERVAL_S:
                self._ends.pop(path, None)
                continue
            ends = self._ends_in(path)
            if self._has_space(path) or self._ends.setdefault(path, ends) != ends:
                del self.since[path]
                self._ends.pop(path, None)
                logger.info("%s has disk space again", path)

    def _ends_in(self, path: str) -> int:
        return sum(
            int(one.end_offset)
            for directory in self._logs.all
            if directory.path == path
            for one in directory.logs.values()
        )

    def _has_space(self, path: str) -> bool:
        try:
            return int(self._logs.files.free_bytes(path)) >= FREE_BYTES_MIN
        except OSError:
            return True  # The disk has another problem, which is logged elsewhere.
