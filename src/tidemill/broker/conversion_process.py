"""A process that converts records between message formats, for a broker that must not stand still meanwhile.

It takes jobs from its standard input, a socket, and answers on it, one after the other, until the socket
ends: so it lives no longer than its broker. Both directions carry::

    size u32 | marshal of (name, arguments)         job
    size u32 | marshal of (True, result)            answer
    size u32 | marshal of (False, code, text, record errors)

Only bytes, numbers, texts and tuples of them go over it, between processes of the same program; nothing of
it is kept.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.convert import down, for_storage
from tidemill.records.message_set import MessageSet
from tidemill.records.validate import Limits

SIZE = struct.Struct("!I")
NICENESS = 5
"""The event loop goes before: its clients wait for less."""


def send(connection: socket.socket, message: tuple[Any, ...]) -> None:
    """Sends one message. Raises OSError."""
    data = marshal.dumps(message)
    connection.sendall(SIZE.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket) -> Any:
    """The next message. EOFError when the other side is gone, OSError."""
    (size,) = SIZE.unpack(_receive(connection, SIZE.size))
    return marshal.loads(_receive(connection, size))


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    with memoryview(data) as view:
        at = 0
        while at < size:
            count = connection.recv_into(view[at:])
            if count == 0:
                raise EOFError("the other process is gone")
            at += count
    return data


def down_job(data: bytes, magic: int, first_offset: int, bytes_max: int) -> tuple[bytes, int, int, int]:
    """:func:`tidemill.records.convert.down` over ``data``: the result's fields."""
    made = down(data, 0, len(data), magic, first_offset, bytes_max)
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
    magic: int, codec: int, record_count: int, unpacked: bytes, level: int | None, base_offset: int
) -> bytes:
    """A wrapper of format v0, compressed with the offsets that its messages get from ``base_offset`` on."""
    return MessageSet(b"", magic, codec, record_count, -1, unpacked, level).stored(base_offset)


JOBS: dict[str, Callable[..., Any]] = {"down": down_job, "store": store_job, "place": place_job}


def perform(job: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The answer to a job."""
    try:
        return (True, JOBS[job](*arguments))
    except KafkaError as error:
        errors = error.record_errors if isinstance(error, InvalidRecord) else ()
        return (False, int(error.code), str(error), tuple(errors))
    except MemoryError:
        return (False, int(ErrorCode.UNKNOWN_SERVER_ERROR), "out of memory while converting records", ())


def result_of(answer: tuple[Any, ...]) -> Any:
    """What the job returned; raises what it raised."""
    if answer[0]:
        return answer[1]
    _, code, text, record_errors = answer
    if code == ErrorCode.INVALID_RECORD or record_errors:
        raise InvalidRecord(text, ErrorCode(code), record_errors)
    raise KafkaError(text, ErrorCode(code))


def main() -> None:
    """Works until the socket at standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with socket.socket(fileno=0) as connection:
        while True:
            try:
                job, arguments = receive(connection)
                send(connection, perform(job, arguments))
            except (EOFError, OSError):
                return


if __name__ == "__main__":
    main()
