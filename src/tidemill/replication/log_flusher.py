"""Syncs logs in threads: logs for which produces wait, and logs whose flush is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TypeVar

from tidemill.log.errors import DiskFull, is_transient
from tidemill.log.flush_job import FlushJob
from tidemill.log.log import Log
from tidemill.log.log_manager import LogManager
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import TaskSet
from tidemill.model.time_histogram import TimeHistogram
from tidemill.replication.checkpoint_writer import Checkpoints
from tidemill.replication.full_disk_reports import FullDiskLog
from tidemill.replication.log_failure_handler import LogFailureHandler
from tidemill.replication.partition import Partition

Result = TypeVar("Result")

RETRY_S = 1.0
"""The delay after a sync that could not begin for lack of descriptors or memory."""


class LogFlusher:
    """Flushes logs; one sync of a log at a time."""

    def __init__(
        self,
        logs: LogManager,
        checkpoints: Checkpoints,
        full_disks: FullDiskLog,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        syncers: Executor,
        failures: LogFailureHandler,
    ) -> None:
        self.times = TimeHistogram()
        """The duration of syncs."""
        self.under_way = TaskSet(loop)
        self.stopping = False
        self._logs = logs
        self._checkpoints = checkpoints
        self._full_disks = full_disks
        self._clock = clock
        self._loop = loop
        self._syncers = syncers
        self._failures = failures
        self._syncing: dict[Log, asyncio.Future[None]] = {}

    def begin(self, partition: Partition) -> None:
        """Syncs the log of ``partition``, then notifies it."""
        self.under_way.start(self._flush(partition))

    async def _flush(self, partition: Partition) -> None:
        # A log that was moved to another directory meanwhile is closed, and the partition has the new one.
        while not (one := partition.log).closed and not partition.is_offline and not self.stopping:
            try:
                job = await self._sync(one)
                await self._checkpoints.write_overstated(one)
            except StorageError as problem:
                if partition.log is not one:
                    continue
                # A truncation or checkpoint without disk space is retried later. A failed sync is not
                # repeated.
                if not is_transient(problem) and not isinstance(problem, DiskFull):
                    self._failures.sync_failed(one, problem)
                    return
                self._full_disks.flush_failed(one.topic_partition, problem)
                await asyncio.sleep(RETRY_S)
            else:
                if partition.log is one and job.truncations == one.truncations:
                    partition.flushed(job.offset, self._clock.monotonic_ms())
                    return
                # It was truncated meanwhile, here or in its new directory: that has to be synced, too.

    async def _sync(self, one: Log) -> FlushJob:
        """Syncs the current content of the log."""
        async with self._exclusive(one):
            job = one.begin_flush()
            await self._run(one, job)
            return job

    @asynccontextmanager
    async def _exclusive(self, one: Log) -> AsyncIterator[None]:
        """Allows one sync of a log at a time. Raises StorageError if the log is closed before its turn.

        The kernel reports a failed write once: of two overlapping syncs only one would fail.
        """
        while (before := self._syncing.get(one)) is not None:
            await asyncio.wait([before])
            if one.closed:
                raise StorageError(f"{one.directory} was closed before it was synced")
        ended = self._syncing[one] = self._loop.create_future()
        try:
            yield
        finally:
            del self._syncing[one]
            ended.set_result(None)

    async def _run(self, one: Log, job: FlushJob) -> None:
        began = self._clock.monotonic()
        try:
            await self._loop.run_in_executor(self._syncers, job.run)
        except DiskFull as problem:
            # Its data may be lost, unlike that of a truncation or checkpoint without space.
            raise StorageError(str(problem)) from problem
        self.times.record(self._clock.monotonic() - began)
        one.finish_flush(job, self._clock.wall_ms())

    async def flush_due(self) -> None:
        """Syncs the logs whose ``flush.ms`` has passed, rolled segments, and logs with many unsynced bytes.

        For the latter the new recovery points are written at once: otherwise a start after a crash would
        validate all of them again.
        """
        due = self._logs.flushes_due(self._clock.wall_ms())
        self._full_disks.report_warnings()
        moved = False
        for one, job in due:
            # A shutdown cancels this task. A failed sync must still be handled: the next sync would succeed.
            is_done = await asyncio.shield(self.under_way.start(self._flush_one(one, job)))
            moved = moved or (is_done and job.is_safe_point)
        if moved:
            await self._checkpoints.write_recovery_points()

    async def _flush_one(self, one: Log, job: FlushJob) -> bool:
        """Syncs a log whose flush is due. Returns whether the sync succeeded."""
        try:
            async with self._exclusive(one):
                await self._run(one, job)
        except StorageError as problem:
            self._failures.sync_failed(one, problem)
            return False
        return True
