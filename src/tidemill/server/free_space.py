"""The free space of the data directories, measured periodically in a thread.

A file system that hangs (a network share without its server) must not delay a scrape of the metrics.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final, NamedTuple

from tidemill.log.log_manager import LogManager

UPDATE_INTERVAL_S: Final = 5.0


class Space(NamedTuple):
    """The space of the file system of a data directory."""

    free_bytes: int
    total_bytes: int


class FreeSpace:
    """The space of each online data directory, as last measured."""

    def __init__(self, logs: LogManager, threads: Executor) -> None:
        self._logs = logs
        self._threads = threads
        self.by_directory: dict[str, Space] = {}

    async def update(self) -> None:
        """Measures again. A directory that cannot be measured is left out."""
        paths = [one.path for one in self._logs.dirs.online]
        loop = asyncio.get_running_loop()
        self.by_directory = await loop.run_in_executor(self._threads, self._spaces, paths)

    def _spaces(self, paths: list[str]) -> dict[str, Space]:
        found: dict[str, Space] = {}
        for path in paths:
            try:
                space = Space(self._logs.files.free_bytes(path), self._logs.files.total_bytes(path))
            except OSError:
                continue
            found[path] = space
        return found
