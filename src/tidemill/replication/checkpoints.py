"""Writing down what a start after a crash begins from: high watermarks, recovery points, starts of logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from itertools import chain, islice

from tidemill.log.directories import DataDirectory
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.model.errors import StorageError
from tidemill.model.slices import with_pauses
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition

log = logging.getLogger("tidemill.replication")

MOVED_A_TURN = 1000
"""High watermarks that are taken in one turn of the loop: two milliseconds."""


class Checkpoints:
    """The checkpoint files of all data directories. One writing at a time, in a thread: they share files."""

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

    async def high_watermarks(self) -> None:
        """Writes down the high watermarks, where some have moved since."""
        async with self._writing:
            # What moves meanwhile comes to the end of them, and is left to the next checkpoint.
            for _ in range(len(self.moved) // MOVED_A_TURN):
                for key, offset in self._take_moved(MOVED_A_TURN).items():
                    self._logs.set_high_watermark(key, offset)
                await asyncio.sleep(0)
            await self._run(self._logs.high_watermark_checkpoints(self._take_moved(MOVED_A_TURN)))

    def _take_moved(self, count: int) -> dict[TopicPartition, int]:
        """The first ``count`` of them, as they are now."""
        moved = list(islice(self.moved, count))
        for partition in moved:
            del self.moved[partition]
            partition.has_moved = False
        return {
            TopicPartition(partition.topic, int(partition.index)): int(partition.high_watermark)
            for partition in moved
            if not partition.deleted
        }

    async def recovery_points(self) -> None:
        """Writes down from where recovery would begin."""
        await self._write(self._logs.recovery_point_checkpoints)

    async def lowered(self, one: Log) -> None:
        """Writes the checkpoints that overstate a log which was cut; none where an earlier call has done it.

        Until then a start would take records for synced and compacted that are appended in the place of those
        that were cut, or for deleted where they lie before the former start. Raises StorageError.
        """
        async with self._writing:
            # An earlier caller may have written it for all that waited.
            if one.closed:
                return
            directory = self._logs.directory_of(one)
            problems = await self._run(self._logs.lowered_checkpoints_of(directory, [one]))
        if problems:
            raise problems[0]

    async def log_starts(self) -> None:
        """Writes down where logs start."""
        await self._write(self._logs.start_offset_checkpoints)

    async def log_starts_in(self, directories: Collection[DataDirectory]) -> list[StorageError]:
        """Writes down where the logs in ``directories`` start; what is wrong where that could not be done."""
        problems = await self._write(lambda: self._logs.start_offset_checkpoints(directories))
        # Nothing is written to a directory that failed meanwhile.
        return problems + [StorageError(one.failure) for one in directories if one.failure]

    async def removals(self) -> None:
        """Takes deleted partitions out of the checkpoints, and brings their removal to the disk.

        Until that is done none of the same name may be made: after a crash the offsets of the old one would
        count for it, and records below them be lost; and a power cut would bring its directory back.
        """
        async with self._writing:
            # There may be thousands.
            taking = self._logs.taking_log_checkpoints(self._logs.directories)
            await self._run(await with_pauses(taking))
            await self._sync_renamed()

    async def _sync_renamed(self) -> None:
        """Syncs the directories that partitions were removed from, so that a power cut brings none back.

        Where that fails, it is done before a partition of such a name is made.
        """
        renamed = dict(self._logs.renamed)
        if not renamed:
            return
        directories = set(chain.from_iterable(renamed.values()))
        syncing = self._loop.run_in_executor(self._threads, self._logs.sync_renamed, directories)
        try:
            await asyncio.shield(syncing)
        except StorageError as problem:
            log.error("%s", problem)
            return
        for key, known in renamed.items():
            if self._logs.renamed.get(key) is known:
                del self._logs.renamed[key]

    async def write(self, take: Callable[[], list[OffsetCheckpoint]]) -> None:
        """As the others, but StorageError is raised: what comes next counts on the files."""
        problems = await self._write(take)
        if problems:
            raise problems[0]

    async def _write(self, take: Callable[[], list[OffsetCheckpoint]]) -> list[StorageError]:
        """Takes the offsets here, and writes them in a thread; what is wrong where that could not be done."""
        async with self._writing:
            return await self._run(take())

    async def _run(self, checkpoints: list[OffsetCheckpoint]) -> list[StorageError]:
        if not checkpoints:
            return []
        writing = self._loop.run_in_executor(self._threads, write_checkpoints, checkpoints)
        self.under_way.add(writing)
        writing.add_done_callback(self.under_way.discard)
        # Whoever waits may be cancelled; the thread goes on, and the stop waits for it.
        problems = await asyncio.shield(writing)
        for problem in problems:
            log.error("%s", problem)
        return problems
