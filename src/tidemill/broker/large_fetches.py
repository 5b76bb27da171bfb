"""Fetches with many partitions, handled in slices: none holds the loop for longer than one of them.

They do what :mod:`tidemill.broker.fetch` does with all others at once, some partitions at a time: decode,
take into the session, look up, wait, encode. What happens to a partition while others are looked up is not
missed: the request waits on each from the moment at which it was looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from tidemill.broker.fetch import CURRENT_FORMAT, FetchPath, FetchRequest
from tidemill.broker.fetch_codec import FetchDecoder, FetchEncoder, encode_error
from tidemill.broker.fetch_sessions import FetchPart, FetchSession
from tidemill.broker.request_slices import Lane, Turns
from tidemill.model.errors import ProtocolError

PARTS_AT_ONCE: Final = 100
"""Partitions between two looks at the clock."""

Work = Callable[[FetchRequest, Turns], Coroutine[Any, Any, None]]


class LargeFetches:
    """Takes the large requests of a :class:`tidemill.broker.fetch.FetchPath`."""

    def __init__(
        self, path: FetchPath, loop: asyncio.AbstractEventLoop, lane: Lane, tasks: set[asyncio.Task[None]]
    ) -> None:
        self._path = path
        self._loop = loop
        self._lane = lane
        self._tasks = tasks
        """Where the broker waits for what is under way when it stops."""

    # -- what the path calls

    def take(self, request: FetchRequest, frame: bytes) -> None:
        """Takes a request whose fields are ``frame``."""

        async def work(request: FetchRequest, turns: Turns) -> None:
            await self._take(request, frame, turns)

        self._begin(request, work)

    def look(self, request: FetchRequest) -> None:
        """Takes a decoded request whose session has many partitions to look up."""
        self._begin(request, self._look)

    def answer(self, request: FetchRequest) -> None:
        """Answers a request, which may be waiting, with whatever there is; one under way when it is ready."""
        if request.under_way:
            request.stirred = True
            return
        if request.is_large:
            self._path.waiting -= 1
        self._begin(request, self._answer)

    def count_committed(self, request: FetchRequest) -> None:
        """Finds how much a request that waits may read where transactions begin and end."""
        request.to_count = True
        if not request.under_way:
            self._path.waiting -= 1
            self._begin(request, self._wait_or_answer)

    def finish(self, request: FetchRequest) -> None:
        """Builds the reply of what was found."""
        self._begin(request, self._finish)

    def forget(self, request: FetchRequest) -> None:
        """Removes the waiting fetch of a connection that has ended."""
        request.done = True
        if not request.under_way:
            self._path.waiting -= 1
            self._begin(request, self._drop)

    def end(self, session: FetchSession) -> None:
        """Lets go of the partitions of a session that has ended."""

        async def work() -> None:
            turns = Turns(self._lane)
            try:
                while not session.let_go(PARTS_AT_ONCE):
                    await turns.step()
            finally:
                turns.end()

        self._start(work())

    # -- the work

    def _begin(self, request: FetchRequest, work: Work) -> None:
        request.is_large = True
        request.under_way = True
        request.stirred = False
        if request.reply is None:
            request.reply = request.connection.reply_later()
        if not request.connection.closed:
            request.connection.state = request
        self._start(self._run(request, work))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: FetchRequest, work: Work) -> None:
        turns = Turns(self._lane)
        try:
            await work(request, turns)
        except ProtocolError as problem:
            request.connection.close(str(problem))
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            request.connection.crash(problem)
            await self._drop(request, turns)
        finally:
            request.under_way = False
            turns.end()

    async def _take(self, request: FetchRequest, frame: bytes, turns: Turns) -> None:
        memory = self._lane.memory
        if memory is not None:
            memory.take(len(frame))
        try:
            decoder = FetchDecoder(request, frame, 0, len(frame))
            while not decoder.run(PARTS_AT_ONCE):
                await turns.step()
        except IndexError as problem:
            raise ProtocolError(f"Fetch version {request.version} is cut short: {problem}") from None
        finally:
            if memory is not None:
                memory.release(len(frame))
        if request.version >= 7:
            code = await self._find_session(request, turns)
            if code != 0:
                self._complete(request, [encode_error(request, code)])
                await self._let_go(request, turns)
                return
        self._path.gather(request)
        await self._look(request, turns)

    async def _find_session(self, request: FetchRequest, turns: Turns) -> int:
        """Finds the session of a request, and tells it what changes; an error, or 0."""
        code = self._path.find_session(request)
        session = request.session
        if code != 0 or session is None:
            return code
        for some in pieces_of(request.parts):
            if session.ended:
                break
            session.update(some, [])
            await turns.step()
        for some in pieces_of(request.forgotten):
            if session.ended:
                break
            session.update([], some)
            await turns.step()
        return self._path.sessions.count(session)

    async def _look(self, request: FetchRequest, turns: Turns) -> None:
        """Looks its partitions up, and answers, or waits on them."""
        path = self._path
        if request.session is not None:
            request.session.parked.append(request)
        path.begin_look_up(request)
        count = len(request.parts)
        for begin in range(0, count, PARTS_AT_ONCE):
            end = min(begin + PARTS_AT_ONCE, count)
            path.look_up_some(request, begin, end, True)
            path.wait_on_some(request, begin, end)
            if request.incremental and request.session is not None:
                request.session.settle(request.parts[begin:end])
            await turns.step()
            if request.done:
                break
        has_enough = request.at_once or request.taken_bytes >= request.bytes_min
        if request.done or (request.stirred and not has_enough) or not path.is_answered_now(request):
            await self._wait_or_answer(request, turns)
        else:
            await self._leave(request, turns)
            await self._send(request, turns)

    async def _wait_or_answer(self, request: FetchRequest, turns: Turns) -> None:
        """Goes on waiting, unless enough happened to its partitions while it was under way."""
        path = self._path
        while request.to_count and not request.done and not request.stirred:
            request.to_count = False
            await self._look_again(request, turns)
            if request.at_once or request.found_bytes >= request.bytes_min:
                request.stirred = True
        if request.done:
            await self._drop(request, turns)
        elif request.stirred:
            await self._answer(request, turns)
        else:
            path.drop_found(request)
            path.begin_waiting(request)

    async def _look_again(self, request: FetchRequest, turns: Turns) -> None:
        path = self._path
        path.gather(request)
        path.begin_look_up(request)
        count = len(request.parts)
        for begin in range(0, count, PARTS_AT_ONCE):
            path.look_up_some(request, begin, min(begin + PARTS_AT_ONCE, count), False)
            await turns.step()

    async def _leave(self, request: FetchRequest, turns: Turns) -> None:
        """Removes the request from the partitions on which it waits."""
        session = request.session
        if session is not None:
            if request in session.parked:
                session.unpark(request)
            return
        for some in pieces_of(request.parts):
            for part in some:
                if part.partition is not None:
                    part.partition.stop_waiting(request)
            await turns.step()

    async def _answer(self, request: FetchRequest, turns: Turns) -> None:
        await self._leave(request, turns)
        await self._look_again(request, turns)
        await self._send(request, turns)

    async def _send(self, request: FetchRequest, turns: Turns) -> None:
        request.done = True
        if request.connection.closed:
            await self._let_go(request, turns)
            return
        path = self._path
        if request.version < CURRENT_FORMAT and path.down is not None and path.down(path, request):
            return
        await self._finish(request, turns)

    async def _finish(self, request: FetchRequest, turns: Turns) -> None:
        path, parts, session = self._path, request.parts, request.session
        replied = parts
        if session is not None:
            replied = []
            for some in pieces_of(parts):
                replied += session.changed(some) if request.incremental else session.all_told(some)
                await turns.step()
        encoder = FetchEncoder(request, replied)
        while not encoder.run(PARTS_AT_ONCE):
            await turns.step()
        reply = encoder.pieces
        del encoder
        if request.version < CURRENT_FORMAT and path.down is not None:
            reply = path.down.in_pieces(reply)
        for some in pieces_of(replied):
            path.note_sent(request, some)
            await turns.step()
        if session is not None:
            for some in pieces_of(parts):
                session.settle(some)
                await turns.step()
        del replied, parts
        self._complete(request, reply)
        await self._let_go(request, turns)

    def _complete(self, request: FetchRequest, reply: list[Any]) -> None:
        request.done = True
        connection = request.connection
        if connection.closed or request.reply is None:
            return
        if connection.state is request:
            connection.state = None
        request.reply.complete(reply)

    async def _drop(self, request: FetchRequest, turns: Turns) -> None:
        await self._leave(request, turns)
        await self._let_go(request, turns)

    async def _let_go(self, request: FetchRequest, turns: Turns) -> None:
        """Keeps nothing. Many partitions that are dropped as a whole would hold the loop."""
        parts = request.parts
        request.let_go()
        while parts:
            del parts[-PARTS_AT_ONCE:]
            await turns.step()


def pieces_of(parts: list[FetchPart]) -> Iterator[list[FetchPart]]:
    """``parts``, some at a time."""
    for begin in range(0, len(parts), PARTS_AT_ONCE):
        yield parts[begin : begin + PARTS_AT_ONCE]
