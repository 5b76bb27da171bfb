"""Requests that kazoo does not implement, and the queue of calls: in order, a limited number in flight."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetData,
    Transaction,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from tidemill.coordination.coordination_store import StoreError, StoreUnavailable

WAITING_MAX = 100_000
"""The limit of queued calls; further calls are refused, since their caller does not wait for responses."""

# Kinds of notices.
REPLY, FAILURE, EVENT, CONNECTED, SUSPENDED, EXPIRED, TROUBLE, REFUSED = range(8)

Notice = tuple[int, Any, Any]
"""REPLY (call, result), FAILURE (call, exception), EVENT (path, (kind, transaction id)), CONNECTED (session
id, None), TROUBLE and REFUSED (text, None): the reason for the missing connection; retries do not help after
REFUSED.
"""

_PERSISTENT = 0
"""Mode of a watch: this node, without its descendants."""
_ANY_KIND = 3


class WatchRequest:
    """A request about the watches of a path, with the methods that kazoo expects of a request."""

    type = 0
    watcher = None
    """kazoo keeps no watcher for it."""
    _argument = 0

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        """The body of the request."""
        return bytes(write_string(self.path)) + struct.pack(">i", self._argument)

    def deserialize(self, data: bytes, offset: int) -> bool:
        """The reply has no content."""
        return True


class AddWatch(WatchRequest):
    """Sets a persistent watch (ZooKeeper 3.6) for the node's creation, deletion, data and children."""

    type = 106
    _argument = _PERSISTENT


class RemoveWatches(WatchRequest):
    """Removes all watches of a path."""

    type = 18
    _argument = _ANY_KIND


_HEADER = struct.Struct(">iBi")
"""Precedes each operation of a transaction, and its result: type, whether it is the end, error."""
_INT = struct.Struct(">i")
_NAMED_HEADER = struct.Struct(">iBii")
"""A header, and the length of the path that follows."""
_CREATE, _DELETE, _SET_DATA, _CHECK, _ERROR = 1, 2, 5, 13, -1
_READ_HEADER = _HEADER.pack(GetData.type, False, -1)
_END = _HEADER.pack(-1, True, -1)
_DELETE_HEADER, _SET_HEADER, _CHECK_HEADER = (
    _HEADER.pack(kind, False, -1) for kind in (_DELETE, _SET_DATA, _CHECK)
)


def create_frame(path: str, data: bytes, acl: bytes, flags: int) -> bytes:
    """A creation within a transaction; ``acl`` as encoded by :func:`acl_frame`."""
    name = path.encode()
    start = _NAMED_HEADER.pack(_CREATE, False, -1, len(name))
    return b"".join((start, name, _INT.pack(len(data)), data, acl, _INT.pack(flags)))


def set_frame(path: str, data: bytes, version: int) -> bytes:
    """A change of a node's data within a transaction."""
    return _SET_HEADER + _text(path) + _INT.pack(len(data)) + data + _INT.pack(version)


def delete_frame(path: str, version: int) -> bytes:
    """A deletion within a transaction."""
    return _DELETE_HEADER + _text(path) + _INT.pack(version)


def check_frame(path: str, version: int) -> bytes:
    """A check of a node's version within a transaction."""
    return _CHECK_HEADER + _text(path) + _INT.pack(version)


def read_frame(path: str) -> bytes:
    """A read of a node's data, without a watch."""
    return _READ_HEADER + _text(path) + b"\0"


def acl_frame(acl: Sequence[Any]) -> bytes:
    """Encodes an access list (kazoo's), as creations contain it."""
    entries = [
        _INT.pack(entry.perms) + bytes(write_string(entry.id.scheme)) + bytes(write_string(entry.id.id))
        for entry in acl
    ]
    return _INT.pack(len(entries)) + b"".join(entries)


def _text(path: str) -> bytes:
    name = path.encode()
    return _INT.pack(len(name)) + name


class Multi:
    """Several operations in one transaction, encoded once so that their size is known.

    It replaces kazoo's slower ``Transaction``: a command may have thousands of operations, and every broker
    waits for it.
    """

    type = Transaction.type
    watcher = None

    def __init__(self, frames: Iterable[bytes]) -> None:
        self.body: bytes = b"".join((*frames, _END))

    def serialize(self) -> bytes:
        """The body of the request."""
        return self.body

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """Returns one result (path, True, stat, data with stat, or exception) per operation."""
        results: list[Any] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return results
            if kind == _CREATE:
                (size,) = _INT.unpack_from(data, offset)
                offset += _INT.size + size
                results.append(data[offset - size : offset].decode())
            elif kind == _SET_DATA:
                results.append(ZnodeStat._make(stat_struct.unpack_from(data, offset)))
                offset += stat_struct.size
            elif kind == GetData.type:
                (size,) = _INT.unpack_from(data, offset)
                start = offset + _INT.size
                offset = start + max(size, 0)
                results.append((data[start:offset], ZnodeStat._make(stat_struct.unpack_from(data, offset))))
                offset += stat_struct.size
            elif kind == _ERROR:
                (code,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                results.append(EXCEPTIONS[code]())
            else:
                results.append(True)


class MultiRead(Multi):
    """Reads the data of several nodes in one request (ZooKeeper 3.6); each has its own result."""

    type = 22


class Call:
    """Takes the place of kazoo's result object; passes the result to the event loop."""

    __slots__ = ("_put", "future", "is_dropped", "then")

    def __init__(
        self, put: Callable[[Notice], None], future: asyncio.Future[Any], then: Callable[[Any], None] | None
    ) -> None:
        self._put = put
        self.future = future
        self.is_dropped = False
        """Whether the caller already has an error. Such a call is not sent."""
        self.then = then
        """Called with the result before any later notice of ZooKeeper is processed."""

    def set(self, value: Any = None) -> None:
        """Sets the result (kazoo's thread)."""
        self._put((REPLY, self, value))

    def set_exception(self, error: BaseException) -> None:
        """Sets the error (kazoo's thread)."""
        self._put((FAILURE, self, error))

    def fail(self, error: BaseException) -> None:
        """Passes the error to the caller, if it still waits (event loop)."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # A cancelled caller does not retrieve it.


class Calls:
    """Calls without a response yet; at most ``in_flight_max`` of them are in flight."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        put: Callable[[Notice], None],
        send: Callable[[Any, Call], None],
        in_flight_max: int,
    ) -> None:
        self._loop = loop
        self._put = put
        self._send = send
        self._in_flight_max = in_flight_max
        self._in_flight: dict[Call, None] = {}
        self._waiting: deque[tuple[Any, Call]] = deque()

    def submit(self, request: Any, then: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Submits a call, after all earlier ones. Raises StoreUnavailable when too many are queued."""
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} calls to ZooKeeper are already queued")
        return self.submit_internal(request, then)

    def submit_internal(self, request: Any, then: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Submits a call of the store itself, a few per watch; its failure shows as a lost connection."""
        future = self._loop.create_future()
        call = Call(self._put, future, then)
        if len(self._in_flight) < self._in_flight_max:
            self._in_flight[call] = None
            self._send(request, call)
        else:
            self._waiting.append((request, call))
        return future

    def completed(self, call: Call, result: Any) -> None:
        """Handles the result of a call."""
        if self._finish(call):
            if call.then is not None:
                call.then(result)
            if not call.future.done():
                call.future.set_result(result)

    def failed(self, call: Call, error: BaseException) -> None:
        """Handles the error of a call."""
        if self._finish(call):
            call.fail(error)

    def _finish(self, call: Call) -> bool:
        """Sends the next queued call; returns False for a call that :meth:`drop` has already ended."""
        if call not in self._in_flight:
            return False
        del self._in_flight[call]
        if self._waiting:
            request, following = self._waiting.popleft()
            self._in_flight[following] = None
            self._send(request, following)
        return True

    def drop(self, make_error: Callable[[], StoreError]) -> None:
        """Fails all calls, including the queued ones."""
        dropped = [*self._in_flight, *(call for _, call in self._waiting)]
        self._in_flight.clear()
        self._waiting.clear()
        for call in dropped:
            call.is_dropped = True
            call.fail(make_error())
