"""Writes the log starts of followers to their checkpoint, soon after the leader's start has moved.

A follower tells its leader of a new start only once that would hold after a crash: the leader answers
DeleteRecords by that, and the records must not be there again when the follower leads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemill.log.directories import DataDirectory
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from tidemill.replication.manager import ReplicaManager

AGAIN_S = 1.0
"""After a checkpoint that could not be written."""


class StartSaving:
    """Writes the checkpoints of the data directories in which starts have moved, one after the other."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._moved: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, partition: Partition) -> None:
        """Writes down where the log of ``partition`` starts, then tells it."""
        self._moved[partition] = None
        if self._task is None or self._task.done():
            self._task = self._replicas.loop.create_task(self._run())

    def stop(self) -> None:
        """Writes nothing more; a stop in order does."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._moved:
            by_directory: dict[DataDirectory, dict[Partition, int]] = {}
            for partition in self._moved:
                if not partition.deleted and not partition.failed:
                    directory = self._replicas.logs.directory_of(partition.log)
                    by_directory.setdefault(directory, {})[partition] = int(partition.log.start_offset)
            self._moved.clear()
            for directory, starts in by_directory.items():
                if await self._replicas.checkpoints.log_starts_in([directory]):
                    self._moved.update(dict.fromkeys(starts))
                    continue
                for partition, start in starts.items():
                    partition.start_saved(start)
            if self._moved:
                await asyncio.sleep(AGAIN_S)
        self._task = None
