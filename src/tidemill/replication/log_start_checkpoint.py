"""Writes the log start offsets of followers to their checkpoint soon after they follow the leader's.

A follower reports a new log start offset only once it would survive a crash: the leader answers DeleteRecords
by it, and the records must not return if the follower is elected.
"""

from __future__ import annotations

import asyncio

from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.replication.checkpoint_writer import Checkpoints
from tidemill.replication.partition import Partition

RETRY_S = 1.0
"""The delay after a failed write of a checkpoint."""


class LogStartCheckpointWriter:
    """Writes the checkpoints of data directories with changed log start offsets, one after another."""

    def __init__(self, logs: LogManager, checkpoints: Checkpoints, loop: asyncio.AbstractEventLoop) -> None:
        self._logs = logs
        self._checkpoints = checkpoints
        self._loop = loop
        self._moved: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, partition: Partition) -> None:
        """Writes the log start offset of ``partition``, then notifies it."""
        self._moved[partition] = None
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stops writing; a clean shutdown writes the checkpoints itself."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._moved:
            by_directory: dict[DataDirectory, dict[Partition, int]] = {}
            for partition in self._moved:
                if not partition.deleted and not partition.is_offline:
                    directory = self._logs.dirs.directory_of(partition.log)
                    by_directory.setdefault(directory, {})[partition] = int(partition.log.start_offset)
            self._moved.clear()
            for directory, starts in by_directory.items():
                if await self._checkpoints.write_log_starts_in([directory]):
                    self._moved.update(dict.fromkeys(starts))
                    continue
                for partition, start in starts.items():
                    partition.log_start_offset_saved(start)
            if self._moved:
                await asyncio.sleep(RETRY_S)
        self._task = None
