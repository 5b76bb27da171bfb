"""The output of a connection: ``bytes`` from memory and ranges of files by ``sendfile``, in order. Compiled.

A range that may not be in the page cache is first read by a thread, so that the event loop never waits for a
disk.
"""

from __future__ import annotations

import socket
from typing import Final, TypeAlias

from mypy_extensions import i64, mypyc_attr

from tidemill.model.system_interfaces import File
from tidemill.net.connection_state import ALL_SENT, READ_FILE, SEND_LATER
from tidemill.net.memory_pool import MemoryAccount, MemoryPool

SEND_BYTES_PER_CALL: Final = 1024 * 1024
"""The size of the pieces in which a range is probed and sent, so that one reader cannot block the event loop.
"""
JOINED_BYTES_MAX: Final = 256 * 1024
"""Byte strings are joined up to this size for one call."""
JOINED_PARTS_MAX: Final = 512
"""The limit for the byte strings that are joined for one call."""
SENT_PARTS_MAX: Final = 256
"""More sent parts at the start of the queue are removed at once."""
RANGE_BYTES_MIN: Final = 8 * 1024
"""A smaller range that is surely cached is read and joined with its neighbours: fewer calls, and the peer
wakes up once.
"""
SEND_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""The number of bytes that one connection may send before others have their turn."""
MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
SENT: Final = b""
"""Replaces a sent part in the queue."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FileOwner:
    """The owner of files that are sent."""

    def on_read_failed(self, file: File, problem: OSError) -> None:
        """Called when a range of ``file`` could not be read."""
        raise NotImplementedError


class FileRange:
    """A range of a file to send. A failed read is reported to ``owner``."""

    __slots__ = ("count", "file", "may_be_cold", "owner", "position", "ready_until")

    def __init__(
        self, file: File, position: i64, count: i64, may_be_cold: bool, owner: FileOwner | None
    ) -> None:
        self.file = file
        self.position: i64 = position
        self.count: i64 = count
        self.may_be_cold = may_be_cold
        self.owner = owner
        self.ready_until: i64 = position
        """The position up to which it was read ahead, and is not probed again."""


ResponsePart: TypeAlias = bytes | FileRange
"""A part of a response."""
QueuedPart: TypeAlias = bytes | memoryview | FileRange
"""A part of the output: a part of a response, or the unsent rest of byte strings."""


class SendQueue:
    """The output of one socket."""

    def __init__(self, sock: socket.socket, memory: MemoryPool, account: MemoryAccount) -> None:
        self.sock = sock
        self.descriptor: int = sock.fileno()
        self.memory = memory
        self.account = account
        self.parts: list[QueuedPart] = []
        """Empty ``bytes`` replace the sent parts, before :attr:`_head`."""
        self.memory_bytes: i64 = 0
        """The number of bytes of the parts in memory."""
        self.cold_range: FileRange | None = None
        """The range that a thread has to read before :meth:`send` continues, ..."""
        self.cold_bytes: i64 = 0
        """... and the number of its bytes."""
        self._head: i64 = 0

    def append(self, part: bytes) -> None:
        """Adds bytes."""
        self.parts.append(part)
        self.memory_bytes += len(part)

    def append_part(self, part: ResponsePart) -> None:
        """Adds bytes or a range of a file."""
        self.parts.append(part)
        if isinstance(part, bytes):
            self.memory_bytes += len(part)

    def clear(self) -> None:
        """Drops all parts."""
        self.parts = []
        self._head = 0
        self.memory_bytes = 0

    @property
    def first(self) -> QueuedPart:
        """The next part to send."""
        return self.parts[self._head]

    def send(self) -> i64:
        """Sends until all parts are sent (ALL_SENT), the turn is over (SEND_LATER), or READ_FILE.

        READ_FILE: :attr:`cold_bytes` of :attr:`cold_range` have to be read first. Raises BlockingIOError if
        the socket is full, OSError if it is broken or a file cannot be read.
        """
        parts = self.parts
        budget: i64 = SEND_BYTES_PER_TURN
        while self._head < len(parts):
            part = parts[self._head]
            if isinstance(part, FileRange) and not is_small(part):
                sent = self._send_range(part)
                if sent < 0:
                    return READ_FILE
                budget -= sent
                if part.count == 0:
                    self._next_part()
            else:
                budget -= self._send_bytes()
            if budget <= 0 and self._head < len(parts):
                return SEND_LATER
        parts.clear()
        self._head = 0
        self.memory_bytes = 0
        return ALL_SENT

    def _next_part(self) -> None:
        self.parts[self._head] = SENT
        self._head += 1
        if self._head > SENT_PARTS_MAX:
            del self.parts[: self._head]
            self._head = 0

    def _send_bytes(self) -> i64:
        """Sends the byte strings at the head in one call, and drops the sent ones."""
        parts = self.parts
        head = self._head
        last: i64 = head
        size: i64 = 0
        total: i64 = len(parts)
        strings: list[bytes | memoryview] = []
        while last < total and size < JOINED_BYTES_MAX and last - head < JOINED_PARTS_MAX:
            part = parts[last]
            if isinstance(part, FileRange):
                if not is_small(part):
                    break
                string = self._read_small(part, last)
                if string is None:
                    break
                part = string
            strings.append(part)
            size += len(part)
            last += 1
        flags = MSG_MORE if last < total else 0
        data = strings[0] if last - head == 1 else b"".join(strings)
        sent: i64 = self.sock.send(data, flags)
        self.account.bytes_out += sent
        self.account.last_use = self.memory.uses
        self.memory_bytes -= sent
        index = head
        while index < last:
            parts[index] = SENT
            index += 1
        if sent < size:
            # The rest replaces the last string.
            parts[last - 1] = memoryview(data)[sent:]
            self._head = last - 1
        else:
            self._head = last
        return sent

    def _read_small(self, part: FileRange, index: i64) -> bytes | None:
        """Replaces a range with its bytes, and returns them.

        Returns None if it cannot be read; the parts before it are sent first.
        """
        try:
            data = part.file.read_at(part.position, part.count)
            if len(data) < part.count:
                raise _ended(part.count - len(data))
        except OSError:
            if index == self._head:
                raise
            return None
        self.parts[index] = data
        self.memory_bytes += len(data)
        return data

    def _send_range(self, part: FileRange) -> i64:
        """Sends a piece of ``part``; -1 if it has to be read first."""
        count = part.count if part.count < SEND_BYTES_PER_CALL else SEND_BYTES_PER_CALL
        if (
            part.may_be_cold
            and part.position >= part.ready_until
            and not part.file.is_cached(part.position, count)
        ):
            part.ready_until = part.position + count
            self.cold_range = part
            self.cold_bytes = count
            return -1
        sent = part.file.send_to(self.descriptor, part.position, count)
        if sent == 0:
            raise _ended(part.count)
        part.position += sent
        part.count -= sent
        self.account.bytes_out += sent
        self.account.last_use = self.memory.uses
        return sent


def is_small(part: FileRange) -> bool:
    """Whether reading it costs less than sending it separately."""
    return part.count < RANGE_BYTES_MIN and not part.may_be_cold


def _ended(missing: i64) -> OSError:
    return OSError(f"the file ended {missing} bytes before the end of the range to send")
