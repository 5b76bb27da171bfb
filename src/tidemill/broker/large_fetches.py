"""Handles fetches with many partitions in slices, so that they do not block the event loop.

The steps are those of :mod:`tidemill.broker.fetch_handler`, for some partitions at a time: decode, update the
session, look up, wait, encode. The fetch is registered with each partition right after its
look-up, so that it misses no change during the look-ups of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from tidemill.broker.delayed_fetch import (
    BEGIN_WAITING,
    COMPLETE,
    COMPLETED,
    LOOK_UP_AGAIN,
    LOOKING_UP,
    WAITING,
    DelayedFetch,
    SlicedFetch,
)
from tidemill.broker.fetch_codec import FetchEncoder, encode_error
from tidemill.broker.fetch_handler import FetchHandler, LargeFetchHandler
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.broker.fetch_reader import ALL_FORMATS_FROM
from tidemill.broker.fetch_session import FetchSession
from tidemill.broker.large_requests import LargeRequestQueue, RequestSlices
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.task_set import TaskSet
from tidemill.net.connection import Connection, PendingResponse
from tidemill.net.send_queue import ResponsePart
from tidemill.wire.fetch_layout import SESSIONS_FROM, FetchRequest, FetchRequestReader

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
        large = LargeFetch(self, handler, fetch)
        large.begin(large.look_up_and_send)

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
        memory = self.queue.memory
        if memory is not None:
            memory.reserve(len(body))
        try:
            reader = FetchRequestReader(version, correlation_id, body, 0, len(body))
            while not reader.run(PARTITIONS_PER_SLICE):
                await slices.step()
            return reader.request()
        except IndexError as problem:
            raise ProtocolError(f"Fetch version {version} is cut short: {problem}") from None
        finally:
            if memory is not None:
                memory.release(len(body))


Work = Callable[[RequestSlices], Awaitable[None]]


class LargeFetch(SlicedFetch):
    """The processing of one fetch. A task runs it, except while the fetch waits."""

    def __init__(self, large_fetches: LargeFetches, handler: FetchHandler, fetch: DelayedFetch) -> None:
        self._large_fetches = large_fetches
        self._handler = handler
        self._fetch = fetch
        self._has_deadline = False
        self._must_complete = False
        """An event during the look-up requires the response."""
        self._must_count = False
        """A transaction may have ended: the readable bytes must be counted again."""
        fetch.sliced = self
        if fetch.reply is None:
            fetch.reply = fetch.connection.respond_later()
        if fetch.connection.closed:
            fetch.apply(COMPLETE)
        else:
            handler.delayed[fetch.connection] = fetch

    # -- events

    def complete(self) -> None:
        """Completes the fetch; during the look-up, after its end."""
        if self._fetch.state == LOOKING_UP:
            self._must_complete = True
        elif self._fetch.state == WAITING:
            self._resume(self.look_up_and_send)

    def count_committed(self) -> None:
        """Counts the readable bytes again."""
        self._must_count = True
        if self._fetch.state == WAITING:
            self._resume(self._wait_or_send)

    def send(self) -> None:
        """Builds and sends the response from the results."""
        self.begin(self._send_results)

    def cancel(self) -> None:
        """Ends the fetch of a closed connection."""
        if self._fetch.state == WAITING:
            self._resume(self._drop)
        self._fetch.apply(COMPLETE)

    def _resume(self, work: Work) -> None:
        self._fetch.apply(LOOK_UP_AGAIN)
        self.begin(work)

    # -- processing

    def begin(self, work: Work) -> None:
        """Runs ``work`` in a new task."""
        self._must_complete = False
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
            self._fetch.connection.crash(problem)
            await self._drop(slices)

    async def find_session_and_look_up(self, slices: RequestSlices) -> None:
        """Finds the session of a decoded request, and looks up the partitions."""
        fetch, handler = self._fetch, self._handler
        if fetch.request.version >= SESSIONS_FROM:
            try:
                await self._find_session(slices)
            except KafkaError as error:
                self._complete_reply([encode_error(fetch.request, error.code)])
                await self._free(slices)
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

    async def look_up(self, slices: RequestSlices) -> None:
        """Looks up the partitions, and sends the response or waits."""
        fetch, handler = self._fetch, self._handler
        session = fetch.session
        if session is not None:
            session.waiters.append(fetch)
        for begin, end in self._slices():
            handler.reader.read(fetch, begin, end, True)
            self._register(begin, end)
            await slices.step()
            if fetch.state == COMPLETED:
                break
        results = fetch.results
        has_enough = results.completes_fetch or results.bytes_found >= results.bytes_min
        if (
            fetch.state == COMPLETED
            or (self._must_complete and not has_enough)
            or not handler.is_complete(fetch)
        ):
            await self._wait_or_send(slices)
        else:
            await self._unregister(slices)
            await self._send(slices)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Yields the begin and end of each slice of the partitions."""
        count = int(self._fetch.count)
        for begin in range(0, count, PARTITIONS_PER_SLICE):
            yield begin, min(begin + PARTITIONS_PER_SLICE, count)

    def _register(self, begin: int, end: int) -> None:
        """Registers the fetch with the partitions of a slice that it has just looked up."""
        fetch = self._fetch
        session, found = fetch.session, fetch.results.partitions
        if session is None:
            for data in found[begin:end]:
                if data.partition is not None:
                    fetch.register_on(data.partition)
            return
        some = fetch.session_partitions[begin:end]
        for partition in some:
            if partition.session is session:
                partition.register(fetch.request.replica_id)
        if fetch.request.is_incremental:
            session.clear_up_to_date(some, found, begin)

    async def _wait_or_send(self, slices: RequestSlices) -> None:
        """Waits, unless events during the look-up completed the fetch."""
        fetch, handler = self._fetch, self._handler
        while True:
            await self._drop_results(slices)
            if fetch.state == COMPLETED or self._must_complete or not self._must_count:
                break
            self._must_count = False
            await self._look_up_again(slices)
            if fetch.results.has_enough:
                self._must_complete = True
        if fetch.state == COMPLETED:
            await self._drop(slices)
        elif self._must_complete:
            await self.look_up_and_send(slices)
        else:
            fetch.apply(BEGIN_WAITING)
            if not self._has_deadline:
                self._has_deadline = True
                handler.add_deadline(fetch)

    async def _look_up_again(self, slices: RequestSlices) -> None:
        fetch, handler = self._fetch, self._handler
        await self._drop_results(slices)
        handler.select_partitions(fetch)
        fetch.results = handler.reader.new_results(fetch.request)
        for begin, end in self._slices():
            handler.reader.read(fetch, begin, end, False)
            await slices.step()

    async def look_up_and_send(self, slices: RequestSlices) -> None:
        """Looks up the partitions, and sends the response with the bytes that are available."""
        await self._unregister(slices)
        await self._look_up_again(slices)
        await self._send(slices)

    async def _send(self, slices: RequestSlices) -> None:
        fetch, down = self._fetch, self._handler.down_converter
        fetch.apply(COMPLETE)
        if fetch.connection.closed:
            await self._free(slices)
        elif fetch.request.version >= ALL_FORMATS_FROM or down is None or not down.convert(fetch):
            await self._send_results(slices)

    async def _send_results(self, slices: RequestSlices) -> None:
        fetch, handler = self._fetch, self._handler
        request, session, found = fetch.request, fetch.session, fetch.results.partitions
        sent: list[FetchPartitionData] = []
        for begin, end in self._slices():
            if session is None:
                sent += found[begin:end]
            elif request.is_incremental:
                sent += session.select_changed(fetch.session_partitions[begin:end], found, begin)
            else:
                sent += session.select_all(fetch.session_partitions[begin:end], found, begin)
            await slices.step()
        encoder = FetchEncoder(request, 0 if session is None else session.session_id, sent)
        while not encoder.run(PARTITIONS_PER_SLICE):
            await slices.step()
        response = encoder.pieces
        del encoder
        if request.version < ALL_FORMATS_FROM and handler.down_converter is not None:
            response = handler.down_converter.in_pieces(response)
        for begin in range(0, len(sent), PARTITIONS_PER_SLICE):
            handler.record_sent(fetch, sent[begin : begin + PARTITIONS_PER_SLICE])
            await slices.step()
        del sent
        if session is not None:
            for begin, end in self._slices():
                session.clear_up_to_date(fetch.session_partitions[begin:end], found, begin)
                await slices.step()
        self._complete_reply(response)
        await self._free(slices)

    def _complete_reply(self, response: list[ResponsePart]) -> None:
        fetch = self._fetch
        fetch.apply(COMPLETE)
        connection = fetch.connection
        if connection.closed or fetch.reply is None:
            return
        self._handler.delayed.pop(connection, None)
        fetch.reply.complete(response)

    # -- release: to free many objects at once would block the event loop

    async def _unregister(self, slices: RequestSlices) -> None:
        """Unregisters the fetch from its session or partitions."""
        fetch = self._fetch
        session = fetch.session
        if session is not None:
            if fetch in session.waiters:
                session.remove_waiter(fetch)
            return
        while fetch.registered_on:
            for partition in fetch.registered_on[-PARTITIONS_PER_SLICE:]:
                partition.delayed.stop_waiting(fetch)
            del fetch.registered_on[-PARTITIONS_PER_SLICE:]
            await slices.step()

    async def _drop_results(self, slices: RequestSlices) -> None:
        """Frees the results: a delayed fetch keeps no files open."""
        fetch = self._fetch
        while fetch.results.partitions:
            del fetch.results.partitions[-PARTITIONS_PER_SLICE:]
            await slices.step()
        fetch.session_partitions = []

    async def _drop(self, slices: RequestSlices) -> None:
        """Ends a fetch without a response."""
        self._fetch.apply(COMPLETE)
        await self._unregister(slices)
        await self._free(slices)

    async def _free(self, slices: RequestSlices) -> None:
        fetch = self._fetch
        await self._drop_results(slices)
        # The lists keep the partitions of the request, which is released at once.
        requested, forgotten = list(fetch.request.partitions), list(fetch.request.forgotten)
        fetch.drop()
        while requested or forgotten:
            del requested[-PARTITIONS_PER_SLICE:]
            del forgotten[-PARTITIONS_PER_SLICE:]
            await slices.step()
