"""The worker process that converts records between message formats, so that the event loop is not blocked.

It receives jobs from its standard input, which is a socket, and sends the results over it, one after another.
It ends with the socket, so that it does not outlive its broker. The messages of both directions::

    size u32 | size u32 | marshal of (name, further arguments)             data     job
    size u32 | size u32 | marshal of (True, further results)               data     result
    size u32 | 0 u32    | marshal of (False, code, text, record errors)

``data`` is the first argument and the first result. It is in the window, memory that both processes map,
until the other process has copied it. Data larger than the window follows on the socket instead. All values
are bytes, numbers, strings and tuples of these, between processes of the same program. The format is not
stored anywhere.
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
from collections.abc import Callable
from typing import Any

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch_validation import Limits
from tidemill.records.format_conversion import down, for_storage
from tidemill.records.message_set import MessageSet

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

    def send(self, head: tuple[Any, ...], data: bytes = b"") -> None:
        """Sends one message. Raises OSError."""
        packed = marshal.dumps(head)
        fits = len(data) <= WINDOW_BYTES
        if fits:
            self.window[: len(data)] = data
        self.connection.sendall(SIZES.pack(len(packed), len(data)) + packed)
        if not fits:
            self.connection.sendall(data)

    def receive(self) -> tuple[tuple[Any, ...], bytes]:
        """Receives one message. Raises EOFError if the other process has ended, and OSError."""
        head_size, data_size = SIZES.unpack(self._receive(SIZES.size))
        head: tuple[Any, ...] = marshal.loads(self._receive(head_size))
        if data_size <= WINDOW_BYTES:
            return head, self.window[:data_size]
        return head, self._receive(data_size)

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


def down_job(
    data: bytes, magic: int, first_offset: int, bytes_max: int, unpacked_bytes_max: int
) -> tuple[bytes, int, int, int]:
    """Calls :func:`tidemill.records.format_conversion.down` for ``data``.

    Returns the fields of the result.
    """
    made = down(data, 0, len(data), magic, first_offset, bytes_max, unpacked_bytes_max)
    return made.data, int(made.next_offset), int(made.next_position), int(made.record_count)


def store_job(
    data: bytes,
    magic: int,
    codec: int,
    limits: tuple[int, int, bool, int, int, bool],
    now_ms: int,
    append_time: bool,
    level: int | None,
) -> tuple[Any, ...]:
    """Calls :func:`tidemill.records.format_conversion.for_storage` for ``data``.

    Returns the bytes of a batch, or the fields of a message set.
    """
    made = for_storage(data, 0, len(data), magic, codec, Limits(*limits), now_ms, append_time, level)
    if not isinstance(made, MessageSet):
        return (made.to_bytes(),)
    return (
        made.data,
        int(made.magic),
        int(made.codec),
        int(made.record_count),
        int(made.max_timestamp),
        made.unpacked,
        made.level,
    )


def place_job(
    unpacked: bytes, codec: int, record_count: int, level: int | None, base_offset: int
) -> tuple[bytes]:
    """Compresses a wrapper of format v0, whose messages have the offsets from ``base_offset`` on."""
    return (MessageSet(b"", 0, codec, record_count, -1, unpacked, level).stored(base_offset),)


JOBS: dict[str, Callable[..., tuple[Any, ...]]] = {"down": down_job, "store": store_job, "place": place_job}


def perform(job: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Runs a job. Returns the head of the result or of the error."""
    try:
        return (True, JOBS[job](*arguments))
    except KafkaError as error:
        errors = error.record_errors if isinstance(error, InvalidRecord) else ()
        return (False, int(error.code), str(error), tuple(errors))
    except MemoryError:
        return (False, int(ErrorCode.UNKNOWN_SERVER_ERROR), "out of memory while converting records", ())


def answer_of(head: tuple[Any, ...], data: bytes) -> tuple[Any, ...]:
    """Converts a received message to the value that :func:`perform` returned."""
    return (True, (data, *head[1:])) if head[0] else head


def result_of(answer: tuple[Any, ...]) -> Any:
    """Returns the result of a job, or raises its error."""
    if answer[0]:
        return answer[1]
    _, code, text, record_errors = answer
    if code == ErrorCode.INVALID_RECORD or record_errors:
        raise InvalidRecord(text, ErrorCode(code), record_errors)
    raise KafkaError(text, ErrorCode(code))


def main() -> None:
    """Runs jobs until the socket at standard input ends. The argument is the window's descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with contextlib.closing(Channel(socket.socket(fileno=0), int(sys.argv[1]))) as channel:
        while True:
            try:
                (job, *arguments), data = channel.receive()
                answer = perform(job, (data, *arguments))
                if answer[0]:
                    made, *further = answer[1]
                    channel.send((True, *further), made)
                else:
                    channel.send(answer)
            except (EOFError, OSError):
                return


if __name__ == "__main__":
    main()
