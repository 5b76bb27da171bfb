"""Handles Fetch requests: decodes them, looks up their partitions, sends the response now or later. Compiled.

=============================================  =============================================================
module                                         holds
=============================================  =============================================================
:mod:`tidemill.wire.fetch_layout`              the decoded request, the layout of request and response
:mod:`tidemill.broker.fetch_partition_data`    the results of a look-up
:mod:`tidemill.broker.fetch_session`           the partitions of a client, and the state last sent to it
:mod:`tidemill.broker.fetch_admission_checks`  the table of refusals
:mod:`tidemill.broker.fetch_reader`            the look-up
:mod:`tidemill.broker.delayed_fetch`           a fetch and its states
:mod:`tidemill.broker.fetch_codec`             the response: bytes and ranges of files
:mod:`tidemill.broker.large_fetches`           the same steps, in slices, for fetches of many partitions
=============================================  =============================================================
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.broker.api_declaration import CompiledApi
from tidemill.broker.delayed_fetch import (
    COMPLETE,
    COMPLETED,
    COUNT,
    END_LOOK_UP,
    LOOK_UP_AGAIN,
    RESPOND,
    WAITING,
    DelayedFetch,
    FetchCompletion,
)
from tidemill.broker.fetch_codec import FetchEncoder, encode_error
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.broker.fetch_reader import (
    ALL_FORMATS_FROM,
    FetchReader,
)
from tidemill.broker.fetch_session import FetchSessions
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.system_interfaces import EventLoop
from tidemill.net.connection import Connection
from tidemill.net.deadlines import Deadlines
from tidemill.net.send_queue import ResponsePart
from tidemill.replication.delayed_operations import WatchedPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import FIRST_VERSION, LAST_VERSION, read_request

API: Final = CompiledApi(ApiKey.FETCH, FIRST_VERSION, LAST_VERSION)

LARGE_BYTES: Final = 64 * 1024
"""A larger request is handled in slices. It names some thousand partitions."""
LARGE_PARTITIONS: Final = 2000
"""More partitions are looked up in slices, because the look-up takes some milliseconds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DownConverter:
    """Converts records for clients of a version before :data:`ALL_FORMATS_FROM`."""

    def convert(self, fetch: DelayedFetch) -> bool:
        """Begins to convert the results of ``fetch`` if they need it; ``send_results`` is called afterwards.

        Returns whether it began.
        """
        raise NotImplementedError

    def in_pieces(self, response: list[ResponsePart]) -> list[ResponsePart]:
        """Returns ``response`` with its converted ranges split into pieces."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class LargeFetchHandler:
    """Handles fetches of many partitions in slices."""

    def handle(
        self, handler: FetchHandler, connection: Connection, version: i16, correlation_id: i32, body: bytes
    ) -> None:
        """Handles a request that is not decoded yet. ``body``: the bytes behind its header."""
        raise NotImplementedError

    def look_up(self, handler: FetchHandler, fetch: DelayedFetch) -> None:
        """Handles a decoded request whose session has many partitions to look up."""
        raise NotImplementedError

    def complete(self, handler: FetchHandler, fetch: DelayedFetch) -> None:
        """Completes a delayed fetch whose session has many partitions to look up."""
        raise NotImplementedError


class FetchHandler(FetchCompletion):
    """Handles the Fetch requests of all connections."""

    def __init__(
        self,
        reader: FetchReader,
        loop: EventLoop,
        deadlines: Deadlines,
        sessions: FetchSessions,
        down: DownConverter | None = None,
        large: LargeFetchHandler | None = None,
    ) -> None:
        self.reader = reader
        self._loop = loop
        self._deadlines = deadlines
        self.sessions = sessions
        self.down_converter = down
        """None: clients of old versions receive the stored message format."""
        self._large = large
        """None: no request is handled in slices."""
        self.large_bytes: i64 = LARGE_BYTES
        self.large_partitions: i64 = LARGE_PARTITIONS
        self.delayed: dict[Connection, DelayedFetch] = {}
        """The fetches that wait, or are looked up in slices: one for each connection."""
        self.errors: dict[int, int] = {}
        self._scheduled: list[DelayedFetch] = []

    @property
    def waiting(self) -> int:
        """The number of fetches in the state WAITING."""
        return sum([fetch.state == WAITING for fetch in self.delayed.values()])

    def handle(
        self, connection: Connection, data: bytes, body: i64, end: i64, version: i16, correlation_id: i32
    ) -> None:
        """Handles the request whose fields begin at ``body``. Raises ProtocolError if it is malformed."""
        if end - body > self.large_bytes and self._large is not None:
            self._large.handle(self, connection, version, correlation_id, data[body:end])
            return
        try:
            request = read_request(version, correlation_id, data, body, end)
        except IndexError as problem:
            raise ProtocolError(f"Fetch version {version} is cut short: {problem}") from None
        fetch = DelayedFetch(self, connection, request, self.reader.new_results(request))
        try:
            session = self.sessions.find(request)
            if session is not None:
                session.update(request.partitions, request.forgotten)
                self.sessions.enforce_partition_limit(session)
        except KafkaError as error:
            self.respond(fetch, [encode_error(request, i16(int(error.code)))])
            return
        fetch.session = session
        self.select_partitions(fetch)
        count = fetch.count
        if count > self.large_partitions and self._large is not None:
            self._large.look_up(self, fetch)
            return
        self.reader.read(fetch, 0, count, True)
        if self.is_complete(fetch):
            self._send(fetch)
        else:
            self._wait(fetch)

    def is_complete(self, fetch: DelayedFetch) -> bool:
        """Whether the response is sent now. The partitions have been looked up."""
        request = fetch.request
        session = fetch.session
        results = fetch.results
        connection = fetch.connection
        return (
            results.has_enough
            or request.wait_ms <= 0
            or (len(request.partitions) if session is None else len(session.partitions)) == 0
            or connection.ended
            or connection.is_output_broken
            or results.ranges > self.large_partitions
            or self.reader.is_enough(fetch)
        )

    def select_partitions(self, fetch: DelayedFetch) -> None:
        """Selects the partitions of the session that must be looked up."""
        session = fetch.session
        if session is not None:
            fetch.session_partitions = (
                session.changed_in_order() if fetch.request.is_incremental else session.all_as_added()
            )

    def begin_look_up(self, fetch: DelayedFetch) -> None:
        """Selects the partitions of a delayed fetch that are looked up again."""
        self.select_partitions(fetch)
        fetch.results = self.reader.new_results(fetch.request)

    # -- delayed fetches

    def _wait(self, fetch: DelayedFetch) -> None:
        """Registers the fetch with its partitions, and sets its deadline."""
        fetch.reply = fetch.connection.respond_later()
        self.delayed[fetch.connection] = fetch
        fetch.register()
        fetch.apply(END_LOOK_UP)
        self.add_deadline(fetch)

    def add_deadline(self, fetch: DelayedFetch) -> None:
        """Sets the deadline: ``fetch.max.wait.ms``, or the end of the throttling."""
        wait_ms = fetch.request.wait_ms
        quota = self.reader.quota
        if fetch.results.is_throttled and quota is not None:
            # Throttled partitions stay marked as changed, and no event reports that the rate has dropped.
            wait_ms = min(wait_ms, 1 + i64(quota.limit.wait_s(self._loop.time()) * 1000))
        self._deadlines.add(wait_ms, fetch)

    def complete_waiting(self, connection: Connection) -> None:
        """Completes the delayed fetch of a connection, if it has one."""
        fetch = self.delayed.get(connection)
        if fetch is not None and fetch.state != COMPLETED:
            self.complete(fetch)

    def complete_follower_fetch(self, connection: Connection) -> None:
        """Completes the delayed fetch of a follower, whose next fetch names further partitions."""
        fetch = self.delayed.get(connection)
        if fetch is not None and fetch.request.replica_id >= 0 and fetch.state != COMPLETED:
            self.complete(fetch)

    def on_close(self, connection: Connection) -> None:
        """Removes the delayed fetch of a closed connection."""
        fetch = self.delayed.pop(connection, None)
        if fetch is None:
            return
        is_waiting = fetch.state == WAITING
        fetch.apply(COMPLETE)
        if not is_waiting:
            # The slices of a look-up or a response end with the release.
            return
        if fetch.sliced is not None:
            fetch.sliced.resume()
        else:
            fetch.unregister()
            fetch.drop()

    # -- FetchCompletion

    def count_committed(self, fetch: DelayedFetch) -> None:
        """Counts the readable bytes of a delayed fetch again, because a transaction may have ended."""
        is_waiting = fetch.state == WAITING
        fetch.apply(COUNT)
        if not is_waiting:
            return
        if fetch.sliced is not None:
            fetch.sliced.resume()
            return
        fetch.apply(LOOK_UP_AGAIN)
        self.begin_look_up(fetch)
        self.reader.read(fetch, 0, fetch.count, False)
        fetch.drop_results()
        fetch.apply(END_LOOK_UP)
        if fetch.results.has_enough:
            self.complete_later(fetch)

    def is_throttled(self, fetch: DelayedFetch, partition: WatchedPartition) -> bool:
        """Whether the replication quota currently withholds the partition from this follower."""
        return self.reader.throttles(fetch.request, fetch.results, partition)

    def followers_serve_consumers(self) -> bool:
        """Whether consumers may read from followers, which then need each new high watermark at once."""
        return self.reader.selector is not None

    def complete_later(self, fetch: DelayedFetch) -> None:
        """Completes the fetch in the next turn of the event loop, with all appends of this turn."""
        if not self._ends_waiting(fetch):
            return
        if not self._scheduled:
            self._loop.call_soon(self._complete_scheduled)
        self._scheduled.append(fetch)

    def _complete_scheduled(self) -> None:
        scheduled = self._scheduled
        self._scheduled = []
        for fetch in scheduled:
            self._look_up_and_send(fetch)

    def complete(self, fetch: DelayedFetch) -> None:
        """Looks up the partitions, and sends the response with the bytes that are available."""
        if self._ends_waiting(fetch):
            self._look_up_and_send(fetch)

    def _ends_waiting(self, fetch: DelayedFetch) -> bool:
        """Applies RESPOND. Returns whether the caller looks up the partitions for the response.

        A look-up that is running in slices, or begins here, ends with the response.
        """
        is_waiting = fetch.state == WAITING
        fetch.apply(RESPOND)
        if not is_waiting:
            return False
        if fetch.sliced is not None:
            fetch.sliced.resume()
            return False
        self.delayed.pop(fetch.connection, None)
        fetch.unregister()
        return True

    # -- the response

    def _look_up_and_send(self, fetch: DelayedFetch) -> None:
        """Looks up the partitions and sends the response. An exception closes only this connection."""
        if fetch.connection.closed:
            fetch.apply(COMPLETE)
            fetch.drop()
            return
        try:
            self.begin_look_up(fetch)
            count = fetch.count
            if count > self.large_partitions and self._large is not None:
                self._large.complete(self, fetch)
                return
            self.reader.read(fetch, 0, count, False)
            self._send(fetch)
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            fetch.apply(COMPLETE)
            fetch.drop()
            fetch.connection.crash(problem)

    def _send(self, fetch: DelayedFetch) -> None:
        """Completes the fetch: sends the results, converted if the client does not know their format."""
        fetch.apply(COMPLETE)
        if not self.converts(fetch):
            self.send_results(fetch)

    def converts(self, fetch: DelayedFetch) -> bool:
        """Begins to convert the results if the client does not know their format. False: nothing began."""
        down = self.down_converter
        return fetch.request.version < ALL_FORMATS_FROM and down is not None and down.convert(fetch)

    def send_results(self, fetch: DelayedFetch) -> None:
        """Builds and sends the response."""
        if fetch.sliced is not None:
            fetch.sliced.send()
            return
        sent = self.select_sent(fetch, 0, fetch.count)
        encoder = self.encoder(fetch, sent)
        encoder.run(len(sent))
        self.respond(fetch, encoder.pieces)

    def select_sent(self, fetch: DelayedFetch, begin: i64, end: i64) -> list[FetchPartitionData]:
        """Returns the results from ``begin`` up to ``end`` that the response includes, recorded as sent."""
        session = fetch.session
        found = fetch.results.partitions
        if session is None:
            sent = found[begin:end]
        else:
            partitions = fetch.session_partitions
            if fetch.request.is_incremental:
                sent = session.select_changed(partitions, found, begin, end)
            else:
                sent = session.select_all(partitions, found, begin, end)
            session.clear_up_to_date(partitions, found, begin, end)
        self._record_sent(fetch, sent)
        return sent

    def encoder(self, fetch: DelayedFetch, sent: list[FetchPartitionData]) -> FetchEncoder:
        """Returns the encoder of a response with the results ``sent``."""
        session = fetch.session
        return FetchEncoder(fetch.request, 0 if session is None else session.session_id, sent)

    def respond(self, fetch: DelayedFetch, response: list[ResponsePart]) -> None:
        """Sends the response, and releases the fetch. A large fetch is released in slices afterwards."""
        if fetch.request.version < ALL_FORMATS_FROM and self.down_converter is not None:
            response = self.down_converter.in_pieces(response)
        reply = fetch.reply
        if reply is None:
            first = response[0]
            if len(response) == 1 and isinstance(first, bytes):
                fetch.connection.respond_now(first)
                return
            reply = fetch.connection.respond_later()
        elif fetch.sliced is None:
            fetch.drop()
        reply.complete(response)

    def _record_sent(self, fetch: DelayedFetch, sent: list[FetchPartitionData]) -> None:
        """Counts the errors of a response, and records the bytes sent to a follower in the quota."""
        quota = self.reader.quota
        if fetch.request.replica_id >= 0 and quota is not None and quota.is_set:
            now = self._loop.time()
            for data in sent:
                log_range, partition = data.log_range, data.partition
                if log_range is not None and partition is not None:
                    quota.record(partition.topic, int(partition.index), int(log_range.size), now)
        for data in sent:
            if data.error != 0:
                self.errors[data.error] = self.errors.get(data.error, 0) + 1
