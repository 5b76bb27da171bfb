"""Syncing logs in threads: those that produces wait for, and those that are due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.log.errors import DiskFull, may_pass
from tidemill.log.flush import FlushJob
from tidemill.log.log import Log
from tidemill.model.counters import TimeHistogram
from tidemill.model.errors import StorageError
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from tidemill.replication.manager import ReplicaManager

Result = TypeVar("Result")

FLUSH_AGAIN_S = 1.0
"""After a sync that could not begin for want of descriptors or memory."""


class Flushing:
    """Brings logs to the disk; one sync of a partition at a time."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.times = TimeHistogram()
        """How long syncs took."""
        self.under_way: set[asyncio.Future[Any]] = set()
        self.stopping = False
        self._replicas = replicas
        self._syncing: dict[Log, asyncio.Future[None]] = {}

    def begin(self, partition: Partition) -> None:
        """Syncs the log of ``partition``, then tells it."""
        self._spawn(self._flush(partition))

    def _spawn(self, syncing: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Starts a task that is never cancelled. The stop of the broker waits for its end."""
        task = self._replicas.loop.create_task(syncing)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def _flush(self, partition: Partition) -> None:
        # A log that was moved to another directory meanwhile is closed, and the partition has the copy.
        while not (one := partition.log).closed and not partition.failed and not self.stopping:
            try:
                job = await self._sync(one)
                await self._replicas.checkpoints.lowered(one)
            except StorageError as problem:
                if partition.log is not one:
                    continue
                # A cut or a checkpoint that finds no room is done once there is some. No sync is tried again.
                if not may_pass(problem) and not isinstance(problem, DiskFull):
                    self._replicas.sync_failed(one, problem)
                    return
                self._replicas.full_disks.flush_fails(one.topic_partition, problem)
                await asyncio.sleep(FLUSH_AGAIN_S)
            else:
                if partition.log is one and job.truncations == one.truncations:
                    partition.flushed(job.offset, self._replicas.clock.monotonic_ms())
                    return
                # It was cut meanwhile, here or where it has moved to: that has to be on the disk, too.

    async def _sync(self, one: Log) -> FlushJob:
        """Brings the log to the disk, as it is when this is called."""
        async with self._alone(one):
            job = one.begin_flush()
            await self._run(job)
            one.finish_flush(job, self._replicas.clock.wall_ms())
            return job

    @asynccontextmanager
    async def _alone(self, one: Log) -> AsyncIterator[None]:
        """Has one sync of a log at a time. Raises StorageError when the log was closed before its turn.

        The kernel reports a failed write once: of two overlapping syncs only one would fail.
        """
        while (before := self._syncing.get(one)) is not None:
            await asyncio.wait([before])
            if one.closed:
                raise StorageError(f"{one.directory} was closed before it was synced")
        ended = self._syncing[one] = self._replicas.loop.create_future()
        try:
            yield
        finally:
            del self._syncing[one]
            ended.set_result(None)

    async def _run(self, job: FlushJob) -> None:
        replicas = self._replicas
        began = replicas.clock.monotonic()
        try:
            await replicas.loop.run_in_executor(replicas.syncers, job.run)
        except DiskFull as problem:
            # What it was to write may be gone, unlike that of a cut or checkpoint that waits for room.
            raise StorageError(str(problem)) from problem
        self.times.note(replicas.clock.monotonic() - began)

    async def due(self) -> None:
        """Syncs the logs whose ``flush.ms`` has passed, segments that were rolled, and what has become much.

        Of the latter the new recovery points are written down at once: until then a start after a crash
        would check all of it again.
        """
        replicas = self._replicas
        due = replicas.logs.flushes_due(replicas.clock.wall_ms())
        replicas.report_warnings()
        moved = False
        for one, job in due:
            # A stop cancels this task. A failed sync has to be handled all the same: the next sync succeeds.
            is_done = await asyncio.shield(self._spawn(self._end(one, job)))
            moved = moved or (is_done and job.is_safe_point)
        if moved:
            await replicas.checkpoints.recovery_points()

    async def _end(self, one: Log, job: FlushJob) -> bool:
        """Syncs a log whose flush is due. Returns whether the sync succeeded."""
        try:
            async with self._alone(one):
                await self._run(job)
                one.finish_flush(job, self._replicas.clock.wall_ms())
        except StorageError as problem:
            self._replicas.sync_failed(one, problem)
            return False
        return True
