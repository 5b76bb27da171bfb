"""Writes appended records back to the disk in small steps, in threads.

Otherwise the kernel collects gigabytes of dirty pages and then blocks the next writer, which would be the
event loop.

A failed write-back is equivalent to a failed sync: the system may have dropped unwritten data, and does not
report that again to a file that is opened later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from tidemill.log.errors import is_transient, storage_error
from tidemill.log.log import Log
from tidemill.replication.log_failure_handler import LogFailureHandler
from tidemill.replication.partition import Partition

logger = logging.getLogger("tidemill.replication")

UNWRITTEN_HIGH_BYTES = 512 * 1024 * 1024
"""Above this number of bytes being written, produces wait until it falls below the low mark."""
UNWRITTEN_LOW_BYTES = 256 * 1024 * 1024
WRITTEN_TO_MAX = 10_000
"""The number of segments whose written position is remembered; a forgotten one is written again."""


class WriteBack:
    """The bytes being written to disk, and whether there are too many."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writers: Executor,
        failures: LogFailureHandler,
    ) -> None:
        self.under_way: set[asyncio.Future[None]] = set()
        self.listeners: list[Callable[[bool], None]] = []
        """Called with True when the disk falls behind, with False when it has caught up."""
        self._loop = loop
        self._writers = writers
        self._failures = failures
        self._written_to: dict[str, int] = {}
        self._unwritten_bytes = 0
        self._congested = False

    def begin(self, partition: Partition) -> None:
        """Writes back the bytes appended to ``partition`` since the last call."""
        one = partition.log
        segment = one.active
        begin = self._written_to.get(segment.path, 0)
        end = int(segment.size)
        if begin > end:
            begin = 0  # Another file of the same name: the topic was recreated.
        if len(self._written_to) > WRITTEN_TO_MAX:
            self._written_to.clear()
        self._written_to[segment.path] = end
        self._unwritten_bytes += end - begin
        self._notify_congestion()
        future = self._loop.run_in_executor(self._writers, segment.file().write_back, begin, end - begin)
        self.under_way.add(future)
        future.add_done_callback(lambda done: self._written(done, one, end - begin))

    def _written(self, done: asyncio.Future[None], one: Log, count: int) -> None:
        self.under_way.discard(done)
        self._unwritten_bytes -= count
        problem = None if done.cancelled() else done.exception()
        if isinstance(problem, OSError):
            failure = storage_error("write back", problem.filename or one.directory, problem)
            if is_transient(failure):
                logger.debug("%s; the next sync writes it", failure)
            else:
                self._failures.sync_failed(one, failure)
        elif problem is not None:
            logger.error("internal error in the write-back of %s", one.directory, exc_info=problem)
        self._notify_congestion()

    def _notify_congestion(self) -> None:
        over = self._unwritten_bytes > (UNWRITTEN_LOW_BYTES if self._congested else UNWRITTEN_HIGH_BYTES)
        if over != self._congested:
            self._congested = over
            for listener in self.listeners:
                listener(over)
