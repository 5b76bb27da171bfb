"""Writing appended records back to the disk, a little at a time and in threads.

Left to itself the kernel collects gigabytes of unwritten pages and then holds up whoever writes next, which
would be the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from tidemill.replication.partition import Partition

log = logging.getLogger("tidemill.replication")

UNWRITTEN_HIGH_BYTES = 512 * 1024 * 1024
"""With more than this on its way to the disk, produces wait until it is below the low mark again."""
UNWRITTEN_LOW_BYTES = 256 * 1024 * 1024
WRITTEN_TO_MAX = 10_000
"""Segments whose written part is remembered; forgetting one costs writing its pages' checks again."""


class WriteBack:
    """What is on its way to the disk, and whether that is too much."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writers: Executor) -> None:
        self.listeners: list[Callable[[bool], None]] = []
        """Called with True when the disk falls behind, with False when it has caught up."""
        self._loop = loop
        self._writers = writers
        self._written_to: dict[str, int] = {}
        self._unwritten_bytes = 0
        self._congested = False

    def begin(self, partition: Partition) -> None:
        """Writes what ``partition`` appended since the last time."""
        segment = partition.log.active
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
        future.add_done_callback(lambda done: self._written(done, end - begin))

    def _written(self, done: asyncio.Future[None], count: int) -> None:
        self._unwritten_bytes -= count
        if not done.cancelled() and done.exception() is not None:
            log.debug("writing back failed; the next sync will tell", exc_info=done.exception())
        self._tell_congestion()

    def _tell_congestion(self) -> None:
        over = self._unwritten_bytes > (UNWRITTEN_LOW_BYTES if self._congested else UNWRITTEN_HIGH_BYTES)
        if over != self._congested:
            self._congested = over
            for listener in self.listeners:
                listener(over)
