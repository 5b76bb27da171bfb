"""A process that converts records between message formats, for a broker that must not stand still meanwhile.

It takes jobs from its standard input, a socket, and answers on it, one after the other, until the socket
ends: so it lives no longer than its broker. Both directions carry::

    size u32 | size u32 | marshal of (name, further arguments)             data     job
    size u32 | size u32 | marshal of (True, further results)               data     answer
    size u32 | 0 u32    | marshal of (False, code, text, record errors)

``data`` is the first argument and the first result: bytes that are copied no more than they have to be. It
lies in memory that both processes see, the window, which is free again once the other side has copied what
it holds; data that is larger than it follows on the socket. Only bytes, numbers, texts and tuples of them go
over both, between processes of the same program; nothing of it is kept.
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
import tempfile
from collections.abc import Callable
from typing import Any

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.convert import down, for_storage
from tidemill.records.message_set import MessageSet
from tidemill.records.validate import Limits

SIZES = struct.Struct("!II")
NICENESS = 5
"""The event loop goes before: its clients wait for less."""
WINDOW_BYTES = 1024 * 1024
"""What old consumers read is converted in smaller pieces, and mostly so is what old producers send."""


def open_window() -> int:
    """The descriptor of memory for two processes. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tidemill-conversion")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        # Written, since touching memory that a full system cannot give ends a process.
        if os.write(descriptor, bytes(WINDOW_BYTES)) < WINDOW_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Channel:
    """One end of the way between the two: a socket, and the window behind ``descriptor``."""

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
        """The next message. EOFError when the other side is gone, OSError."""
        head_size, data_size = SIZES.unpack(self._receive(SIZES.size))
        head: tuple[Any, ...] = marshal.loads(self._receive(head_size))
        if data_size <= WINDOW_BYTES:
            return head, self.window[:data_size]
        return head, self._receive(data_size)

    def _receive(self, size: int) -> bytes:
        """So many bytes; mostly the system puts all of them where they stay."""
        data = self.connection.recv(size, socket.MSG_WAITALL) if size else b""
        while len(data) < size:
            more = self.connection.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                raise EOFError("the other process is gone")
            data += more
        return data

    def close(self) -> None:
        """Ends this end."""
        self.connection.close()
        self.window.close()


def down_job(
    data: bytes, magic: int, first_offset: int, bytes_max: int, unpacked_bytes_max: int
) -> tuple[bytes, int, int, int]:
    """:func:`tidemill.records.convert.down` over ``data``: the result's fields."""
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
    """:func:`tidemill.records.convert.for_storage` over ``data``: a batch's bytes, or a set's fields."""
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
    """A wrapper of format v0, compressed with the offsets that its messages get from ``base_offset`` on."""
    return (MessageSet(b"", 0, codec, record_count, -1, unpacked, level).stored(base_offset),)


JOBS: dict[str, Callable[..., tuple[Any, ...]]] = {"down": down_job, "store": store_job, "place": place_job}


def perform(job: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The answer to a job."""
    try:
        return (True, JOBS[job](*arguments))
    except KafkaError as error:
        errors = error.record_errors if isinstance(error, InvalidRecord) else ()
        return (False, int(error.code), str(error), tuple(errors))
    except MemoryError:
        return (False, int(ErrorCode.UNKNOWN_SERVER_ERROR), "out of memory while converting records", ())


def answer_of(head: tuple[Any, ...], data: bytes) -> tuple[Any, ...]:
    """A received message as the answer that :func:`perform` gave."""
    return (True, (data, *head[1:])) if head[0] else head


def result_of(answer: tuple[Any, ...]) -> Any:
    """What the job returned; raises what it raised."""
    if answer[0]:
        return answer[1]
    _, code, text, record_errors = answer
    if code == ErrorCode.INVALID_RECORD or record_errors:
        raise InvalidRecord(text, ErrorCode(code), record_errors)
    raise KafkaError(text, ErrorCode(code))


def main() -> None:
    """Works until the socket at standard input ends; the argument is the window's descriptor."""
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
