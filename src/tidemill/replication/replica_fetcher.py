"""Fetches the partitions of one leader in one fetch session, without I/O. Compiled.

A request names the partitions that changed since the last one. A failed partition is delayed and leaves the
session. A response applies to a partition only if no later request named it and its log end and leader epoch
are unchanged.

The owner of the connection calls :meth:`ReplicaFetcher.build_request`, then
:meth:`ReplicaFetcher.handle_response` or :meth:`ReplicaFetcher.on_disconnect`. ``now_ms`` is the time of the
monotonic clock, which delays use. ``wall_ms`` is the time of the wall clock, which the log uses.

Several requests may be in flight in a session. Usually the next request is built after the response to the
previous one. An earlier request names the partitions that were added meanwhile.

If the logs have diverged, the response contains the diverging epoch and its end offset on the leader. The
follower then truncates its log before it fetches again. Message formats v0 and v1 have no epochs: the
follower truncates to the high watermark, as in Apache Kafka.

Source: KIP-101, KIP-279, KIP-595 (epochs in Fetch), KIP-227 (sessions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, ProtocolError, StorageError
from tidemill.model.types import NO_LEADER_EPOCH, NO_OFFSET
from tidemill.replication.partition import Partition
from tidemill.replication.replication_quota import ReplicationQuota
from tidemill.wire.fetch_layout import (
    FetchedPartition,
    FetchRequest,
    RequestedPartition,
    read_response,
    write_request,
)
from tidemill.wire.hot_path_codec import ITEMS_MAX

RESPONSE_VERSION: Final = 15
"""Responses of versions 15 to 18 have the same layout."""
METADATA_RETRY_MS: Final = 50
"""The delay after an error of :data:`METADATA_ERRORS`."""
METADATA_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Errors that end when both brokers have applied the same state of the controller."""
PENDING_SYNC_WAIT_MS: Final = 5
"""The maximum wait of a fetch on the leader while a partition waits for a sync."""
QUOTA_RETRY_MS_MAX: Final = 1000
"""The maximum delay of a throttled partition: the rate may change meanwhile."""
SESSION_FINAL: Final[i32] = 0x7FFFFFFF

Key = tuple[bytes, int]
"""Topic id and partition."""


class FetchLimits(NamedTuple):
    """``replica.fetch.*`` and ``replica.socket.timeout.ms``: ms, bytes."""

    wait_ms: int = 500
    bytes_min: int = 1
    bytes_max: int = 10 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    """A fetch without a response for this time and ``wait_ms`` fails, and the connection is closed."""


TRANSIENT: Final = METADATA_ERRORS | {ErrorCode.FENCED_LEADER_EPOCH}
"""Errors that a leader returns for a moment while a topic is created, moved or deleted."""


class PartitionFailure(NamedTuple):
    """A failed fetch of a partition. ``storage_error`` is the error of the log of this broker, if any."""

    partition: Partition
    text: str
    storage_error: StorageError | None = None
    is_transient: bool = False
    """Whether the error is in :data:`TRANSIENT`."""


class FetchOutcome(NamedTuple):
    """The failures of a response, and the partitions for which the leader's offsets are needed.

    ``session_error``: the error of a request without a session.
    """

    failures: Sequence[PartitionFailure] = ()
    out_of_range: Sequence[Partition] = ()
    session_error: ErrorCode | None = None


class LeaderOffsets(NamedTuple):
    """The log start and end offset of a leader."""

    first: int
    first_epoch: int
    """The epoch of the record at ``first``; without records, of the last record before ``first``."""
    end: int


class FollowedPartition:
    """A partition and the fields of its last fetch."""

    def __init__(self, topic_id: bytes, partition: Partition) -> None:
        self.topic_id = topic_id
        self.key: Key = (topic_id, int(partition.index))
        self.partition = partition
        self.leader_epoch: i64 = partition.leader_epoch
        self.fetch_offset: i64 = 0
        self.last_fetched_epoch: i64 = NO_LEADER_EPOCH
        self.log_start_offset: i64 = 0
        self.high_watermark: i64 = -1
        self.delayed_until_ms: i64 = 0
        self.last_request_number: i64 = 0
        """The number of the last request that named it; 0 if it is not in the session."""
        self.out_of_range_end: i64 = NO_OFFSET
        """The log end offset that the leader rejected as out of range, while its offsets are requested."""
        self.lags = True
        """Whether it lacked committed records at the last response."""

    def requested(self, bytes_max: i64) -> RequestedPartition:
        """The fields of the partition in a request."""
        return RequestedPartition(
            key=self.topic_id,
            index=self.partition.index,
            leader_epoch=self.leader_epoch,
            offset=self.fetch_offset,
            last_fetched_epoch=self.last_fetched_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            bytes_max=bytes_max,
        )


class PendingFetch:
    """A request in flight, immutable."""

    def __init__(self, number: i64, session_id: i32) -> None:
        self.number: Final[i64] = number
        self.session_id: Final[i32] = session_id


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaFetcher:
    """Fetches the partitions of one leader."""

    def __init__(
        self, node_id: i32, limits: FetchLimits, quota: ReplicationQuota | None = None, *, node_epoch: i64
    ) -> None:
        self._quota = quota
        self.node_id: i32 = node_id
        self.node_epoch: i64 = node_epoch
        self.limits = limits
        self._wait_ms: i64 = limits.wait_ms
        self._backoff_ms: i64 = limits.backoff_ms
        self._leader_offsets_ms: i64 = 2 * limits.socket_timeout_ms + self._backoff_ms
        """The maximum delay of a partition that waits for the leader's offsets."""
        self._partitions: dict[Key, FollowedPartition] = {}
        self._changed: dict[Key, FollowedPartition] = {}
        """The partitions that the next request may have to name."""
        self._forgotten: dict[Key, None] = {}
        self._delayed: dict[Key, FollowedPartition] = {}
        self._session_id: i32 = 0
        self._session_epoch: i32 = 0
        self._number: i64 = 0
        self._in_flight: list[PendingFetch] = []

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def in_flight_count(self) -> int:
        """The number of requests in flight."""
        return len(self._in_flight)

    @property
    def has_changes(self) -> bool:
        """Whether there is a session, and partitions changed since its last request."""
        return self._session_id != 0 and len(self._changed) > 0

    # Partitions

    def add_partition(self, topic_id: bytes, partition: Partition, now_ms: i64, wall_ms: i64) -> None:
        """Adds ``partition`` in its current leader epoch. Raises StorageError."""
        if partition.log.leader_epochs.latest == NO_LEADER_EPOCH:
            # Compaction removes no record because of an uncommitted record.
            partition.truncate_to(
                max(partition.high_watermark, partition.log.clean_end),
                wall_ms,
                "no leader epoch is known here, and the leader may lack what lies above the high watermark",
            )
        followed = FollowedPartition(topic_id, partition)
        key = followed.key
        self._partitions[key] = followed
        self._forgotten.pop(key, None)
        self._delayed.pop(key, None)
        self._add_to_next_request(followed, now_ms)

    def remove_partition(self, topic_id: bytes, index: i32) -> None:
        """Removes a partition, if it was added."""
        followed = self._partitions.pop((topic_id, int(index)), None)
        if followed is not None:
            self._remove_from_session(followed)
            self._delayed.pop(followed.key, None)

    def _remove_from_session(self, followed: FollowedPartition) -> None:
        self._changed.pop(followed.key, None)
        if followed.last_request_number > 0:
            followed.last_request_number = 0
            self._forgotten[followed.key] = None

    def _delay(self, followed: FollowedPartition, now_ms: i64, for_ms: i64) -> None:
        self._remove_from_session(followed)
        followed.delayed_until_ms = now_ms + for_ms
        self._delayed[followed.key] = followed

    # Requests

    def build_request(self, now_ms: i64, version: i16) -> bytes | None:
        """The body of the next request, of a version from 15 to 18; None if no partition can be fetched."""
        if self._delayed:
            for followed in list(self._delayed.values()):
                if followed.delayed_until_ms <= now_ms and not followed.partition.has_pending_sync:
                    del self._delayed[followed.key]
                    followed.out_of_range_end = NO_OFFSET
                    self._changed[followed.key] = followed
        self._delay_unsynced(now_ms)
        if self._quota is not None and self._quota.is_set:
            self._delay_throttled(self._quota, now_ms)
        if len(self._partitions) == len(self._delayed):
            return None
        self._number += 1
        partition_bytes_max: i64 = self.limits.partition_bytes_max
        requested: list[RequestedPartition] = []
        if self._session_epoch == 0:
            self._forgotten.clear()
            for key, followed in self._partitions.items():
                if key not in self._delayed:
                    self._update_requested(followed)
                    requested.append(followed.requested(partition_bytes_max))
        else:
            for followed in self._changed.values():
                if self._update_requested(followed):
                    requested.append(followed.requested(partition_bytes_max))
        self._changed.clear()
        wait_ms: i64 = self.retry_delay_ms(now_ms)
        if self._wait_ms < wait_ms:
            wait_ms = self._wait_ms
        request = FetchRequest(
            version=version,
            replica_id=self.node_id,
            replica_epoch=self.node_epoch,
            wait_ms=wait_ms,
            bytes_min=self.limits.bytes_min,
            bytes_max=self.limits.bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=tuple(requested),
            forgotten=tuple(self._forgotten),
        )
        body = write_request(request)
        self._forgotten.clear()
        self._in_flight.append(PendingFetch(self._number, self._session_id))
        if self._session_id != 0:
            self._session_epoch = 1 if self._session_epoch == SESSION_FINAL else self._session_epoch + 1
        return body

    def _delay_unsynced(self, now_ms: i64) -> None:
        """Delays partitions with a pending sync or checkpoint: a fetch reports only synced records."""
        candidates = self._partitions if self._session_epoch == 0 else self._changed
        for key, followed in list(candidates.items()):
            if followed.partition.has_pending_sync and key not in self._delayed:
                self._delay(followed, now_ms, 0)

    def _delay_throttled(self, quota: ReplicationQuota, now_ms: i64) -> None:
        """Delays throttled partitions while the quota is exceeded."""
        wait_s: float = quota.limit.wait_s(now_ms / 1000)
        if wait_s <= 0.0:
            return
        for key, followed in list(self._partitions.items()):
            partition = followed.partition
            if (
                key not in self._delayed
                and followed.lags
                and int(self.node_id) not in partition.isr
                and quota.covers(partition.topic, int(partition.index))
            ):
                self._delay(followed, now_ms, min(int(wait_s * 1000) + 1, QUOTA_RETRY_MS_MAX))

    def retry_delay_ms(self, now_ms: i64) -> i64:
        """The longest useful wait: until the first delayed partition is due, at most the longer one of the
        backoff and the wait of a fetch; :data:`PENDING_SYNC_WAIT_MS` while a partition waits for a sync.
        """
        soonest: i64 = self._backoff_ms if self._backoff_ms > self._wait_ms else self._wait_ms
        for followed in self._delayed.values():
            for_ms: i64 = followed.delayed_until_ms - now_ms
            if followed.partition.has_pending_sync:
                for_ms = PENDING_SYNC_WAIT_MS
            elif for_ms < 1:
                for_ms = 1
            if for_ms < soonest:
                soonest = for_ms
        return soonest

    def _update_requested(self, followed: FollowedPartition) -> bool:
        """Updates the fields for the next request. Returns False if the session has the same."""
        partition = followed.partition
        log = partition.log
        is_in_session: bool = followed.last_request_number > 0
        latest: i64 = log.leader_epochs.latest
        if (
            is_in_session
            and followed.fetch_offset == log.end_offset
            and followed.last_fetched_epoch == latest
            and followed.log_start_offset == log.start_offset
            and followed.high_watermark == partition.high_watermark
        ):
            return False
        followed.fetch_offset = log.end_offset
        followed.last_fetched_epoch = latest
        followed.log_start_offset = log.start_offset
        followed.high_watermark = partition.high_watermark
        if not is_in_session:
            self._forgotten.pop(followed.key, None)
        followed.last_request_number = self._number
        return True

    # Responses

    def handle_response(
        self, data: bytes, start: i64, end: i64, now_ms: i64, wall_ms: i64
    ) -> FetchOutcome | None:
        """Applies the response with the body ``data[start:end]`` to the oldest request in flight.

        Returns None if it needs no further processing. Raises ProtocolError for an invalid response.
        """
        response = read_response(data, start, end, RESPONSE_VERSION, ITEMS_MAX)
        if not self._in_flight:
            raise ProtocolError("a fetch response arrived without a request")
        pending = self._in_flight.pop(0)
        if response.error != 0:
            self._reset_session()
            if pending.session_id != 0:
                return None
            # The leader has not just forgotten a session: a request at once would get the same error.
            return FetchOutcome(session_error=ErrorCode.of(int(response.error)))
        if pending.session_id == 0:
            # If the leader has no room for a session, every request names all partitions.
            self._session_id = response.session_id
            self._session_epoch = 0 if response.session_id == 0 else 1
        failures: list[PartitionFailure] = []
        out_of_range: list[Partition] = []
        for found in response.partitions:
            followed = self._partitions.get((found.key, int(found.index)))
            if followed is None or not is_unchanged_since(followed, pending.number):
                continue
            failure: PartitionFailure | None = None
            needs_leader_offsets = False
            if found.error == 0:
                failure = self._process_partition_data(followed, found, data, now_ms, wall_ms)
                needs_leader_offsets = (
                    found.diverging_epoch is not None and followed.partition.log.lacks_epoch
                )
            elif int(found.error) == ErrorCode.OFFSET_OUT_OF_RANGE:
                needs_leader_offsets = True
            else:
                failure = self._process_error(followed, int(found.error), now_ms)
            if failure is not None:
                failures.append(failure)
            elif needs_leader_offsets:
                out_of_range.append(followed.partition)
                self._await_leader_offsets(followed, now_ms)
        return FetchOutcome(failures, out_of_range) if failures or out_of_range else None

    def on_disconnect(self) -> None:
        """Drops the requests in flight: the next request begins another session."""
        self._in_flight.clear()
        self._reset_session()
        for followed in self._delayed.values():
            if followed.out_of_range_end != NO_OFFSET:
                followed.out_of_range_end = NO_OFFSET
                followed.delayed_until_ms = 0

    def _reset_session(self) -> None:
        """The next request begins a session, and names all partitions."""
        self._session_id = 0
        self._session_epoch = 0
        self._changed.clear()
        self._forgotten.clear()
        for followed in self._partitions.values():
            followed.last_request_number = 0

    def apply_leader_offsets(
        self, partition: Partition, topic_id: bytes, leader: LeaderOffsets, now_ms: i64, wall_ms: i64
    ) -> None:
        """Truncates or restarts a log that ended outside the leader's log, by the offsets of the leader.

        Ignores the offsets if the partition changed since they were requested. Raises StorageError.
        """
        followed = self._partitions.get((topic_id, int(partition.index)))
        if followed is None or followed.partition is not partition or followed.out_of_range_end == NO_OFFSET:
            return
        out_of_range_end: i64 = followed.out_of_range_end
        self._delay(followed, now_ms, self._backoff_ms)
        followed.out_of_range_end = NO_OFFSET
        log_end: i64 = partition.log.end_offset
        if log_end != out_of_range_end or followed.leader_epoch != partition.leader_epoch:
            return
        first: i64 = leader.first
        end: i64 = leader.end
        if log_end > end:
            partition.truncate_to_leader(end, first, wall_ms, f"the leader's log ends at offset {end}")
        elif log_end < first:
            partition.restart_at(first, wall_ms)
        elif not (partition.log.lacks_epoch and log_end == first):
            # The offset is in range: a fetch at once could get the same error again.
            return
        if first == end == partition.log.start_offset:
            partition.log.set_epoch_before_start(leader.first_epoch)
        del self._delayed[followed.key]
        self._add_to_next_request(followed, now_ms)

    def leader_offsets_failed(self, partition: Partition, topic_id: bytes, now_ms: i64) -> None:
        """The leader did not return its offsets: the partition is fetched again after the backoff."""
        followed = self._partitions.get((topic_id, int(partition.index)))
        if followed is not None and followed.out_of_range_end != NO_OFFSET:
            followed.out_of_range_end = NO_OFFSET
            self._delay(followed, now_ms, self._backoff_ms)

    def _process_error(self, followed: FollowedPartition, code: int, now_ms: i64) -> PartitionFailure:
        """Delays the partition after an error of the leader."""
        self._delay(followed, now_ms, METADATA_RETRY_MS if code in METADATA_ERRORS else self._backoff_ms)
        name = ErrorCode.name_of(code)
        return PartitionFailure(followed.partition, f"the leader returned {name}", None, code in TRANSIENT)

    def _await_leader_offsets(self, followed: FollowedPartition, now_ms: i64) -> None:
        """Delays the partition until the offsets of the leader are known."""
        self._delay(followed, now_ms, self._leader_offsets_ms)
        followed.out_of_range_end = followed.partition.log.end_offset

    def _process_partition_data(
        self, followed: FollowedPartition, found: FetchedPartition, data: bytes, now_ms: i64, wall_ms: i64
    ) -> PartitionFailure | None:
        """Appends the received records, or truncates a diverging log. Returns the failure, if any."""
        partition = followed.partition
        if self._quota is not None and found.end > found.start:
            size = int(found.end - found.start)
            self._quota.record(partition.topic, int(partition.index), size, now_ms / 1000)
        try:
            diverging = found.diverging_epoch
            if diverging is not None:
                end = truncation_offset(partition, diverging.epoch, diverging.end_offset)
                partition.truncate_to_leader(
                    end,
                    found.log_start_offset,
                    wall_ms,
                    f"on the leader, broker {partition.leader}, leader epoch {diverging.epoch} ends"
                    f" at offset {diverging.end_offset}",
                )
            else:
                partition.append_from_leader(
                    data,
                    found.high_watermark,
                    found.log_start_offset,
                    wall_ms,
                    found.start,
                    found.end,
                )
                followed.lags = partition.log.end_offset < found.high_watermark
        except StorageError as problem:
            self._delay(followed, now_ms, self._backoff_ms)
            return PartitionFailure(partition, str(problem), problem)
        except (CorruptMessage, KafkaError) as problem:
            self._delay(followed, now_ms, self._backoff_ms)
            return PartitionFailure(partition, str(problem))
        self._add_to_next_request(followed, now_ms)
        return None

    def _add_to_next_request(self, followed: FollowedPartition, now_ms: i64) -> None:
        """Adds the partition to the next request, or delays it until a pending sync has ended.

        The fetch offset reports to the leader that all earlier records are synced. After a truncation, no
        records may be appended before the truncation is synced.
        """
        if followed.partition.has_pending_sync:
            self._delay(followed, now_ms, 0)
        else:
            self._changed[followed.key] = followed


def is_unchanged_since(followed: FollowedPartition, number: i64) -> bool:
    """Whether request ``number`` or an earlier one was the last that named the partition, whose log end and
    leader epoch have not changed since.
    """
    partition = followed.partition
    return (
        0 < followed.last_request_number <= number
        and followed.fetch_offset == partition.log.end_offset
        and followed.leader_epoch == partition.leader_epoch
    )


def truncation_offset(partition: Partition, leader_epoch: i64, leader_end: i64) -> i64:
    """The offset to truncate a diverging log to: the last one up to which both logs certainly agree."""
    log = partition.log
    end: i64 = log.end_offset
    found = log.leader_epochs.end_offset(int(leader_epoch), int(end))
    epoch: i64 = found[0]
    own_end: i64 = found[1]
    if epoch == NO_LEADER_EPOCH:
        return leader_end if leader_end < end else end
    if own_end > end:
        own_end = end
    if epoch == leader_epoch and leader_end < own_end:
        return leader_end
    # The leader has an epoch that this log lacks: the records of later epochs here may differ.
    return own_end
