"""Writing appended records back to the disk, a little at a time and in threads.

Left to itself the kernel collects gigabytes of unwritten pages and then holds up whoever writes next, which
would be the loop.

A write-back that fails is as a sync that fails: the system may have dropped what was to be written, and does
not report that again to a file that is opened after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from tidemill.log.errors import may_pass, storage_error
from tidemill.log.log import Log
from tidemill.model.errors import StorageError
from tidemill.replication.partition import Partition

log = logging.getLogger("tidemill.replication")

UNWRITTEN_HIGH_BYTES = 512 * 1024 * 1024
"""With more than this on its way to the disk, produces wait until it is below the low mark again."""
UNWRITTEN_LOW_BYTES = 256 * 1024 * 1024
WRITTEN_TO_MAX = 10_000
"""Segments whose written part is remembered; forgetting one costs writing its pages' checks again."""


class WriteBack:
    """What is on its way to the disk, and whether that is too much."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writers: Executor,
        failed: Callable[[Log, StorageError], None],
    ) -> None:
        """``failed`` is called with each log whose write-back failed."""
        self.under_way: set[asyncio.Future[None]] = set()
        self.listeners: list[Callable[[bool], None]] = []
        """Called with True when the disk falls behind, with False when it has caught up."""
        self._loop = loop
        self._writers = writers
        self._failed = failed
        self._written_to: dict[str, int] = {}
        self._unwritten_bytes = 0
        self._congested = False

    def begin(self, partition: Partition) -> None:
        """Writes what ``partition`` appended since the last time."""
        one = partition.log
        segment = one.active
        begin = self._written_to.get(segment.path, 0)
        end = int(segment.size)
        if begin > end:
            begin = 0  # another file of the same name: the topic was made anew
        if len(self._written_to) > WRITTEN_TO_MAX:
            self._written_to.clear()
        self._written_to[segment.path] = end
        self._unwritten_bytes += end - begin
        self._tell_congestion()
        future = self._loop.run_in_executor(self._writers, segment.file().write_back, begin, end - begin)
        self.under_way.add(future)
        future.add_done_callback(lambda done: self._written(done, one, end - begin))

    def _written(self, done: asyncio.Future[None], one: Log, count: int) -> None:
        self.under_way.discard(done)
        self._unwritten_bytes -= count
        problem = None if done.cancelled() else done.exception()
        if isinstance(problem, OSError):
            failure = storage_error("write back", problem.filename or one.directory, problem)
            if may_pass(failure):
                log.debug("%s; the next sync writes it", failure)
            else:
                self._failed(one, failure)
        elif problem is not None:
            log.error("the write-back of %s has failed, a fault of Tidemill", one.directory, exc_info=problem)
        self._tell_congestion()

    def _tell_congestion(self) -> None:
        over = self._unwritten_bytes > (UNWRITTEN_LOW_BYTES if self._congested else UNWRITTEN_HIGH_BYTES)
        if over != self._congested:
            self._congested = over
            for listener in self.listeners:
                listener(over)
