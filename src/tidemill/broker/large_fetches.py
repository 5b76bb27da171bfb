"""Handles fetches with many partitions in slices, so that they do not block the event loop.

This module has the loops over the slices. Each step is that of :mod:`tidemill.broker.fetch_handler`, for some
partitions at a time: decode, update the session, look up, wait, encode. The fetch is registered with each
partition right after its look-up, so that it misses no change during the look-ups of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from tidemill.broker.delayed_fetch import (
    COMPLETE,
    COMPLETED,
    COUNT_DUE,
    END_LOOK_UP,
    LOOK_UP_AGAIN,
    RESPOND,
    RESPONSE_DUE,
    DelayedFetch,
    SlicedFetch,
)
from tidemill.broker.fetch_codec import encode_error
from tidemill.broker.fetch_handler import FetchHandler, LargeFetchHandler
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.broker.fetch_session import FetchSession
from tidemill.broker.large_requests import LargeRequestQueue, RequestSlices
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.task_set import TaskSet
from tidemill.net.connection import Connection, PendingResponse
from tidemill.net.send_queue import ResponsePart
from tidemill.wire.fetch_layout import FetchRequest, FetchRequestReader

PARTITIONS_PER_SLICE: Final = 100
"""The partitions between two readings of the clock."""


class LargeFetches(LargeFetchHandler):
    """Handles the large fetches of a :class:`tidemill.broker.fetch_handler.FetchHandler`."""

    def __init__(self, queue: LargeRequestQueue, tasks: TaskSet) -> None:
        self.queue = queue
        self.tasks = tasks
        """The tasks that the broker waits for when it stops."""

    def handle(
        self, handler: FetchHandler, connection: Connection, version: int, correlation_id: int, body: bytes
    ) -> None:
        """Handles a request that is not decoded yet. ``body``: the bytes behind its header."""
        reply = connection.respond_later()
        self.tasks.start(self._handle(handler, connection, reply, version, correlation_id, body))

    def look_up(self, handler: FetchHandler, fetch: DelayedFetch) -> None:
        """Handles a decoded request whose session has many partitions to look up."""
        large = LargeFetch(self, handler, fetch)
        large.begin(large.look_up)

    def complete(self, handler: FetchHandler, fetch: DelayedFetch) -> None:
        """Completes a delayed fetch whose session has many partitions to look up."""
        LargeFetch(self, handler, fetch).resume()

    def end_session(self, session: FetchSession) -> None:
        """Removes the partitions of a session that has ended."""

        async def work() -> None:
            slices = RequestSlices(self.queue)
            try:
                while not session.drop_some(PARTITIONS_PER_SLICE):
                    await slices.step()
            finally:
                slices.end()

        self.tasks.start(work())

    async def _handle(
        self,
        handler: FetchHandler,
        connection: Connection,
        reply: PendingResponse,
        version: int,
        correlation_id: int,
        body: bytes,
    ) -> None:
        slices = RequestSlices(self.queue)
        try:
            request = await self._decode(version, correlation_id, body, slices)
            fetch = DelayedFetch(handler, connection, request, handler.reader.new_results(request))
            fetch.reply = reply
            large = LargeFetch(self, handler, fetch)
            await large.run(large.find_session_and_look_up, slices)
        except ProtocolError as problem:
            connection.close(str(problem))
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)
        finally:
            slices.end()

    async def _decode(
        self, version: int, correlation_id: int, body: bytes, slices: RequestSlices
    ) -> FetchRequest:
        self.queue.memory.reserve(len(body))
        try:
            reader = FetchRequestReader(version, correlation_id, body, 0, len(body))
            while not reader.run(PARTITIONS_PER_SLICE):
                await slices.step()
            return reader.request()
        except IndexError as problem:
            raise ProtocolError(f"Fetch version {version} is cut short: {problem}") from None
        finally:
            self.queue.memory.release(len(body))


Work = Callable[[RequestSlices], Awaitable[None]]


class LargeFetch(SlicedFetch):
    """The processing of one fetch. A task runs it, except while the fetch waits."""

    def __init__(self, large_fetches: LargeFetches, handler: FetchHandler, fetch: DelayedFetch) -> None:
        self._large_fetches = large_fetches
        self._handler = handler
        self._fetch = fetch
        fetch.sliced = self
        if fetch.reply is None:
            fetch.reply = fetch.connection.respond_later()
        if fetch.connection.closed:
            fetch.apply(COMPLETE)
        else:
            handler.delayed[fetch.connection] = fetch

    # -- SlicedFetch

    def resume(self) -> None:
        """Continues a fetch that has waited, in the state that followed: counts, responds or releases it."""
        self.begin(self._follow_state)

    def send(self) -> None:
        """Builds and sends the response from the results."""
        self.begin(self._send_results)

    # -- processing

    def begin(self, work: Work) -> None:
        """Runs ``work`` in a new task."""
        self._large_fetches.tasks.start(self._run_alone(work))

    async def _run_alone(self, work: Work) -> None:
        slices = RequestSlices(self._large_fetches.queue)
        try:
            await self.run(work, slices)
        finally:
            slices.end()

    async def run(self, work: Work, slices: RequestSlices) -> None:
        """Runs ``work``. An exception closes only this connection."""
        try:
            await work(slices)
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            self._fetch.apply(COMPLETE)
            self._fetch.connection.crash(problem)
            await self._drop(slices)

    async def find_session_and_look_up(self, slices: RequestSlices) -> None:
        """Finds the session of a decoded request, and looks up the partitions."""
        fetch, handler = self._fetch, self._handler
        try:
            await self._find_session(slices)
        except KafkaError as error:
            await self._respond([encode_error(fetch.request, error.code)], slices)
            return
        handler.select_partitions(fetch)
        await self.look_up(slices)

    async def _find_session(self, slices: RequestSlices) -> None:
        """Finds and updates the session of the request. Raises KafkaError as :meth:`FetchSessions.find`."""
        fetch, sessions = self._fetch, self._handler.sessions
        request = fetch.request
        session = fetch.session = sessions.find(request)
        if session is None:
            return
        for begin in range(0, len(request.partitions), PARTITIONS_PER_SLICE):
            if session.ended:
                break
            session.update(request.partitions[begin : begin + PARTITIONS_PER_SLICE], ())
            await slices.step()
        for begin in range(0, len(request.forgotten), PARTITIONS_PER_SLICE):
            if session.ended:
                break
            session.update((), request.forgotten[begin : begin + PARTITIONS_PER_SLICE])
            await slices.step()
        sessions.enforce_partition_limit(session)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Yields the begin and end of each slice of the partitions."""
        count = int(self._fetch.count)
        for begin in range(0, count, PARTITIONS_PER_SLICE):
            yield begin, min(begin + PARTITIONS_PER_SLICE, count)

    async def look_up(self, slices: RequestSlices) -> None:
        """Looks up the partitions, and sends the response or waits."""
        fetch, handler = self._fetch, self._handler
        fetch.begin_registration()
        for begin, end in self._slices():
            handler.reader.read(fetch, begin, end, True)
            fetch.register_some(begin, end)
            await slices.step()
            if fetch.state == COMPLETED:
                break
        is_current = fetch.state != RESPONSE_DUE or fetch.results.has_found_enough
        if fetch.state != COMPLETED and is_current and handler.is_complete(fetch):
            await self._unregister(slices)
            await self._send(slices)
            return
        await self._drop_results(slices)
        if not fetch.is_completed():
            handler.add_deadline(fetch)
        fetch.apply(END_LOOK_UP)
        await self._follow_state(slices)

    async def _follow_state(self, slices: RequestSlices) -> None:
        """Does what the events require that came during the look-up, or while the fetch waited."""
        fetch = self._fetch
        while fetch.state == COUNT_DUE:
            fetch.apply(LOOK_UP_AGAIN)
            await self._look_up_again(slices)
            has_enough = fetch.results.has_enough
            await self._drop_results(slices)
            if has_enough and fetch.state != COMPLETED:
                fetch.apply(RESPOND)
            fetch.apply(END_LOOK_UP)
        if fetch.state == COMPLETED:
            await self._drop(slices)
        elif fetch.state == RESPONSE_DUE:
            await self._unregister(slices)
            await self._look_up_again(slices)
            await self._send(slices)

    async def _look_up_again(self, slices: RequestSlices) -> None:
        fetch, handler = self._fetch, self._handler
        await self._drop_results(slices)
        handler.begin_look_up(fetch)
        for begin, end in self._slices():
            handler.reader.read(fetch, begin, end, False)
            await slices.step()

    async def _send(self, slices: RequestSlices) -> None:
        fetch = self._fetch
        fetch.apply(COMPLETE)
        if fetch.connection.closed:
            await self._free(slices)
        elif not self._handler.converts(fetch):
            await self._send_results(slices)

    async def _send_results(self, slices: RequestSlices) -> None:
        fetch, handler = self._fetch, self._handler
        sent: list[FetchPartitionData] = []
        for begin, end in self._slices():
            sent += handler.select_sent(fetch, begin, end)
            await slices.step()
        encoder = handler.encoder(fetch, sent)
        while not encoder.run(PARTITIONS_PER_SLICE):
            await slices.step()
        response = encoder.pieces
        del encoder, sent
        await self._respond(response, slices)

    async def _respond(self, response: list[ResponsePart], slices: RequestSlices) -> None:
        fetch = self._fetch
        fetch.apply(COMPLETE)
        if not fetch.connection.closed:
            self._handler.delayed.pop(fetch.connection, None)
            self._handler.respond(fetch, response)
        await self._free(slices)

    # -- release: to free many objects at once would block the event loop

    async def _unregister(self, slices: RequestSlices) -> None:
        """Unregisters the fetch from its session or partitions."""
        while not self._fetch.unregister_some(PARTITIONS_PER_SLICE):
            await slices.step()

    async def _drop_results(self, slices: RequestSlices) -> None:
        """Frees the results: a delayed fetch keeps no files open."""
        await slices.clear(self._fetch.results.partitions)
        self._fetch.session_partitions = []

    async def _drop(self, slices: RequestSlices) -> None:
        """Releases a completed fetch without a response."""
        await self._unregister(slices)
        await self._free(slices)

    async def _free(self, slices: RequestSlices) -> None:
        fetch = self._fetch
        await self._drop_results(slices)
        # The lists keep the partitions of the request, which is released at once.
        requested, forgotten = list(fetch.request.partitions), list(fetch.request.forgotten)
        fetch.drop()
        await slices.clear(requested)
        await slices.clear(forgotten)
