"""Wakes a thread that polls, through a pipe whose read end the thread polls."""

from __future__ import annotations

import contextlib
import os
import threading


class WakePipe:
    """Any thread may call :meth:`wake`; the other methods are for the thread that polls :meth:`fileno`.

    A thread changes the shared state before it calls :meth:`wake`. The polling thread reads the state after
    :meth:`drain`.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_awake = False
        self._lock = threading.RLock()
        """Prevents writes to a closed descriptor, whose number may be another file by now. Reentrant, since a
        signal handler may call :meth:`wake` in the thread that holds it."""

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._read

    def wake(self) -> None:
        """Makes the pipe readable; no-op once it is closed."""
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
        """Closes the descriptors; further calls do nothing."""
        with self._lock:
            if self._write < 0:
                return
            read, write = self._read, self._write
            self._read = self._write = -1
            os.close(read)
            os.close(write)
