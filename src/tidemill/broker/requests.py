"""Where every request arrives: Produce and Fetch take the compiled way, all others the one of handlers.

A connection's requests are handled one after the other. One thing may overlap: a produce may follow
produces that still wait for their replicas.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i16, i64

from tidemill.broker import fetch_codec, produce_codec
from tidemill.broker.fetch import FetchPath, FetchRequest
from tidemill.broker.produce import ProducePath
from tidemill.log.errors import storage_error
from tidemill.log.names import parse_partition_directory
from tidemill.model.counters import TimeHistogram
from tidemill.model.errors import ProtocolError
from tidemill.model.ports import File
from tidemill.net.connection import Connection, FrameHandler, Stopwatch
from tidemill.net.memory import FREE_BYTES
from tidemill.net.sending import FileRange
from tidemill.wire.primitives import skip_tag_section

PRODUCE: Final = 0
FETCH: Final = 1
API_KEYS: Final = 128
TIMED_EVERY: Final = 16
"""Of so many requests of Produce, and of Fetch, the first is timed: two looks at the clock and two notes
are a few per cent of a small request."""
COLD_BYTES_MAX: Final = 16 * 1024 * 1024
"""A request that carries no records is larger only when somebody wants to keep the broker busy: it is taken
apart in one go. The largest honest ones are assignments of large groups."""


class Requests(FrameHandler):
    """Hands each frame on to the code of its API."""

    def __init__(self, produces: ProducePath, fetches: FetchPath, cold: Any) -> None:
        self.produces = produces
        self.fetches = fetches
        self.cold = cold
        """``cold.handle(connection, data, start, end, api_key, version, correlation_id)`` and the port's
        other calls: what is not worth compiling."""
        self.counts: list[int] = [0] * API_KEYS
        self.local_times = {PRODUCE: TimeHistogram(), FETCH: TimeHistogram()}
        """By API key: how long the loop was at a request, of those that are timed."""
        self.total_times = {PRODUCE: TimeHistogram(), FETCH: TimeHistogram()}
        """The same with all waiting, up to the answer."""

    def on_frame(self, connection: Connection, data: bytes, start: i64, end: i64) -> bool:
        """Takes one request; False when it has to wait for the replies before it."""
        if end - start < 8:
            raise ProtocolError(f"a request of {end - start} bytes is shorter than its header")
        api_key = read_i16_be(data, start)
        if connection.waiting and api_key == FETCH:
            self.hurry_follower(connection)
        if connection.waiting:
            if api_key != PRODUCE or connection.context.busy:
                return False
        elif connection.context.busy:
            connection.context.busy = False
        if end - start > FREE_BYTES and api_key <= FETCH and not connection.memory.may_answer(connection):
            return False
        version = read_i16_be(data, start + 2)
        if api_key == PRODUCE and produce_codec.FIRST_VERSION <= version <= produce_codec.LAST_VERSION:
            count: i64 = self.counts[PRODUCE] + 1
            self.counts[PRODUCE] = count
            if count % TIMED_EVERY == 1:
                self.take_timed(connection, data, start, end, version, True)
            else:
                self.take(connection, data, start, end, version, True)
        elif api_key == FETCH and fetch_codec.FIRST_VERSION <= version <= fetch_codec.LAST_VERSION:
            count = self.counts[FETCH] + 1
            self.counts[FETCH] = count
            if count % TIMED_EVERY == 1:
                self.take_timed(connection, data, start, end, version, False)
            else:
                self.take(connection, data, start, end, version, False)
        else:
            if 0 <= api_key < API_KEYS:
                self.counts[api_key] += 1
            if end - start > COLD_BYTES_MAX:
                raise ProtocolError(
                    f"a request of API key {api_key} has {end - start} bytes: without records"
                    f" {COLD_BYTES_MAX} are allowed"
                )
            self.cold.handle(connection, data, start, end, api_key, version, read_i32_be(data, start + 4))
        if api_key != PRODUCE and connection.waiting:
            connection.context.busy = True
        return True

    def hurry_follower(self, connection: Connection) -> None:
        """Ends the wait of a follower's fetch when its next one is there, which tells of more partitions."""
        request = connection.state
        if isinstance(request, FetchRequest) and request.replica_id >= 0:
            self.fetches.hurry(connection)

    def take_timed(
        self, connection: Connection, data: bytes, start: i64, end: i64, version: i16, is_produce: bool
    ) -> None:
        """As :meth:`take`, with the time noted that it takes until its answer is there."""
        started: float = perf_counter()
        self.take(connection, data, start, end, version, is_produce)
        seconds: float = perf_counter() - started
        key = PRODUCE if is_produce else FETCH
        self.local_times[key].note(seconds)
        reply = connection.last_reply()
        if reply is None:
            self.total_times[key].note(seconds)
        else:
            reply.stopwatch = Stopwatch(self.total_times[key].note, started)

    def take(
        self, connection: Connection, data: bytes, start: i64, end: i64, version: i16, is_produce: bool
    ) -> None:
        """Reads the header of a Produce or Fetch, and the request behind it."""
        if end - start < 10:
            raise ProtocolError(f"a request of {end - start} bytes ends before its client id")
        correlation_id = read_i32_be(data, start + 4)
        client: i64 = i64(read_i16_be(data, start + 8))
        body: i64 = start + 10
        if client > 0:
            body += client
        if is_produce:
            if version >= produce_codec.FLEXIBLE:
                body = skip_tag_section(data, body, end)
            self.produces.handle(connection, data, body, end, version, correlation_id)
        else:
            if version >= fetch_codec.FLEXIBLE:
                body = skip_tag_section(data, body, end)
            self.fetches.handle(connection, data, body, end, version, correlation_id)

    def on_end(self, connection: Connection) -> None:
        """The peer sends nothing more: a fetch that waits is answered."""
        self.fetches.hurry(connection)

    def on_close(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""
        if connection.context.busy:
            self.produces.forget(connection)
        self.fetches.forget(connection)
        self.cold.on_close(connection, reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """A handler raised what it should not have."""
        self.cold.on_crash(connection, problem)

    def on_read_failed(self, connection: Connection, file: File, problem: BaseException) -> None:
        """A log could not be read while it was sent: its partition is told, as by every read that fails."""
        path: str = getattr(file, "path", "")
        key = parse_partition_directory(path.rpartition("/")[0].rpartition("/")[2])
        if key is None or not isinstance(problem, OSError):
            return
        partition = self.fetches.topics.find(key.topic, key.partition)
        # It may be one of the same name that was made anew, elsewhere.
        if partition is not None and path.startswith(f"{partition.log.directory}/"):
            partition.events.storage_trouble(partition, storage_error("read", path, problem))

    def read_ahead(self, connection: Connection, part: FileRange, count: i64) -> None:
        """Brings a range into memory in a thread."""
        self.cold.read_ahead(connection, part, count)
