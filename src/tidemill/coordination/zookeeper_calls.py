"""Requests that kazoo has no form for, and calls on their way: in order, so many unanswered at once."""

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

from tidemill.coordination.port import StoreError, StoreUnavailable

WAITING_MAX = 100_000
"""Calls that wait for their turn; more are refused, for somebody asks without waiting for answers."""

# Kinds of notices.
REPLY, FAILURE, EVENT, CONNECTED, SUSPENDED, EXPIRED, TROUBLE, REFUSED = range(8)

Notice = tuple[int, Any, Any]
"""REPLY (call, result), FAILURE (call, exception), EVENT (path, (kind, transaction id)), CONNECTED (session
id, None), TROUBLE and REFUSED (text, None): why there is no connection; waiting does not help the second.
"""

_PERSISTENT = 0
"""Mode of a watch: this node, not those below it."""
_ANY_KIND = 3


class WatchRequest:
    """A path and what to do about its watches; kazoo asks a request for its type, and writes and reads it."""

    type = 0
    watcher = None
    """kazoo keeps no watcher of its own for it."""
    _argument = 0

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        """The body of the request."""
        return bytes(write_string(self.path)) + struct.pack(">i", self._argument)

    def deserialize(self, data: bytes, offset: int) -> bool:
        """The reply says no more than that it is done."""
        return True


class AddWatch(WatchRequest):
    """A watch that stays (ZooKeeper 3.6): tells the node's data, being and set of children."""

    type = 106
    _argument = _PERSISTENT


class RemoveWatches(WatchRequest):
    """Ends all watches of a path."""

    type = 18
    _argument = _ANY_KIND


_HEADER = struct.Struct(">iBi")
"""Before each operation of a transaction, and of its answer: type, whether it is the end, error."""
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
    """A creation within a transaction; ``acl`` as :func:`acl_frame` wrote it."""
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


def acl_frame(acl: Sequence[Any]) -> bytes:
    """An access list (kazoo's), as creations carry it."""
    entries = [
        _INT.pack(one.perms) + bytes(write_string(one.id.scheme)) + bytes(write_string(one.id.id))
        for one in acl
    ]
    return _INT.pack(len(entries)) + b"".join(entries)


def _text(path: str) -> bytes:
    name = path.encode()
    return _INT.pack(len(name)) + name


class Multi:
    """Several operations in one transaction, written once so that their size is known.

    Not kazoo's ``Transaction``: a command may have thousands of operations, and every broker waits for it.
    """

    type = Transaction.type
    watcher = None

    def __init__(self, frames: Iterable[bytes]) -> None:
        self.body: bytes = b"".join((*frames, _END))

    def serialize(self) -> bytes:
        """The body of the request."""
        return self.body

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """One result (path, True, stat or exception) an operation."""
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
            elif kind == _ERROR:
                (code,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                results.append(EXCEPTIONS[code]())
            else:
                results.append(True)


class MultiRead:
    """The data of several nodes in one request (ZooKeeper 3.6); each is answered for itself."""

    type = 22
    watcher = None

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        """The body of the request: one read after the other, each behind a header."""
        return b"".join([*(_READ_HEADER + _text(path) + b"\0" for path in self._paths), _END])

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """For each path its data and stat, or an exception."""
        answers: list[Any] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return answers
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == GetData.type:
                end = offset + max(number, 0)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, end))
                answers.append((data[offset:end], stat))
                offset = end + stat_struct.size
            else:
                answers.append(EXCEPTIONS[number]())


class Call:
    """Stands where kazoo has its result of a call; what comes is handed to the event loop."""

    __slots__ = ("_put", "future", "is_dropped", "then")

    def __init__(
        self, put: Callable[[Notice], None], future: asyncio.Future[Any], then: Callable[[Any], None] | None
    ) -> None:
        self._put = put
        self.future = future
        self.is_dropped = False
        """Whether its caller was told that it failed: then it is not sent any more."""
        self.then = then
        """Called with the result before anything that ZooKeeper sent after it is looked at."""

    def set(self, value: Any = None) -> None:
        """The result is there (kazoo's thread)."""
        self._put((REPLY, self, value))

    def set_exception(self, error: BaseException) -> None:
        """There will be none (kazoo's thread)."""
        self._put((FAILURE, self, error))

    def fail(self, error: BaseException) -> None:
        """Tells the caller, if he still waits (event loop)."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # A caller that was cancelled does not fetch it.


class Calls:
    """Calls that were made and not answered yet; at most ``in_flight_max`` of them are under way."""

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
        self._unanswered: dict[Call, None] = {}
        self._waiting: deque[tuple[Any, Call]] = deque()

    def submit(self, request: Any, then: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Makes a call, after all that were made before. StoreUnavailable when too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            raise StoreUnavailable(f"{WAITING_MAX} calls to ZooKeeper wait already")
        return self._make(request, then)

    def note(self, request: Any, then: Callable[[Any], None] | None = None) -> None:
        """A call of the store's own, a few for each watch; when it fails, the connection's end says so."""
        self._make(request, then)

    def _make(self, request: Any, then: Callable[[Any], None] | None) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        call = Call(self._put, future, then)
        if len(self._unanswered) < self._in_flight_max:
            self._unanswered[call] = None
            self._send(request, call)
        else:
            self._waiting.append((request, call))
        return future

    def answered(self, call: Call, result: Any) -> None:
        """The result of a call has come."""
        if self._next(call):
            if call.then is not None:
                call.then(result)
            if not call.future.done():
                call.future.set_result(result)

    def failed(self, call: Call, error: BaseException) -> None:
        """The error of a call has come."""
        if self._next(call):
            call.fail(error)

    def _next(self, call: Call) -> bool:
        """Sends the next one; False for a call that :meth:`drop` ended already."""
        if call not in self._unanswered:
            return False
        del self._unanswered[call]
        if self._waiting:
            request, following = self._waiting.popleft()
            self._unanswered[following] = None
            self._send(request, following)
        return True

    def drop(self, make_error: Callable[[], StoreError]) -> None:
        """Ends all calls, those too that were not made yet."""
        dropped = [*self._unanswered, *(call for _, call in self._waiting)]
        self._unanswered.clear()
        self._waiting.clear()
        for call in dropped:
            call.is_dropped = True
            call.fail(make_error())
