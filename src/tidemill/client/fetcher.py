"""Fetches a consumer's partitions in the background, while the user processes the fetch before.

Each broker has at most one fetch of the consumer at a time. A partition is fetched again only after its
fetched records were returned to the user, so that memory is bounded by ``fetch.max.bytes`` per broker.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from tidemill.client import fetch_requests
from tidemill.client.completed_fetch import CompletedFetch
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.connection_attempts import no_response_text
from tidemill.client.errors import ClientError, error_for, text_of
from tidemill.client.network_client import DATA, SLOW_S, NetworkClient, PollEnded
from tidemill.client.subscription_state import PartitionPosition, SubscriptionState
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.client.wake_pipe import WakePipe
from tidemill.model.errors import INVALID_METADATA, ErrorCode, ProtocolError
from tidemill.model.types import NO_BROKER, TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_KEY
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import BY_ID, WHOLE_FIRST_FROM, FetchedPartition

ResultT = TypeVar("ResultT")

FETCH_REFRESH_ERRORS = INVALID_METADATA | {
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
"""Errors after which the metadata is refreshed, and the partition fetched again after a pause."""

CLIENT_THROTTLES_FROM: Final = 8
"""The version of Fetch from which a throttled client waits; before, the broker delays the response."""


def _run(function: Callable[[], ResultT], call: Future[ResultT]) -> None:
    try:
        call.set_result(function())
    except BaseException as problem:  # noqa: BLE001 - the thread that waits for it raises it
        call.set_exception(problem)


def _note_error(position: PartitionPosition, code: ErrorCode) -> None:
    position.record_error(code.name, text_of(code))


class Fetcher:
    """The fetches of one consumer. For the polling thread, except :meth:`wake` and :meth:`wakeup`."""

    def __init__(self, network_client: NetworkClient, subscriptions: SubscriptionState) -> None:
        config = network_client.config
        self._network_client = network_client
        self._subscriptions = subscriptions
        self._fetch_wait_ms_max = config.int("fetch.max.wait.ms")
        self._bytes_min = config.int("fetch.min.bytes")
        self._bytes_max = config.int("fetch.max.bytes")
        self._partition_bytes = config.int("max.partition.fetch.bytes")
        self._rack = config.str("client.rack")
        self._backoff = config.seconds("retry.backoff.ms")
        self._metadata_max_age_s = config.seconds("metadata.max.age.ms")
        self.committed_only = config.str("isolation.level") == "read_committed"
        self._check_crcs = config.bool("check.crcs")
        self._unpacked_bytes_max = config.int(UNPACKED_KEY)
        self._in_flight: dict[int, tuple[InFlightRequest, dict[TopicPartition, int]]] = {}
        """By broker, the request in flight, and the offset that it has for each partition."""
        self.completed_fetches: deque[CompletedFetch] = deque()
        self._pipe = WakePipe()
        self._call: Future[Any] | None = None
        """The call of :meth:`call_until_wakeup` that is in progress, or has ended after a wakeup()."""
        self._is_woken = False
        """Whether the user has called wakeup(), which ends one poll."""

    def wakeup(self) -> None:
        """Ends the current poll of the user, or the next one. From any thread."""
        self._is_woken = True
        self.wake()

    def take_wakeup(self) -> bool:
        """Returns whether :meth:`wakeup` was called; each call ends one poll."""
        if not self._is_woken:
            return False
        self._is_woken = False
        return True

    def wake(self) -> None:
        """Ends :meth:`wait` in the polling thread. From any thread."""
        self._pipe.wake()

    def close(self) -> None:
        """Closes the descriptors."""
        self._pipe.close()

    # -- sending ------------------------------------------------------------------------------------------

    def send_fetches(self, ahead: dict[TopicPartition, int] | None = None) -> float:
        """Fetches every partition without pending records; returns the seconds until the next call is useful.

        ``ahead`` has the end offsets of the partitions whose records are being returned now, which are
        fetched too.
        """
        now = time.monotonic()
        busy = {fetch.topic_partition for fetch in self.completed_fetches}
        for _, requested in self._in_flight.values():
            busy.update(requested)
        by_node: dict[int, list[fetch_requests.PartitionFetch]] = {}
        wait = 1.0
        for item, position in self._subscriptions.positions.items():
            offset = position.offset if ahead is None else ahead.get(item, position.offset)
            if offset is None or position.paused or item in busy:
                continue
            if position.retry_at > now:
                wait = min(wait, position.retry_at - now)
                continue
            topic = self._network_client.topics.get(item.topic)
            partition = self._network_client.partition(item.topic, item.partition)
            node_id = NO_BROKER
            if partition is not None:
                node_id = self._select_read_replica(position, partition.leader, now)
                if node_id < 0:
                    _note_error(position, ErrorCode.LEADER_NOT_AVAILABLE)
            if topic is None or partition is None or node_id < 0:
                self._network_client.request_refresh()
                position.retry_at = now + self._backoff
                wait = min(wait, self._backoff)
                continue
            by_node.setdefault(node_id, []).append(
                fetch_requests.PartitionFetch(
                    item.topic,
                    topic.topic_id,
                    item.partition,
                    offset,
                    partition.leader_epoch,
                    self._partition_bytes,
                )
            )
        for node_id, items in by_node.items():
            if node_id not in self._in_flight:
                wait = min(wait, self._send_to(node_id, items))
        return wait

    def has_leader(self, item: TopicPartition) -> bool:
        """Returns False if the metadata has no leader for the partition; then requests a refresh."""
        partition = self._network_client.partition(item.topic, item.partition)
        if partition is None or partition.leader >= 0:
            return True
        self._network_client.request_refresh()
        if item in self._subscriptions.positions:
            _note_error(self._subscriptions.positions[item], ErrorCode.LEADER_NOT_AVAILABLE)
        return False

    def _select_read_replica(self, position: PartitionPosition, leader: int, now: float) -> int:
        """Returns the leader, or for a limited time the preferred read replica that the leader named."""
        replica = position.preferred_read_replica
        if replica >= 0 and now < position.read_replica_expires_at and replica in self._network_client.nodes:
            return replica
        return leader

    def _send_to(self, node_id: int, items: list[fetch_requests.PartitionFetch]) -> float:
        offsets = {TopicPartition(fetch.topic, fetch.partition): fetch.offset for fetch in items}
        connection = self._network_client.ready_connection(node_id, DATA)
        if connection is None:
            blocked = self._network_client.unresponsive_reason(node_id)
            if blocked is not None:
                self._record_failure(node_id, offsets, blocked[1], blocked[0])
            self._network_client.open_in_background(node_id, DATA, self.wake)
            return self._network_client.connection_delay(node_id) or 1.0
        now = time.monotonic()
        throttled_s = connection.throttled_until_s - now
        if throttled_s > 0:
            return throttled_s
        version = fetch_requests.version_for(
            connection.version(ApiKey.FETCH), [requested.topic_id for requested in items]
        )
        # The order rotates, so that a partition that fills the response does not starve the others.
        turn = self._network_client.metadata_version + int(connection.last_used_s * 1000)
        first = turn % len(items)
        message = fetch_requests.encode_request(
            version,
            items[first:] + items[:first],
            wait_ms=self._fetch_wait_ms_max,
            bytes_min=self._bytes_min,
            bytes_max=self._bytes_max,
            committed_only=self.committed_only,
            rack=self._rack_for(offsets, now),
        )
        try:
            self._in_flight[node_id] = connection.send(ApiKey.FETCH, message, version=version), offsets
        except ClientError as problem:
            self._fetch_failed(node_id, offsets, problem)
            return self._backoff
        return 1.0

    def _rack_for(self, requested: Iterable[TopicPartition], now: float) -> str:
        """Returns the rack to send: none if a leader would name a replica that failed a short time ago."""
        positions = self._subscriptions.positions
        reads_leader = any(positions[item].read_from_leader_until > now for item in requested)
        return "" if reads_leader else self._rack

    def _fetch_failed(self, node_id: int, requested: Iterable[TopicPartition], problem: Exception) -> None:
        self._record_failure(node_id, requested, str(problem))
        self._network_client.record_failure(node_id)
        self._network_client.request_refresh()

    def _record_failure(
        self, node_id: int, requested: Iterable[TopicPartition], reason: str, since: float | None = None
    ) -> None:
        """Records that a broker cannot be read; its partitions are read from their leaders for a while."""
        for item in requested:
            position = self._subscriptions.positions.get(item)
            if position is None:
                continue
            position.record_error(ErrorCode.NETWORK_EXCEPTION.name, reason, since)
            if position.preferred_read_replica == node_id:
                position.preferred_read_replica = NO_BROKER
                position.read_from_leader_until = time.monotonic() + self._metadata_max_age_s

    def waits(self) -> list[Wait]:
        """Returns the partitions that cannot be read now. From any thread."""
        now = time.monotonic()
        found: list[Wait] = []
        late: dict[TopicPartition, tuple[float, str]] = {}
        slow_s = self._fetch_wait_ms_max / 1000 + SLOW_S  # A broker may wait for records for this long.
        for request, requested in list(self._in_flight.values()):
            if now - request.sent_s > slow_s and request.connection.oldest_unanswered() is request:
                reason = no_response_text(request.connection, request.api_key)
                late.update(dict.fromkeys(requested, (request.sent_s, reason)))
        for item, position in list(self._subscriptions.positions.items()):
            if position.paused or not (position.error_name or item in late):
                continue
            since, reason = late.get(item, (position.error_since, position.error_reason))
            found.append(Wait(Kind.READ, str(item), reason, since))
        return found

    # -- receiving ----------------------------------------------------------------------------------------

    def wait(self, timeout: float, others: Iterable[Connection] = (), *, for_records: bool = True) -> None:
        """Waits up to ``timeout`` seconds for a response or :meth:`wake`; handles the responses.

        ``others`` are further connections on which responses may arrive. With ``for_records``, it returns at
        once if there are records to return.
        """
        self.handle_responses()
        if self.completed_fetches and for_records:
            return
        self.receive(timeout, others)
        self.handle_responses()

    def receive(self, timeout: float, others: Iterable[Connection] = ()) -> None:
        """Waits up to ``timeout`` seconds for bytes or :meth:`wake`. Handles no responses."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        connections: dict[int, Connection] = {}
        for connection in (*(request.connection for request, _ in self._in_flight.values()), *others):
            descriptor = connection.fileno()
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
                connections[descriptor] = connection
        for descriptor, _ in poll.poll(max(0, int(timeout * 1000 + 0.999))):
            if descriptor == self._pipe.fileno():
                self._pipe.drain()
            else:
                connections[descriptor].receive()

    def receive_until_wakeup(self, timeout: float, others: Iterable[Connection] = ()) -> bool:
        """As :meth:`receive`, but returns False once the user has called :meth:`wakeup`."""
        if not self._is_woken:
            self.receive(timeout, others)
        return not self._is_woken

    def call_until_wakeup(self, function: Callable[[], ResultT], deadline: float) -> ResultT:
        """Calls ``function``, which may wait for the network, in a helper thread, and returns its result.

        Raises PollEnded once the user has called :meth:`wakeup`. The call is dropped then: it ends at its
        next retry. The next call begins after its end; it raises PollEnded if that is after ``deadline``.
        """
        while self._call is not None and not self._call.done():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self.receive_until_wakeup(left_s):
                raise PollEnded
        call: Future[ResultT] = Future()
        call.add_done_callback(lambda _: self.wake())
        thread = threading.Thread(target=_run, args=(function, call), name="tidemill-poll", daemon=True)
        thread.start()
        self._call = call
        try:
            while not call.done():
                if not self.receive_until_wakeup(1.0):
                    raise PollEnded
            self._call = None
            return call.result()
        finally:
            self._network_client.dropped_call = thread
            del call  # The traceback of its exception refers to this frame.

    def handle_responses(self) -> None:
        """Converts the received responses into completed fetches."""
        now = time.monotonic()
        for node_id, (request, requested) in list(self._in_flight.items()):
            if not request.done:
                request.connection.expire(now)
            if request.done:
                del self._in_flight[node_id]
                self._handle_response(node_id, request, requested)

    def _handle_response(
        self, node_id: int, request: InFlightRequest, requested: dict[TopicPartition, int]
    ) -> None:
        if request.error is not None:
            self._fetch_failed(node_id, requested, request.error)
            return
        try:
            response = fetch_requests.parse_response(request.frame, request.version)
        except ProtocolError as problem:
            self._fetch_failed(node_id, requested, problem)
            raise request.connection.reject_response(problem) from problem
        if request.version >= CLIENT_THROTTLES_FROM:
            request.connection.throttled_until_s = time.monotonic() + response.throttle_ms / 1000
        if response.error:
            self._back_off(requested, ErrorCode.of(response.error))
            return
        by_id = request.version >= BY_ID
        for fetched in response.partitions:
            name = self._network_client.topic_names.get(fetched.key) if by_id else fetched.key.decode()
            if name is None:
                self._network_client.request_refresh()
                continue
            item = TopicPartition(name, fetched.index)
            position = self._subscriptions.positions.get(item)
            offset = requested.get(item)
            if position is None or offset is None or position.offset != offset:
                continue
            self._handle_partition(item, position, offset, fetched, request.version)

    def _back_off(self, items: Iterable[TopicPartition], code: ErrorCode) -> None:
        """Fetches the partitions again after a refresh of the metadata and a pause."""
        self._network_client.request_refresh()
        until = time.monotonic() + self._backoff
        for item in items:
            position = self._subscriptions.positions.get(item)
            if position is not None:
                _note_error(position, code)
                position.retry_at = until

    def _handle_partition(
        self,
        item: TopicPartition,
        position: PartitionPosition,
        offset: int,
        response: FetchedPartition,
        version: int,
    ) -> None:
        code = ErrorCode.of(response.error)
        if code == ErrorCode.NONE:
            position.error_name = ""
            position.high_watermark = response.high_watermark
            position.last_stable_offset = response.last_stable_offset
            replica = response.preferred_replica
            if replica >= 0 and replica != position.preferred_read_replica:
                position.preferred_read_replica = replica
                position.read_replica_expires_at = time.monotonic() + self._metadata_max_age_s
            if response.end > response.start:
                completed_fetch = CompletedFetch(
                    item,
                    response,
                    offset,
                    committed_only=self.committed_only,
                    check_crcs=self._check_crcs,
                    unpacked_bytes_max=self._unpacked_bytes_max,
                )
                bytes_max = fetch_requests.LIMIT_BYTES_MAX
                is_cut_off = completed_fetch.end_offset == offset and version < WHOLE_FIRST_FROM
                if is_cut_off and self._partition_bytes < bytes_max:
                    self._partition_bytes = min(2 * self._partition_bytes, bytes_max)
                else:
                    self.completed_fetches.append(completed_fetch)
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._handle_offset_out_of_range(item, position, offset)
        elif code in FETCH_REFRESH_ERRORS:
            position.preferred_read_replica = NO_BROKER
            self._back_off([item], code)
        else:
            position.retry_at = time.monotonic() + self._backoff
            raise error_for(response.error, f"read {item}", topic=item.topic, partition=item.partition)

    def _handle_offset_out_of_range(
        self, item: TopicPartition, position: PartitionPosition, offset: int
    ) -> None:
        if position.preferred_read_replica >= 0:
            position.preferred_read_replica = NO_BROKER  # It may be behind; the leader decides.
            return
        reset_timestamp = self._subscriptions.default_reset_timestamp
        if reset_timestamp is None:
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"read {item} at {offset}",
                topic=item.topic,
                partition=item.partition,
            )
        position.request_reset(reset_timestamp)

    def drop_completed_fetches(self, items: Collection[TopicPartition]) -> None:
        """Drops the fetched records of partitions that were revoked, or whose positions changed."""
        kept = deque(fetch for fetch in self.completed_fetches if fetch.topic_partition not in items)
        if len(kept) < len(self.completed_fetches):
            self.completed_fetches = kept
