"""Dispatches requests by API: Produce and Fetch to their handlers, all others to ApiRequestHandler. Compiled.

The requests of a connection are handled one after the other, with two exceptions. A Produce request may
follow Produce requests that wait for their replicas. The next fetch of a follower completes its waiting
fetch.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.broker import produce_codec
from tidemill.broker.fetch_handler import FetchHandler
from tidemill.broker.produce_handler import ProduceHandler
from tidemill.model.errors import ProtocolError
from tidemill.model.time_histogram import TimeHistogram
from tidemill.net.connection import Connection, FrameHandler, Stopwatch
from tidemill.net.memory_pool import EXEMPT_BYTES
from tidemill.net.send_queue import FileRange
from tidemill.wire import fetch_layout
from tidemill.wire.header import skip_request_header

PRODUCE: Final = 0
FETCH: Final = 1
"""As :class:`~tidemill.wire.apis.ApiKey`, whose members are no constants for mypyc."""
API_KEYS: Final = 128
TIMED_EVERY: Final = 16
"""One of this number of Produce, and of Fetch, requests is timed. To read the clock and update the histograms
costs a few per cent of a small request."""
OTHER_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""The limit for requests without records. A larger one can only be an attack; the largest legitimate requests
are assignments of large groups."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ApiRequestHandler:
    """Handles the requests of all APIs except Produce and Fetch, and events of connections."""

    def handle(
        self,
        connection: Connection,
        data: bytes,
        start: i64,
        end: i64,
        api_key: i16,
        version: i16,
        correlation_id: i32,
    ) -> None:
        """Handles the request ``data[start:end]``. Raises ProtocolError to close its connection."""
        raise NotImplementedError

    def on_close(self, connection: Connection, reason: str) -> None:
        """Called when a connection has closed."""
        raise NotImplementedError

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """Called with an unexpected exception of a handler, which closes the connection."""
        raise NotImplementedError

    def read_ahead(self, connection: Connection, part: FileRange, count: i64) -> None:
        """Reads ``count`` bytes of ``part`` into memory in a thread, then calls ``resume_send``."""
        raise NotImplementedError


def is_compiled(api_key: i16, version: i16) -> bool:
    """Whether a request is a Produce or Fetch request of a served version."""
    if api_key == PRODUCE:
        return produce_codec.FIRST_VERSION <= version <= produce_codec.LAST_VERSION
    return api_key == FETCH and fetch_layout.FIRST_VERSION <= version <= fetch_layout.LAST_VERSION


class KafkaApis(FrameHandler):
    """Passes each request to the handler of its API."""

    def __init__(self, produces: ProduceHandler, fetches: FetchHandler, others: ApiRequestHandler) -> None:
        self.produces = produces
        self.fetches = fetches
        self.others = others
        """The handler of all other APIs."""
        self.counts: list[int] = [0] * API_KEYS
        self.local_times = {PRODUCE: TimeHistogram(), FETCH: TimeHistogram()}
        """By API key: the time of the event loop for each timed request."""
        self.total_times = {PRODUCE: TimeHistogram(), FETCH: TimeHistogram()}
        """By API key: the time until the response of each timed request, including delays."""

    def on_frame(self, connection: Connection, data: bytes, start: i64, end: i64) -> bool:
        """Handles one request. Returns False if it has to wait for earlier responses or for memory."""
        if end - start < 8:
            raise ProtocolError(f"a request of {end - start} bytes is shorter than its header")
        api_key = read_i16_be(data, start)
        if connection.has_pending_responses and api_key == FETCH:
            self.fetches.complete_follower_fetch(connection)
        if connection.has_pending_responses and (api_key != PRODUCE or connection.is_blocked):
            return False
        if end - start > EXEMPT_BYTES and api_key <= FETCH and not connection.memory.can_respond(connection):
            return False
        version = read_i16_be(data, start + 2)
        if is_compiled(api_key, version):
            count: i64 = self.counts[api_key] + 1
            self.counts[api_key] = count
            if count % TIMED_EVERY == 1:
                self.handle_timed(connection, data, start, end, api_key, version)
            else:
                self.handle(connection, data, start, end, api_key, version)
        else:
            if 0 <= api_key < API_KEYS:
                self.counts[api_key] += 1
            if end - start > OTHER_REQUEST_BYTES_MAX:
                raise ProtocolError(
                    f"a request of API key {api_key} has {end - start} bytes; the limit without records is"
                    f" {OTHER_REQUEST_BYTES_MAX}"
                )
            self.others.handle(connection, data, start, end, api_key, version, read_i32_be(data, start + 4))
        return True

    def handle_timed(
        self, connection: Connection, data: bytes, start: i64, end: i64, api_key: i16, version: i16
    ) -> None:
        """As :meth:`handle`; records the local time, and the time until the response."""
        started: float = perf_counter()
        self.handle(connection, data, start, end, api_key, version)
        seconds: float = perf_counter() - started
        self.local_times[api_key].record(seconds)
        response = connection.last_pending_response()
        if response is None:
            self.total_times[api_key].record(seconds)
        else:
            response.stopwatch = Stopwatch(self.total_times[api_key].record, started)

    def handle(
        self, connection: Connection, data: bytes, start: i64, end: i64, api_key: i16, version: i16
    ) -> None:
        """Passes a Produce or Fetch request to its handler."""
        correlation_id = read_i32_be(data, start + 4)
        if api_key == PRODUCE:
            body = skip_request_header(data, start, end, version >= produce_codec.FLEXIBLE)
            self.produces.handle(connection, data, body, end, version, correlation_id)
        else:
            body = skip_request_header(data, start, end, version >= fetch_layout.FLEXIBLE)
            self.fetches.handle(connection, data, body, end, version, correlation_id)

    def on_end(self, connection: Connection) -> None:
        """Completes the delayed fetch of a connection whose peer sends no more requests."""
        self.fetches.complete_waiting(connection)

    def on_close(self, connection: Connection, reason: str) -> None:
        """Removes the delayed requests of a closed connection."""
        self.produces.on_close(connection)
        self.fetches.on_close(connection)
        self.others.on_close(connection, reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """Reports an unexpected exception of a handler."""
        self.others.on_crash(connection, problem)

    def read_ahead(self, connection: Connection, part: FileRange, count: i64) -> None:
        """Reads a range into the page cache in a thread."""
        self.others.read_ahead(connection, part, count)
