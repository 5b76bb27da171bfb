"""Requests that kazoo has no form for, and calls on their way: in order, so many unanswered at once."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    Transaction,
    int_struct,
    stat_struct,
    write_string,
)

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


class Multi:
    """Several operations in one transaction, written once so that their size is known."""

    type = Transaction.type
    watcher = None

    def __init__(self, operations: Sequence[Any]) -> None:
        self.body: bytes = bytes(Transaction(operations).serialize())

    def serialize(self) -> bytes:
        """The body of the request."""
        return self.body

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """One result (path, True, stat or exception) an operation."""
        results: list[Any] = Transaction.deserialize(data, offset)
        return results


class MultiRead:
    """The data of several nodes in one request (ZooKeeper 3.6); each is answered for itself."""

    type = 22
    watcher = None

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        """The body of the request: one read after the other, each behind a header."""
        header = MultiHeader(GetData.type, False, -1).serialize()
        reads = b"".join(header + GetData(path, None).serialize() for path in self._paths)
        return reads + bytes(MultiHeader(-1, True, -1).serialize())

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """For each path its data and stat, or an exception."""
        answers: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return answers
            if header.type == GetData.type:
                answer = GetData.deserialize(data, offset)
                size = 4 + len(answer[0] or b"") + stat_struct.size
            else:
                (code,) = int_struct.unpack_from(data, offset)
                answer, size = EXCEPTIONS[code](), 4
            answers.append(answer)
            offset += size


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
