"""Looks up the partitions of a fetch: limits of a response, offsets and ranges of files. Compiled.

The reader does not read records: a result refers to a range of a log file. The fetch of a follower updates
its state on this leader (:meth:`FetchReader.record_follower_fetch`). The refusals are in
:mod:`tidemill.broker.fetch_admission_checks`.

Source: Apache Kafka, ``ReplicaManager.readFromLog``, ``Partition.fetchRecords``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i16, i64, mypyc_attr

from tidemill.broker.delayed_fetch import DelayedFetch
from tidemill.broker.fetch_admission_checks import (
    ANY_REPLICA_FROM,
    FetchAdmission,
    refusal_of_partition,
)
from tidemill.broker.fetch_partition_data import FetchPartitionData, LogReadResults
from tidemill.broker.fetch_session import SessionPartition
from tidemill.log.log import Log
from tidemill.log.log_segment import LogRange
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import Clock, EventLoop
from tidemill.net.connection import Connection
from tidemill.replication.delayed_operations import CONSUMER, WatchedPartition
from tidemill.replication.hosted_topics import TopicEntry, TopicTable
from tidemill.replication.partition import Partition
from tidemill.replication.read_limits import READ_COMMITTED
from tidemill.replication.replication_quota import ReplicationQuota
from tidemill.wire.fetch_layout import WHOLE_FIRST_FROM, DivergingEpoch, FetchRequest, RequestedPartition

RECORDS_BYTES_MAX: Final = 0x70000000
"""The limit for the records of one response, which with all other fields stays below 2 GiB."""
ALL_FORMATS_FROM: Final = 4
"""From this version on clients know all message formats, and receive records as they are stored."""
UNLIMITED_BYTES: Final = 1 << 40
"""A limit above the size of any segment."""
RANGES_MAX: Final = 10_000
"""The limit for the partitions with records in one response: each is a range to send. The next response has
the other partitions."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadReplicaSelector:
    """Chooses the replica that a consumer reads from (KIP-392)."""

    def preferred_replica(
        self,
        request: FetchRequest,
        connection: Connection,
        requested: RequestedPartition,
        partition: Partition,
    ) -> int:
        """Returns the broker id of the replica, -1 for this broker."""
        raise NotImplementedError


AbortedTransactionsOf = Callable[[Log, int, LogRange], list[tuple[int, int]]]
"""Returns producer id and first offset of the aborted transactions that may have records in a range.

The arguments are the log, the fetch offset and the range. The implementation is
:class:`tidemill.log.aborted_transactions.AbortedTransactions`."""


class FetchReader:
    """Looks up partitions for all fetches of the broker."""

    def __init__(
        self,
        topics: TopicTable,
        clock: Clock,
        loop: EventLoop,
        bytes_max: i64,
        *,
        aborted: AbortedTransactionsOf | None = None,
        selector: ReadReplicaSelector | None = None,
        broker_epoch: Callable[[int], int],
    ) -> None:
        self.topics = topics
        self._clock = clock
        self._loop = loop
        self.bytes_max: i64 = bytes_max
        """``fetch.max.bytes``"""
        self.ranges_max: i64 = RANGES_MAX
        self._aborted = aborted
        self.selector = selector
        """None: all consumers read from the leader."""
        self.quota: ReplicationQuota | None = None
        """The replication quota for followers."""
        self._broker_epoch = broker_epoch
        """Returns the broker epoch in the metadata, -1 for an unknown broker."""

    def new_results(self, request: FetchRequest) -> LogReadResults:
        """Returns empty results with the limits of ``request``."""
        limit = self._bytes_limit(request)
        return LogReadResults(limit, request.bytes_min if request.bytes_min < limit else limit)

    def _bytes_limit(self, request: FetchRequest) -> i64:
        """Returns the limit for the records of a response."""
        limit: i64 = request.bytes_max if request.bytes_max < self.bytes_max else self.bytes_max
        if limit > RECORDS_BYTES_MAX:
            limit = RECORDS_BYTES_MAX
        return limit

    def read(self, fetch: DelayedFetch, begin: i64, end: i64, is_new: bool) -> None:
        """Appends the results of the partitions from ``begin`` up to ``end`` to those of ``fetch``.

        ``is_new``: the request has just arrived, so its offsets are the current state of a follower.
        """
        request = fetch.request
        results = fetch.results
        follows = request.replica_id >= 0
        topics = self.topics.by_id if request.by_id else self.topics.by_name
        is_epoch_stale = follows and is_new and self._has_stale_epoch(request)
        admission = FetchAdmission(request, results, topics, is_epoch_stale)
        has_session = fetch.session is not None
        state: SessionPartition | None = None
        partition: Partition | None = None
        index = begin
        while index < end:
            if has_session:
                state = fetch.session_partitions[index]
                requested = state.requested
                partition = state.partition
            else:
                requested = request.partitions[index]
                partition = None
            index += 1
            if partition is None or partition.deleted:
                partition = find_partition(topics, requested)
                if state is not None:
                    state.partition = partition
            data = FetchPartitionData(requested, partition)
            results.partitions.append(data)
            self.read_partition(fetch, data, state, admission)
            if follows and is_new and data.error == 0:
                self.record_follower_fetch(fetch, data, state)
            if data.completes_fetch:
                results.completes_fetch = True
            log_range = data.log_range
            if log_range is not None:
                results.bytes_found += log_range.size
                results.bytes_left -= log_range.size
                results.ranges += 1
                if results.bytes_left < 0 or results.ranges >= self.ranges_max:
                    results.bytes_left = 0

    def read_partition(
        self,
        fetch: DelayedFetch,
        data: FetchPartitionData,
        state: SessionPartition | None,
        admission: FetchAdmission,
    ) -> None:
        """Looks up one partition. ``state`` is its entry in the session, if there is a session."""
        error = refusal_of_partition(admission, data)
        if error is None:
            try:
                self._read_admitted(fetch, data, state)
                return
            except KafkaError as problem:
                error = problem
        data.fail(error.code)
        partition = data.partition
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR and partition is not None:
            partition.events.on_storage_error(partition, error)

    def _read_admitted(
        self, fetch: DelayedFetch, data: FetchPartitionData, state: SessionPartition | None
    ) -> None:
        """Looks up an admitted partition. Raises KafkaError if its log cannot be read at the offset."""
        request = fetch.request
        requested = data.requested
        results = fetch.results
        partition = data.partition
        if partition is None:
            raise RuntimeError(f"a partition without a replica here was admitted: {requested.index}")
        is_first = results.bytes_found == 0
        is_consumer = request.replica_id == CONSUMER
        selector = self.selector
        if (
            selector is not None
            and is_consumer
            and request.version >= ANY_REPLICA_FROM
            and partition.replication is not None
        ):
            data.preferred_replica = selector.preferred_replica(
                request, fetch.connection, requested, partition
            )
        limits = partition.read_limits
        limit = limits.limit_offset(request.replica_id, request.isolation)
        data.high_watermark = limits.high_watermark
        data.last_stable_offset = limits.last_stable_offset
        if limit < data.high_watermark:
            results.is_limited_by_transaction = True
        if is_consumer and partition.awaits_high_watermark:
            # As for ListOffsets (KIP-207): the high watermark of a new leader may be below the one that
            # the former leader sent.
            data.high_watermark = -1 if state is None else state.sent_high_watermark
            data.last_stable_offset = -1
        data.log_start_offset = partition.log.start_offset
        if data.preferred_replica >= 0:
            return
        if requested.last_fetched_epoch >= 0:
            data.diverging_epoch = find_diverging_epoch(requested, partition)
            if data.diverging_epoch is not None:
                return
        if not results.has_room or (request.replica_id >= 0 and self.throttles(request, results, partition)):
            partition.check_range(requested.offset)
            return
        size = results.bytes_left if results.bytes_left < requested.bytes_max else requested.bytes_max
        if request.version < ALL_FORMATS_FROM:
            data.log_range = read_for_old_client(
                partition, requested.offset, size, limit, is_first, request.version
            )
        else:
            data.log_range = partition.read(requested.offset, size, limit, is_first)
        aborted = self._aborted
        if (
            request.isolation == READ_COMMITTED
            and data.log_range is not None
            and partition.log.segment_list.has_aborts
            and aborted is not None
        ):
            data.aborted = aborted(partition.log, requested.offset, data.log_range)

    def throttles(self, request: FetchRequest, results: LogReadResults, partition: WatchedPartition) -> bool:
        """Whether the replication quota withholds the partition from this follower (KIP-73)."""
        quota = self.quota
        is_throttled = (
            quota is not None
            and quota.is_set
            and partition.is_throttled(
                quota, request.replica_id, self._clock.monotonic_ms(), self._loop.time()
            )
        )
        if is_throttled:
            results.is_throttled = True
        return is_throttled

    def _has_stale_epoch(self, request: FetchRequest) -> bool:
        """Whether the follower has registered again since it sent ``request``."""
        epoch = request.replica_epoch
        return epoch >= 0 and epoch < self._broker_epoch(request.replica_id)

    def record_follower_fetch(
        self, fetch: DelayedFetch, data: FetchPartitionData, state: SessionPartition | None
    ) -> None:
        """Updates the state of a follower in its partition: log end, log start and time of the fetch."""
        partition = data.partition
        if partition is None or data.diverging_epoch is not None:
            return
        request, requested, results = fetch.request, data.requested, fetch.results
        now_ms = self._clock.monotonic_ms()
        if not partition.fetched_by(
            request.replica_id, requested.offset, requested.log_start_offset, now_ms, request.replica_epoch
        ):
            data.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        # This fetch may have advanced the high watermark, below which the follower serves consumers.
        limits = partition.read_limits
        data.high_watermark = limits.high_watermark
        data.last_stable_offset = limits.last_stable_offset
        if state is not None and (
            data.high_watermark > state.sent_high_watermark
            # The log start moved before the fetch was registered, and DeleteRecords waits for this follower.
            or 0 <= state.sent_log_start < data.log_start_offset
        ):
            results.completes_fetch = True
        if results.is_throttled and data.log_range is None and requested.offset < partition.log.end_offset:
            # The quota withheld records before this fetch made commits wait for the follower.
            results.completes_fetch = results.completes_fetch or partition.commits_wait_for(
                request.replica_id, now_ms
            )

    def is_enough(self, fetch: DelayedFetch) -> bool:
        """Whether ``fetch.min.bytes`` is available, although the results have fewer bytes.

        Results end with a whole batch, or with a segment. As in Apache Kafka, a partition with more bytes
        than its limit counts with the limit, and a fetch from an inactive segment is complete.
        """
        request = fetch.request
        results = fetch.results
        left = self._bytes_limit(request)
        count: i64 = 0
        for data in results.partitions:
            log_range = data.log_range
            partition = data.partition
            if log_range is None or partition is None:
                continue
            requested = data.requested
            if requested.offset < partition.log.active.base_offset:
                return True
            size = left if left < requested.bytes_max else requested.bytes_max
            if log_range.size < size:
                limit = partition.read_limits.limit_offset(request.replica_id, request.isolation)
                try:
                    available = partition.read(requested.offset, UNLIMITED_BYTES, limit, True)
                except KafkaError:
                    return True
                if available is not None and available.size < size:
                    size = available.size
            else:
                size = log_range.size
            count += size
            left -= size
        return count >= results.bytes_min


def find_partition(topics: dict[bytes, TopicEntry], requested: RequestedPartition) -> Partition | None:
    """Returns the partition of this broker; None without one."""
    entry = topics.get(requested.key)
    return None if entry is None else entry.partition(requested.index)


def find_diverging_epoch(requested: RequestedPartition, partition: Partition) -> DivergingEpoch | None:
    """Returns the epoch in which the log of a follower diverges before the fetch offset; None without one.

    Raises OFFSET_OUT_OF_RANGE if this log has no record of the last fetched epoch or a later one.
    """
    log = partition.log
    last_fetched_epoch = requested.last_fetched_epoch
    epoch, end = log.leader_epochs.end_offset(int(last_fetched_epoch), int(log.end_offset))
    if epoch < 0:
        raise KafkaError(
            f"{partition.topic}-{partition.index} has no record of epoch {last_fetched_epoch} or later",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    if epoch == last_fetched_epoch and end >= requested.offset:
        return None
    return DivergingEpoch(epoch, end)


def read_for_old_client(
    partition: Partition, offset: i64, size: i64, limit_offset: i64, first: bool, version: i16
) -> LogRange | None:
    """Returns a range of ``size`` bytes, which may end within a message, for a client of an old version.

    Such clients ignore an incomplete message at the end. If their first message is incomplete, they fetch it
    again with a larger limit.
    """
    available = partition.read(offset, UNLIMITED_BYTES, limit_offset, True)
    if available is None or available.size <= size:
        return available
    if first and version >= WHOLE_FIRST_FROM:
        whole = partition.read(offset, size, limit_offset, True)
        if whole is not None and whole.size > size:
            return whole
    available.size = size if size > 0 else 0
    return available
