"""What a connection has to send: ``bytes`` from memory, ranges of files by ``sendfile``, in turn.

A range that may not be in memory is read ahead by a thread first, so that the loop never waits for a disk.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from tidemill.model.ports import File
from tidemill.net.memory import Holder, Memory

SEND_BYTES: Final = 1024 * 1024
"""A range is probed and sent in pieces of this size, so that one reader cannot hold the loop."""
JOIN_BYTES: Final = 256 * 1024
"""Byte strings are joined up to this size for one call."""
RANGE_BYTES_MIN: Final = 8 * 1024
"""What is smaller, and surely in memory, is read and joined with what is around it: fewer calls, and the peer
wakes once."""
TURN_BYTES: Final = 4 * 1024 * 1024
"""What one connection may send before the others have their turn."""
MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)


class FileRange:
    """Bytes of a file that are to be sent as they are."""

    __slots__ = ("count", "file", "may_be_cold", "position", "ready_until")

    def __init__(self, file: File, position: i64, count: i64, may_be_cold: bool) -> None:
        self.file = file
        self.position: i64 = position
        self.count: i64 = count
        self.may_be_cold = may_be_cold
        self.ready_until: i64 = position
        """Up to here it was read ahead already, and is not probed again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sender(Holder):
    """The output of one socket."""

    def __init__(self, sock: Any, memory: Memory) -> None:
        super().__init__()
        self.sock = sock
        self.descriptor: int = sock.fileno()
        self.memory = memory
        self.last_use: i64 = memory.uses
        """When bytes arrived or left last, as ``memory.uses`` counts time."""
        self._reading_ahead = False
        self._out: list[Any] = []
        self._out_head: i64 = 0
        self._out_bytes: i64 = 0

    def read_ahead(self, part: FileRange, count: i64) -> None:
        """Brings ``count`` bytes of ``part`` into memory elsewhere, and has the sending go on then."""
        raise NotImplementedError

    def _drop_output(self) -> None:
        self._out = []
        self._out_head = 0
        self._out_bytes = 0

    def _send_all(self) -> bool:
        """Whether everything went out; BlockingIOError when the socket is full."""
        out = self._out
        budget: i64 = TURN_BYTES
        while self._out_head < len(out):
            part = out[self._out_head]
            if isinstance(part, FileRange) and not is_small(part):
                sent = self._send_range(part)
                if sent < 0:
                    return False
                budget -= sent
                if part.count == 0:
                    self._next_part()
            else:
                budget -= self._send_bytes()
            if budget <= 0 and self._out_head < len(out):
                return False
        return True

    def _next_part(self) -> None:
        self._out[self._out_head] = None
        self._out_head += 1
        if self._out_head > 256:
            del self._out[: self._out_head]
            self._out_head = 0

    def _send_bytes(self) -> i64:
        """Sends the run of byte strings at the head in one call, and drops what went out."""
        out = self._out
        head = self._out_head
        last: i64 = head
        size: i64 = 0
        total: i64 = len(out)
        while last < total and size < JOIN_BYTES and last - head < 512:
            piece = out[last]
            if isinstance(piece, FileRange):
                if not is_small(piece) or not self._read_small(piece, last):
                    break
                piece = out[last]
            size += len(piece)
            last += 1
        flags = MSG_MORE if last < total else 0
        data: Any = out[head] if last - head == 1 else b"".join(out[head:last])
        sent: i64 = self.sock.send(data, flags)
        self.bytes_out += sent
        self.last_use = self.memory.uses
        self._out_bytes -= sent
        index = head
        while index < last:
            out[index] = None
            index += 1
        if sent < size:
            # What is left of the run takes the last one's place.
            out[last - 1] = memoryview(data)[sent:]
            self._out_head = last - 1
        else:
            self._out_head = last
        return sent

    def _read_small(self, part: FileRange, index: i64) -> bool:
        """Has the bytes of a range take its place. False: what cannot be read waits for what is before it."""
        try:
            data = part.file.read_at(part.position, part.count)
            if len(data) < part.count:
                raise _ended(part.count - len(data))
        except OSError:
            if index == self._out_head:
                raise
            return False
        self._out[index] = data
        self._out_bytes += len(data)
        return True

    def _send_range(self, part: FileRange) -> i64:
        """Sends a piece of ``part``; -1 when it has to be read ahead first."""
        count = part.count if part.count < SEND_BYTES else SEND_BYTES
        if (
            part.may_be_cold
            and part.position >= part.ready_until
            and not part.file.is_cached(part.position, count)
        ):
            self._reading_ahead = True
            part.ready_until = part.position + count
            self.read_ahead(part, count)
            return -1
        sent = part.file.send_to(self.descriptor, part.position, count)
        if sent == 0:
            raise _ended(part.count)
        part.position += sent
        part.count -= sent
        self.bytes_out += sent
        self.last_use = self.memory.uses
        return sent


def is_small(part: FileRange) -> bool:
    """Whether it costs less to read it than to send it by itself."""
    return part.count < RANGE_BYTES_MIN and not part.may_be_cold


def _ended(missing: i64) -> OSError:
    return OSError(f"the file ended {missing} bytes before the end of the range to send")
