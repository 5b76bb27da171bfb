"""How much room the data directories have, looked at from time to time beside the event loop.

A file system that hangs (a network share whose server is gone) must not hold up whoever asks for metrics.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final, NamedTuple

from tidemill.log.manager import LogManager

LOOK_S: Final = 5.0


class Space(NamedTuple):
    """Of the file system of a data directory."""

    free_bytes: int
    total_bytes: int


class FreeSpace:
    """The room of each working data directory, as of the last look."""

    def __init__(self, logs: LogManager, threads: Executor) -> None:
        self._logs = logs
        self._threads = threads
        self.by_directory: dict[str, Space] = {}

    async def look(self) -> None:
        """Looks again. A directory whose space cannot be told is left out."""
        paths = [one.path for one in self._logs.working]
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
