"""Reads ranges of offsets as Arrow record batches, as a Spark task does.

The next fetch is in flight while a response is decoded: the headers of the batches give the next position
before any record is decoded.

A range may have gaps (compaction, transactions, control batches): progress follows the last offsets of
batches, not records. Lost data is an error, not a gap: records that retention deleted, a log that ends before
the range does, a topic that was recreated under the same name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.client import fetch_requests
from tidemill.client.config import ClientConfig, config_of
from tidemill.client.config_keys import CONSUMER
from tidemill.client.connection import InFlightRequest
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionAttemptPending,
    DataLoss,
    RequestTimeout,
    TopicRecreated,
    error_for,
)
from tidemill.client.group_commits import commit_offsets, offsets_to_commit
from tidemill.client.leader_log_ends import LeaderLogEnds, leader_log_ends
from tidemill.client.network_client import DATA, NetworkClient
from tidemill.client.offsets import list_offsets, list_offsets_or_failures
from tidemill.client.wait_reasons import Wait
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_KEY
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import WHOLE_FIRST_FROM, FetchedPartition
from tidemill.wire.list_offset_timestamps import EARLIEST, EARLIEST_LOCAL, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ROWS_MAX = 131_072
BYTES_MAX = 16 * 1024 * 1024
FETCH_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a response: large enough to hide its round trip, small enough to stay in the cache."""


EMPTY_RESPONSES = 3
"""So many responses in a row without a batch, below the high watermark, show that the log has none."""

RETRIED_ERRORS = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE})
"""Errors that a former leader may return, and that end a read only if the current leader confirms them."""


class TopicView(NamedTuple):
    """The current state of a topic; ``topic_id`` is None if the broker has no topic ids."""

    topic_id: bytes | None
    partitions: int
    leaderless: frozenset[int] = frozenset()
    """The partitions that have no leader."""


class RangeReader:
    """Reads metadata, offsets and ranges of records of one cluster, without a consumer group.

    ``RangeReader("host:port", isolation_level="read_committed")`` or with a mapping of Kafka's keys. It is
    picklable: the configuration is pickled, the connections are not. For one thread.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        given = {"client.id": "tidemill-ranges", "allow.auto.create.topics": False, **(config or {})}
        self.config = config_of(CONSUMER, bootstrap_servers, given, keywords)
        self._timeout = self.config.seconds("default.api.timeout.ms")
        self.committed_only = self.config.str("isolation.level") == "read_committed"
        """Whether reads end at the last stable offset and omit aborted transactions."""
        self._check_crcs = self.config.bool("check.crcs")
        self._unpacked_bytes_max = self.config.int(UNPACKED_KEY)
        self._opened: NetworkClient | None = None
        self._is_interrupted = False

    def __getstate__(self) -> ClientConfig:
        return self.config

    def __setstate__(self, config: ClientConfig) -> None:
        self.__init__(None, config.plain_given())  # type: ignore[misc]

    @property
    def _network_client(self) -> NetworkClient:
        if self._opened is None:
            self._opened = NetworkClient(self.config)
        if self._is_interrupted:
            self._opened.close()
        return self._opened

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def connect(self, refused_timeout_s: float, timeout_s: float) -> None:
        """Connects to any broker; no-op with an open connection.

        Raises BrokerUnreachable once all brokers have refused connections for ``refused_timeout_s``, or have
        not answered for ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._network_client.any_connection(time.monotonic() + refused_timeout_s)
        except ConnectionAttemptPending:
            self._network_client.any_connection(deadline)

    # -- metadata and offsets -----------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        """Returns the names of all topics but internal ones."""
        self._network_client.refresh(self._deadline(), every=True)
        return sorted(topic.name for topic in self._network_client.topics.values() if not topic.internal)

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """Returns the existing topics among ``topics``. Creates none."""
        network_client, deadline = self._network_client, self._deadline()
        while True:
            network_client.refresh(deadline, topics)
            errors = network_client.topic_errors
            codes = {name: ErrorCode.of(errors[name]) for name in topics if name in errors}
            gone = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}
            waiting = {name: code for name, code in codes.items() if code not in gone}
            for name in codes:
                network_client.remove_topic(name)
            if not waiting:
                break
            name, code = next(iter(waiting.items()))
            problem = error_for(code, f"read the metadata of topic {name!r}", topic=name)
            if not problem.retriable:
                raise problem
            network_client.back_off(problem, deadline)
        return {
            name: TopicView(
                None if found.topic_id == ZERO_ID else found.topic_id,
                len(found.partitions),
                frozenset(one.partition for one in found.partitions if one.leader < 0),
            )
            for name in topics
            if (found := network_client.topics.get(name)) is not None
        }

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns offsets for EARLIEST (-2), LATEST (-1) or ms since 1970; -1 if no record is that late.

        LATEST is the high watermark, or the last stable offset with read_committed.
        """
        found = list_offsets(
            self._network_client, wanted, self._deadline(), committed_only=self.committed_only
        )
        return {item: place.offset for item, place in found.items()}

    def list_offsets_or_failures(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, ClientError]]:
        """As :meth:`list_offsets`, but returns the errors of the partitions that fail, also of those whose
        leader has not answered within ``timeout_s``.
        """
        found = list_offsets_or_failures(
            self._network_client,
            wanted,
            time.monotonic() + min(timeout_s, self._timeout),
            committed_only=self.committed_only,
        )
        return {item: place.offset for item, place in found.offsets.items()}, found.failures

    def leader_log_ends(self, items: Iterable[TopicPartition], timeout_s: float) -> LeaderLogEnds:
        """Returns the log ends of leaders, which may be above the high watermarks.

        See :mod:`.leader_log_ends`.
        """
        deadline = time.monotonic() + min(timeout_s, self._timeout)
        return leader_log_ends(self._network_client, items, deadline)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None) -> None:
        """Commits offsets for a group without members, so that lag tools see the progress of a stream.

        ``timeout`` is in seconds, by default ``default.api.timeout.ms``.
        """
        commit_offsets(
            self._network_client,
            group,
            offsets_to_commit(offsets),
            self._deadline() if timeout is None else time.monotonic() + timeout,
        )

    # -- records ------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: bytes | None = None,
        include_headers: bool = False,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the records with ``start <= offset < end``, in the columns of :mod:`tidemill.client.arrow`.

        Raises DataLoss if ``start`` is before the log start offset or the log ends before ``end``;
        TopicRecreated if the topic's id is not ``topic_id``; CorruptMessage for damaged records;
        ClientError if there was no progress for ``default.api.timeout.ms``.
        """
        from tidemill.client.arrow import record_batch
        from tidemill.records.columns import decode_columns

        run = _RangeFetch(
            self, self._network_client, topic, partition, start, end, topic_id, min(bytes_max, FETCH_BYTES)
        )
        for response, first in run.responses():
            at, position = first, response.start
            aborted = (response.aborted or []) if self.committed_only else None
            while True:
                columns = decode_columns(
                    response.data,
                    at,
                    end,
                    position,
                    include_headers,
                    self._check_crcs,
                    bytes_max,
                    aborted,
                    response.start,
                    response.end,
                    unpacked_bytes_max=self._unpacked_bytes_max,
                )
                if columns.count:
                    batch = record_batch(columns)
                    for row in range(0, batch.num_rows, rows_max):
                        yield batch.slice(row, rows_max)
                if not columns.unfinished:
                    break
                at, position = columns.next_offset, columns.next_position

    def fetch(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: bytes | None = None,
        bytes_max: int = FETCH_BYTES,
    ) -> Iterator[FetchedPartition]:
        """Yields responses with the stored batches of these offsets, as they are compressed.

        The batches of a response are not decoded, and the last one may be incomplete. The first one may
        begin before ``start``, the last one of all may end after ``end``, and before it only if the log has
        no further batch up to ``end``. Raises the errors of :meth:`read`.
        """
        run = _RangeFetch(self, self._network_client, topic, partition, start, end, topic_id, bytes_max)
        for response, _ in run.responses():
            yield response

    def waits(self) -> list[Wait]:
        """Returns why the calls of another thread wait: see :mod:`tidemill.client.wait_reasons`."""
        opened = self._opened
        return [] if opened is None else opened.waits()

    def interrupt(self) -> None:
        """Ends the calls of another thread, and all later ones, with ClientClosed."""
        self._is_interrupted = True
        opened = self._opened
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()


class _RangeFetch:
    """The fetches of one range: one is in flight while the response before is decoded."""

    def __init__(
        self,
        reader: RangeReader,
        network_client: NetworkClient,
        topic: str,
        partition: int,
        start: int,
        end: int,
        topic_id: bytes | None,
        bytes_max: int,
    ) -> None:
        self.reader = reader
        self.network_client = network_client
        self.config = reader.config
        self.item = TopicPartition(topic, partition)
        self.topic, self.partition = self.item
        self.position = start
        self.end = end
        self.topic_id = topic_id
        self.bytes_max = bytes_max
        self.empty_responses = 0
        """Those in a row at the high watermark."""
        self.gap_responses = 0
        """Those in a row below the high watermark."""
        self.is_throttled = False
        """Whether a quota may have removed the records of the last response."""
        self.timeout_s = reader.config.seconds("default.api.timeout.ms")
        self.deadline = time.monotonic() + self.timeout_s

    def responses(self) -> Iterator[tuple[FetchedPartition, int]]:
        """Yields the responses with records, each with the offset that it was fetched from."""
        request: InFlightRequest | None = None
        failure: ClientError | None = None
        while self.position < self.end:
            if time.monotonic() >= self.deadline:
                raise failure or self._no_progress()
            try:
                if request is None:
                    request = self._send()
                response = self._await_response(request)
            except (BrokerUnreachable, RequestTimeout) as problem:
                failure, request = problem, None
                self._pause_and_refresh()
                continue
            version, request = request.version, None
            if response.error:
                failure = self._handle_error(response)
                continue
            first = self.position
            after = fetch_requests.next_offset(response.data, response.start, response.end, first)
            if after == first:
                self._handle_no_batch(response, version)
                continue
            self.position, self.deadline = after, time.monotonic() + self.timeout_s
            self.empty_responses = self.gap_responses = 0
            if after < self.end:
                try:
                    request = self._send()
                except (BrokerUnreachable, RequestTimeout) as problem:
                    failure = problem
            yield response, first

    def _send(self) -> InFlightRequest:
        found = self.network_client.topic(self.topic, self.deadline)
        if self._is_other_topic(found.topic_id) or self.partition >= len(found.partitions):
            # A reused client may have outdated metadata of the topic: refresh it before reporting a loss.
            self.network_client.refresh(self.deadline, [self.topic])
            found = self.network_client.topic(self.topic, self.deadline)
        self._check_id(found.topic_id)
        if self.partition >= len(found.partitions):
            raise DataLoss(
                f"topic {self.topic!r} has {len(found.partitions)} partitions and no partition "
                f"{self.partition}: it was recreated with fewer; start again from its earliest offsets",
                topic=self.topic,
                partition=self.partition,
            )
        leader = found.partitions[self.partition].leader
        if leader < 0:
            self.network_client.request_refresh()
            raise BrokerUnreachable(
                f"{self.item} has no leader; wait, or check the brokers of its replicas",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        connection = self.network_client.connection(leader, DATA, self.deadline)
        requested = fetch_requests.PartitionFetch(
            self.topic, found.topic_id, self.partition, self.position, -1, self.bytes_max
        )
        version = fetch_requests.version_for(connection.version(ApiKey.FETCH), [found.topic_id])
        message = fetch_requests.encode_request(
            version,
            [requested],
            wait_ms=self.config.int("fetch.max.wait.ms"),
            bytes_min=1,
            bytes_max=self.bytes_max,
            committed_only=self.reader.committed_only,
            rack="",  # With a rack, a leader may return the id of another replica instead of records.
        )
        return connection.send(ApiKey.FETCH, message, version=version)

    def _await_response(self, request: InFlightRequest) -> FetchedPartition:
        request.connection.wait(request, max(0.0, request.expires_s - time.monotonic()) + 1)
        if request.error is not None:
            raise request.error
        if not request.done:
            request.connection.close()
            raise RequestTimeout(
                f"broker {request.connection.address} has not answered Fetch {request.wait_text}"
            )
        try:
            response = fetch_requests.parse_response(request.frame, request.version)
        except ProtocolError as problem:
            raise request.connection.reject_response(problem) from problem
        if response.error or not response.partitions:
            code = ErrorCode.of(response.error)
            raise BrokerUnreachable(f"Fetch was refused: {code.name}", code)
        self.is_throttled = response.throttle_ms > 0
        return response.partitions[0]

    def _is_other_topic(self, current: bytes) -> bool:
        return self.topic_id is not None and current not in (self.topic_id, ZERO_ID)

    def _check_id(self, current: bytes) -> None:
        if self.topic_id is not None and self._is_other_topic(current):
            raise TopicRecreated(
                f"topic {self.topic!r} was deleted and recreated: its id was {self.topic_id.hex()}, it is "
                f"{current.hex()}; the offsets mean other records now, start again from its earliest",
                topic=self.topic,
                partition=self.partition,
            )

    def _handle_error(self, response: FetchedPartition) -> ClientError:
        """Raises a final error; returns a retriable error after a pause and a metadata refresh."""
        code = ErrorCode.of(response.error)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._check_range()
        problem = error_for(
            response.error,
            f"read {self.item}",
            topic=self.topic,
            partition=self.partition,
        )
        if not problem.retriable and code not in RETRIED_ERRORS:
            raise problem
        self._pause_and_refresh()
        views = self.reader.describe([self.topic])
        if self.topic not in views:
            raise DataLoss(
                f"topic {self.topic!r} was deleted: records {self.position} to {self.end} of its partition "
                f"{self.partition} are gone",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                topic=self.topic,
                partition=self.partition,
            )
        self._check_id(views[self.topic].topic_id or ZERO_ID)
        return problem

    def _check_range(self) -> None:
        """Raises DataLoss if the log does not have the next record, by the offsets of its current leader.

        A new leader may have the record above its high watermark for a while. A leader that does not answer
        now is asked again.
        """
        item = self.item
        start = self.reader.list_offsets({item: EARLIEST})[item]
        latest = self.reader.list_offsets({item: LATEST})[item]
        if start <= self.position < latest:
            return
        if start <= self.position:
            log_ends = self.reader.leader_log_ends([item], self.timeout_s)
            if item in log_ends.failures or self.position < log_ends.offsets.get(item, -1):
                return
        if self.position < start:
            last = min(start, self.end) - 1
            text = (
                f"records {self.position} to {last} of {item} were deleted: its log start offset is {start}"
            )
        else:
            text = f"{item} ends at {latest}, before the records {self.position} to {self.end - 1}"
        raise DataLoss(
            f"{text}; raise retention.ms or retention.bytes of the topic, or start again from its earliest",
            topic=self.topic,
            partition=self.partition,
        )

    def _handle_no_batch(self, response: FetchedPartition, version: int) -> None:
        """Handles a response without a whole batch: log end, batch larger than the limit, or a gap up to the
        end of the range, which compaction leaves.
        """
        if response.end > response.start:
            if version >= WHOLE_FIRST_FROM or self.bytes_max == fetch_requests.LIMIT_BYTES_MAX:
                raise fetch_requests.no_whole_batch(self.item, self.position, response)
            self.bytes_max = min(self.bytes_max * 2, fetch_requests.LIMIT_BYTES_MAX)
            return
        limit = response.last_stable_offset if self.reader.committed_only else response.high_watermark
        if 0 <= limit <= self.position:
            self.empty_responses += 1
            if self.empty_responses > 1:  # The high watermark of a new leader may lag for a moment.
                self._check_range()
                self._pause_and_refresh()
        elif limit < self.end or self.is_throttled:
            self.gap_responses = 0
        else:
            self.gap_responses += 1
            if self.gap_responses >= EMPTY_RESPONSES and self._is_local():
                self.position = self.end

    def _is_local(self) -> bool:
        """Whether the leader itself has the log from the position on: a remote store may be late."""
        try:
            return self.reader.list_offsets({self.item: EARLIEST_LOCAL})[self.item] <= self.position
        except ClientError as problem:
            if problem.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return True  # Brokers without the request have no remote stores.

    def _pause_and_refresh(self) -> None:
        left_s = max(0.0, self.deadline - time.monotonic())
        self.network_client.pause(min(self.config.seconds("retry.backoff.ms"), left_s))
        try:
            self.network_client.refresh(self.deadline)
        except KafkaError as problem:
            logger.debug("metadata: %s", problem)

    def _no_progress(self) -> RequestTimeout:
        return RequestTimeout(
            f"no record of {self.item} at {self.position} came within "
            f"default.api.timeout.ms={self.config.int('default.api.timeout.ms')}; is its leader overloaded?",
            topic=self.topic,
            partition=self.partition,
        )
