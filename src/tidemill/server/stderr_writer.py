"""Standard error of the broker: a thread writes the lines, and no caller waits for the reader.

A pipe whose reader has stopped, and a terminal after ctrl-S, block every write. A log line would block the
event loop. Up to :data:`QUEUED_LINES_MAX` lines wait in a queue. Further lines are lost until the queue is
empty. A log line then reports their number.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger("tidemill.server")

QUEUED_LINES_MAX = 10_000
CLOSE_S_MAX = 1.0
"""How long a process that ends waits until the queued lines are written."""


class StderrWriter(io.RawIOBase):
    """Writes lines to a descriptor in a thread."""

    name = "<stderr>"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A signal may raise an exception anywhere in the main thread. SimpleQueue leaves no lock held then.
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._lost = 0
        self._reported = 0
        """The number of lost lines that a log line has reported."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._write_queued, name="tidemill-stderr", daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Queues lines, or counts them as lost. Returns their number of bytes."""
        lines = bytes(data)
        if self._lost != self._reported or self._queue.qsize() >= QUEUED_LINES_MAX:
            self._lost += lines.count(b"\n")
        else:
            self._queue.put(lines)
        return len(lines)

    def close(self) -> None:
        """Waits until the queued lines are written, for :data:`CLOSE_S_MAX` at most."""
        self._is_ending = True
        self._queue.put(b"")
        self._thread.join(CLOSE_S_MAX)
        super().close()

    def _write_queued(self) -> None:
        while True:
            lines = self._queue.get()
            # Errors (a full disk, a closed pipe) are ignored.
            with contextlib.suppress(OSError):
                while lines:
                    lines = lines[os.write(self._descriptor, lines) :]
            if not self._queue.empty():
                continue
            if self._lost != self._reported:
                count, self._reported = self._lost - self._reported, self._lost
                logger.warning("%d lines before this one are lost: standard error did not take them", count)
            elif self._is_ending:
                return


@contextlib.contextmanager
def background_stderr() -> Iterator[None]:
    """Redirects ``sys.stderr`` to a :class:`StderrWriter`, unless it is a regular file or was replaced."""
    before = sys.__stderr__
    if before is None or sys.stderr is not before or stat.S_ISREG(os.fstat(before.fileno()).st_mode):
        yield
        return
    writer = StderrWriter(before.fileno())
    with (
        io.TextIOWrapper(writer, before.encoding, before.errors, line_buffering=True) as stream,
        contextlib.redirect_stderr(stream),
    ):
        yield
