"""Writes the offset checkpoints: high watermarks, recovery points, log start offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from itertools import chain, islice

from tidemill.log.log import Log
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.model.errors import StorageError
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition

logger = logging.getLogger("tidemill.replication")

MOVED_A_TURN = 1000
"""The number of high watermarks collected in one turn of the event loop: two milliseconds."""


class Checkpoints:
    """The checkpoint files of all data directories. A thread writes them, one write at a time."""

    def __init__(
        self,
        logs: LogManager,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
    ) -> None:
        self.under_way: set[asyncio.Future[list[StorageError]]] = set()
        self._logs = logs
        self._loop = loop
        self._threads = threads
        self.moved: dict[Partition, None] = {}
        """Partitions whose high watermark differs from the checkpoint."""
        self._writing = asyncio.Lock()

    async def write_high_watermarks(self) -> None:
        """Writes the high watermarks that have changed."""
        async with self._writing:
            # Later changes are appended, and left for the next checkpoint.
            for _ in range(len(self.moved) // MOVED_A_TURN):
                for key, offset in self._collect_changed(MOVED_A_TURN).items():
                    self._logs.set_high_watermark(key, offset)
                await asyncio.sleep(0)
            await self._run(self._logs.high_watermark_checkpoints(self._collect_changed(MOVED_A_TURN)))

    def _collect_changed(self, count: int) -> dict[TopicPartition, int]:
        """Collects the current high watermarks of the first ``count`` changed partitions."""
        moved = list(islice(self.moved, count))
        for partition in moved:
            del self.moved[partition]
            partition.read_limits.is_unsaved = False
        return {
            TopicPartition(partition.topic, int(partition.index)): int(partition.high_watermark)
            for partition in moved
            if not partition.deleted
        }

    async def write_recovery_points(self) -> None:
        """Writes the changed recovery points."""
        await self._write(self._logs.recovery_point_checkpoints)

    async def write_overstated(self, one: Log) -> None:
        """Writes the checkpoints with offsets above those of a truncated log, unless an earlier call did.

        Until then, a start would treat records appended after the truncation as synced or compacted, or
        records before the former start offset as deleted. Raises StorageError.
        """
        async with self._writing:
            # An earlier caller may have written it for all waiting callers.
            if one.closed:
                return
            directory = self._logs.dirs.directory_of(one)
            problems = await self._run(self._logs.overstated_checkpoints(directory, [one]))
        if problems:
            raise problems[0]

    async def write_log_starts(self) -> None:
        """Writes the changed log start offsets."""
        await self._write(self._logs.start_offset_checkpoints)

    async def write_log_starts_in(self, directories: Collection[DataDirectory]) -> list[StorageError]:
        """Writes the changed log start offsets of ``directories``. Returns the errors."""
        problems = await self._write(lambda: self._logs.start_offset_checkpoints(directories))
        # Nothing was written to a directory that failed meanwhile.
        return problems + [StorageError(one.offline_reason) for one in directories if one.is_offline]

    async def write_removals(self) -> None:
        """Removes deleted partitions from the checkpoints, and syncs their removal.

        Before that, no partition of the same name may be created: after a crash the offsets of the old one
        would apply to it, and lose its records below them; and a power failure would restore the old
        directory.
        """
        async with self._writing:
            # There may be thousands of logs.
            taking = self._logs.log_checkpoints_in_slices(self._logs.dirs.all)
            await self._run(await run_in_slices(taking))
            await self._sync_renamed()

    async def _sync_renamed(self) -> None:
        """Syncs the renames of partition directories, so that a power failure does not undo them.

        If that fails, it is done before a partition of the same name is created.
        """
        renamed = dict(self._logs.dirs.renamed)
        if not renamed:
            return
        directories = set(chain.from_iterable(renamed.values()))
        syncing = self._loop.run_in_executor(self._threads, self._logs.sync_renamed, directories)
        try:
            await asyncio.shield(syncing)
        except StorageError as problem:
            logger.error("%s", problem)
            return
        for key, known in renamed.items():
            if self._logs.dirs.renamed.get(key) is known:
                del self._logs.dirs.renamed[key]

    async def write(self, take: Callable[[], list[OffsetCheckpoint]]) -> None:
        """Same as the other methods, but raises StorageError: the caller depends on the files."""
        problems = await self._write(take)
        if problems:
            raise problems[0]

    async def _write(self, take: Callable[[], list[OffsetCheckpoint]]) -> list[StorageError]:
        """Collects the offsets here, and writes them in a thread. Returns the errors."""
        async with self._writing:
            return await self._run(take())

    async def _run(self, checkpoints: list[OffsetCheckpoint]) -> list[StorageError]:
        if not checkpoints:
            return []
        writing = self._loop.run_in_executor(self._threads, write_checkpoints, checkpoints)
        self.under_way.add(writing)
        writing.add_done_callback(self.under_way.discard)
        # The caller may be cancelled; the thread continues, and the shutdown waits for it.
        problems = await asyncio.shield(writing)
        for problem in problems:
            logger.error("%s", problem)
        return problems
