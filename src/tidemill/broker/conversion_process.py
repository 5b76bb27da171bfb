"""The worker process that converts records between message formats, so that the event loop is not blocked.

It receives jobs from its standard input, which is a socket, and sends the results over it, one after another.
It ends with the socket, so that it does not outlive its broker. The messages of both directions, which
:mod:`tidemill.broker.conversion_jobs` builds::

    size of the head u32 | size of the data u32 | marshal of the head | data

The data is in the window, memory that both processes map, until the other process has copied it. Data larger
than the window follows on the socket instead. Both processes run the same program. The format is not stored
anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import mmap
import os
import signal
import socket
import struct
import sys

from tidemill.broker.conversion_jobs import JOBS, Message, Value

SIZES = struct.Struct("!II")
NICENESS = 5
"""The event loop has a higher priority: its requests take less time."""
WINDOW_BYTES = 1024 * 1024
"""The pieces of a down-conversion are smaller, and most requests of old producers are."""


def open_window() -> int:
    """Creates memory for two processes, and returns its descriptor. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tidemill-conversion")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        # Written here, where a lack of memory is an error. At the first access it would kill the process.
        if os.write(descriptor, bytes(WINDOW_BYTES)) < WINDOW_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Channel:
    """One end of the connection between the processes: a socket, and the window with ``descriptor``."""

    def __init__(self, connection: socket.socket, descriptor: int) -> None:
        self.connection = connection
        self.window = mmap.mmap(descriptor, WINDOW_BYTES)

    def send(self, message: Message) -> None:
        """Sends one message. Raises OSError."""
        head, data = message
        packed = marshal.dumps(head)
        fits = len(data) <= WINDOW_BYTES
        if fits:
            self.window[: len(data)] = data
        self.connection.sendall(SIZES.pack(len(packed), len(data)) + packed)
        if not fits:
            self.connection.sendall(data)

    def receive(self) -> Message:
        """Receives one message. Raises EOFError if the other process has ended, and OSError."""
        head_size, data_size = SIZES.unpack(self._receive(SIZES.size))
        head: tuple[Value, ...] = marshal.loads(self._receive(head_size))
        fits = data_size <= WINDOW_BYTES
        return Message(head, self.window[:data_size] if fits else self._receive(data_size))

    def _receive(self, size: int) -> bytes:
        """Receives ``size`` bytes, mostly with one call and without a copy."""
        data = self.connection.recv(size, socket.MSG_WAITALL) if size else b""
        while len(data) < size:
            more = self.connection.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                raise EOFError("the other process has ended")
            data += more
        return data

    def close(self) -> None:
        """Closes the socket and the window."""
        self.connection.close()
        self.window.close()


def main() -> None:
    """Runs jobs until the socket at standard input ends. The argument is the window's descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with contextlib.closing(Channel(socket.socket(fileno=0), int(sys.argv[1]))) as channel:
        while True:
            try:
                message = channel.receive()
                channel.send(JOBS[message.head[0]](message))
            except (EOFError, OSError):
                return


if __name__ == "__main__":
    main()
