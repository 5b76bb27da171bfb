"""Ends the poll of another thread: a pipe whose reading end that thread polls."""

from __future__ import annotations

import contextlib
import os
import threading


class WakePipe:
    """:meth:`wake` is for any thread, the rest for the one that polls :meth:`fileno`.

    What a thread has to tell it changes before it calls :meth:`wake`. The polling thread looks at it after
    :meth:`drain`.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_awake = False
        self._lock = threading.RLock()
        """Keeps a number that was closed, and may be another file by now, from being written to. A handler of
        signals may call :meth:`wake` in the thread that holds it."""

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._read

    def wake(self) -> None:
        """Makes the pipe readable; nothing once it is closed."""
        if self._is_awake:
            return
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"\0")
                self._is_awake = True

    def drain(self) -> None:
        """Makes the pipe unreadable until the next :meth:`wake`."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)
            self._is_awake = False

    def close(self) -> None:
        """Gives the descriptors back; once is enough."""
        with self._lock:
            if self._write < 0:
                return
            read, write = self._read, self._write
            self._read = self._write = -1
            os.close(read)
            os.close(write)
