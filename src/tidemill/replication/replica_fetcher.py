"""How a broker follows one leader: what it asks for, and what it does with the answer.

One fetcher follows all partitions that one broker leads, in one fetch session (Fetch from version 15 on):
each request names only what changed since the one before. A partition that went wrong rests for a while,
outside of the session. No sockets and no clock here: whoever carries the requests calls
:meth:`ReplicaFetcher.request`, then :meth:`ReplicaFetcher.answer` or :meth:`ReplicaFetcher.lost`. Compiled.

``now_ms`` is of the monotonic clock (how long partitions rest), ``wall_ms`` of the wall clock, which the log
works with.

Several requests may be under way in a session. The next one is usually made of the answer to the one before;
one that is made earlier tells of partitions that came meanwhile. What an answer says of a partition counts
only if its request told of that last, or an earlier one did, and nothing has happened to it since.

Where logs diverged, the leader says so in its answer (the epoch of the follower's last record, and where that
epoch ended at the leader's), and the follower cuts its own before it asks again. Logs of message formats v0
and v1 know no epochs: there the high watermark is all there is, as in Apache Kafka.

Source: KIP-101, KIP-279, KIP-595 (epochs in Fetch), KIP-227 (sessions).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, ProtocolError, StorageError
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

NO_EPOCH: Final = -1
NOT_REFUSED: Final[i64] = -1
RESPONSE_VERSION: Final = 15
"""Responses of versions 15 to 18 have the same layout."""
SOON_MS: Final = 50
"""After an answer that says that one of both brokers has not heard yet what the other has."""
UNSETTLED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
FLUSH_LOOK_MS: Final = 5
"""How long the leader may hold a fetch while a partition waits for its flush: then it is back soon."""
THROTTLED_LOOK_MS: Final = 1000
"""A partition that is throttled rests no longer at once: another rate may have been set."""
SESSION_FINAL: Final[i32] = 0x7FFFFFFF

Key = tuple[bytes, int]
"""Topic id and partition."""


class FetchLimits(NamedTuple):
    """``replica.fetch.*``: ms, bytes."""

    wait_ms: int = 500
    bytes_min: int = 1
    bytes_max: int = 10 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    backoff_ms: int = 1000
    patience_ms: int = 30_000
    """A leader that is silent for longer than this and ``wait_ms`` is asked over another connection."""


TRANSIENT: Final = UNSETTLED | {ErrorCode.FENCED_LEADER_EPOCH}
"""Errors that a leader returns for a moment while a topic is created, moved or deleted."""


class Trouble(NamedTuple):
    """A partition that could not be followed just now. ``storage`` says that its log is at fault."""

    partition: Partition
    text: str
    storage: StorageError | None = None
    is_transient: bool = False
    """Every change of the cluster may bring it, and it passes."""


class Answered(NamedTuple):
    """What came of an answer: what went wrong, and whose offsets the leader has to be asked for.

    ``refused`` is the error with which the leader answers fetches that name no session; 0 when it does not.
    """

    troubles: list[Trouble]
    out_of_range: list[Partition]
    refused: int = 0


class LeadersLog(NamedTuple):
    """From where to where a leader's log reaches."""

    first: int
    first_epoch: int
    """Of the record at ``first``; of the one before where the log has no records, but had some."""
    end: int


class Followed:
    """One partition, and what the leader was told of it."""

    def __init__(self, topic_id: bytes, partition: Partition) -> None:
        self.topic_id = topic_id
        self.key: Key = (topic_id, int(partition.index))
        self.partition = partition
        self.leader_epoch: i64 = partition.leader_epoch
        self.fetch_offset: i64 = 0
        self.last_fetched_epoch: i64 = NO_EPOCH
        self.log_start_offset: i64 = 0
        self.high_watermark: i64 = -1
        self.rests_until_ms: i64 = 0
        self.told_in: i64 = 0
        """The request that told of it last; 0 while the leader does not know of it."""
        self.refused_end: i64 = NOT_REFUSED
        """The offset that the leader refused as out of range, while it is asked how far its log reaches."""
        self.lags = True
        """It had not all that is committed when the leader answered last."""

    def requested(self, bytes_max: i64) -> RequestedPartition:
        """Returns what a request names of the partition."""
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


class UnderWay:
    """A request that is not answered yet."""

    def __init__(self, number: i64, session_id: i32) -> None:
        self.number: i64 = number
        self.session_id: i32 = session_id


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaFetcher:
    """Follows what one broker leads."""

    def __init__(
        self, node_id: i32, node_epoch: i64, limits: FetchLimits, throttle: ReplicationQuota | None = None
    ) -> None:
        self._throttle = throttle
        self.node_id: i32 = node_id
        self.node_epoch: i64 = node_epoch
        self.limits = limits
        self._wait_ms: i64 = limits.wait_ms
        self._backoff_ms: i64 = limits.backoff_ms
        self._locate_ms: i64 = 2 * limits.patience_ms + self._backoff_ms
        """How long a partition waits to learn where the leader's log begins and ends."""
        self._followed: dict[Key, Followed] = {}
        self._changed: dict[Key, Followed] = {}
        """What the next request has to tell."""
        self._forgotten: dict[Key, None] = {}
        self._resting: dict[Key, Followed] = {}
        self._session_id: i32 = 0
        self._session_epoch: i32 = 0
        self._number: i64 = 0
        self._under_way: list[UnderWay] = []

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def under_way(self) -> int:
        """How many requests are not answered yet."""
        return len(self._under_way)

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell, and a session to tell it in."""
        return self._session_id != 0 and len(self._changed) > 0

    # -- what is followed

    def follow(self, topic_id: bytes, partition: Partition, now_ms: i64, wall_ms: i64) -> None:
        """Begins to follow, in the epoch that ``partition`` is in. Raises StorageError."""
        if partition.log.leader_epochs.latest == NO_EPOCH:
            # Compaction removes no record because of one that was not committed.
            partition.truncate_to(
                max(partition.high_watermark, partition.log.clean_end),
                wall_ms,
                "no leader epoch is known here, and the leader may lack what lies above the high watermark",
            )
        followed = Followed(topic_id, partition)
        key = followed.key
        self._followed[key] = followed
        self._forgotten.pop(key, None)
        self._resting.pop(key, None)
        self._ask(followed, now_ms)

    def leave(self, topic_id: bytes, index: i32) -> None:
        """Follows a partition no longer, if it did."""
        followed = self._followed.pop((topic_id, int(index)), None)
        if followed is not None:
            self._take_out(followed)
            self._resting.pop(followed.key, None)

    def _take_out(self, followed: Followed) -> None:
        self._changed.pop(followed.key, None)
        if followed.told_in > 0:
            followed.told_in = 0
            self._forgotten[followed.key] = None

    def _rest(self, followed: Followed, now_ms: i64, for_ms: i64) -> None:
        self._take_out(followed)
        followed.rests_until_ms = now_ms + for_ms
        self._resting[followed.key] = followed

    # -- asking

    def request(self, now_ms: i64, version: i16) -> bytes | None:
        """The body of the next request, of a version from 15 to 18; None when there is nothing to fetch."""
        if self._resting:
            for followed in list(self._resting.values()):
                if followed.rests_until_ms <= now_ms and not followed.partition.has_pending_sync:
                    del self._resting[followed.key]
                    followed.refused_end = NOT_REFUSED
                    self._changed[followed.key] = followed
        self._hold_unsettled(now_ms)
        if self._throttle is not None and self._throttle.is_set:
            self._hold_back(self._throttle, now_ms)
        if len(self._followed) == len(self._resting):
            return None
        self._number += 1
        partition_bytes_max: i64 = self.limits.partition_bytes_max
        requested: list[RequestedPartition] = []
        if self._session_epoch == 0:
            self._forgotten.clear()
            for key, followed in self._followed.items():
                if key not in self._resting:
                    self._tell(followed)
                    requested.append(followed.requested(partition_bytes_max))
        else:
            for followed in self._changed.values():
                if self._tell(followed):
                    requested.append(followed.requested(partition_bytes_max))
        self._changed.clear()
        wait_ms: i64 = self.rest_ms(now_ms)
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
            partitions=requested,
            forgotten=list(self._forgotten),
        )
        body = write_request(request)
        self._forgotten.clear()
        self._under_way.append(UnderWay(self._number, self._session_id))
        if self._session_id != 0:
            self._session_epoch = 1 if self._session_epoch == SESSION_FINAL else self._session_epoch + 1
        return body

    def _hold_unsettled(self, now_ms: i64) -> None:
        """Lets partitions rest whose sync or checkpoint is pending: a fetch tells what is on the disk."""
        told = self._followed if self._session_epoch == 0 else self._changed
        for key, followed in list(told.items()):
            if followed.partition.has_pending_sync and key not in self._resting:
                self._rest(followed, now_ms, 0)

    def _hold_back(self, throttle: ReplicationQuota, now_ms: i64) -> None:
        """Lets throttled partitions rest while too much has come of them."""
        wait_s: float = throttle.limit.wait_s(now_ms / 1000)
        if wait_s <= 0.0:
            return
        for key, followed in list(self._followed.items()):
            partition = followed.partition
            if (
                key not in self._resting
                and followed.lags
                and int(self.node_id) not in partition.isr
                and throttle.covers(partition.topic, int(partition.index))
            ):
                self._rest(followed, now_ms, min(int(wait_s * 1000) + 1, THROTTLED_LOOK_MS))

    def rest_ms(self, now_ms: i64) -> i64:
        """How soon a partition that rests is to be followed again."""
        soonest: i64 = self._backoff_ms if self._backoff_ms > self._wait_ms else self._wait_ms
        for followed in self._resting.values():
            for_ms: i64 = followed.rests_until_ms - now_ms
            if followed.partition.has_pending_sync:
                for_ms = FLUSH_LOOK_MS
            elif for_ms < 1:
                for_ms = 1
            if for_ms < soonest:
                soonest = for_ms
        return soonest

    def _tell(self, followed: Followed) -> bool:
        """Notes how the partition is now; False when the session has it so."""
        partition = followed.partition
        log = partition.log
        known: bool = followed.told_in > 0
        latest: i64 = log.leader_epochs.latest
        if (
            known
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
        if not known:
            self._forgotten.pop(followed.key, None)
        followed.told_in = self._number
        return True

    # -- answers

    def answer(self, data: bytes, start: i64, end: i64, now_ms: i64, wall_ms: i64) -> Answered | None:
        """Takes the answer, whose body is ``data[start:end]``, to the oldest request that is under way.

        None when nothing else is to be done. Raises ProtocolError when it is none.
        """
        answer = read_response(data, start, end, RESPONSE_VERSION, ITEMS_MAX)
        if not self._under_way:
            raise ProtocolError("the answer to a fetch came that was not sent")
        asked = self._under_way.pop(0)
        if answer.error != 0:
            self._begin_anew()
            # It is not that a session was forgotten: asked again at once, it would answer the same.
            return Answered([], [], int(answer.error)) if asked.session_id == 0 else None
        if asked.session_id == 0:
            # Where the leader keeps no session for us, every request tells it all.
            self._session_id = answer.session_id
            self._session_epoch = 0 if answer.session_id == 0 else 1
        result: Answered | None = None
        for found in answer.partitions:
            followed = self._followed.get((found.key, int(found.index)))
            if followed is None or not is_answer_to(followed, asked.number):
                continue
            if found.error == 0:
                trouble = self._take(followed, found, data, now_ms, wall_ms)
                lacks_epoch: bool = found.diverging_end >= 0 and followed.partition.log.lacks_epoch
                if trouble is None and not lacks_epoch:
                    continue
                if result is None:
                    result = Answered([], [])
                if trouble is not None:
                    result.troubles.append(trouble)
                else:
                    self._locate(followed, now_ms, result)
                continue
            if result is None:
                result = Answered([], [])
            self._refused(followed, found, now_ms, result)
        return result

    def lost(self) -> None:
        """The connection broke: the next request begins another session."""
        self._under_way.clear()
        self._begin_anew()
        for followed in self._resting.values():
            if followed.refused_end != NOT_REFUSED:
                followed.refused_end = NOT_REFUSED
                followed.rests_until_ms = 0

    def _begin_anew(self) -> None:
        """The leader does not know the session."""
        self._session_id = 0
        self._session_epoch = 0
        self._changed.clear()
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.told_in = 0

    def found(
        self, partition: Partition, topic_id: bytes, leaders: LeadersLog, now_ms: i64, wall_ms: i64
    ) -> None:
        """The leader has told where its log is: puts ours, which lay outside, where it belongs.

        The answer is ignored where the partition has changed since the question. Raises StorageError.
        """
        followed = self._followed.get((topic_id, int(partition.index)))
        if followed is None or followed.partition is not partition or followed.refused_end == NOT_REFUSED:
            return
        refused_end: i64 = followed.refused_end
        self._rest(followed, now_ms, self._backoff_ms)
        followed.refused_end = NOT_REFUSED
        log_end: i64 = partition.log.end_offset
        if log_end != refused_end or followed.leader_epoch != partition.leader_epoch:
            return
        first: i64 = leaders.first
        end: i64 = leaders.end
        if log_end > end:
            partition.truncate_to_leader(end, first, wall_ms, f"the leader's log ends at offset {end}")
        elif log_end < first:
            partition.restart_at(first, wall_ms)
        elif not (partition.log.lacks_epoch and log_end == first):
            # The leader would refuse it again: what it misses there is not an offset, or has come meanwhile.
            return
        if first == end == partition.log.start_offset:
            partition.log.set_epoch_before_start(leaders.first_epoch)
        del self._resting[followed.key]
        self._ask(followed, now_ms)

    def not_found(self, partition: Partition, topic_id: bytes, now_ms: i64) -> None:
        """The leader did not say where its log begins and ends: the partition is fetched after a pause."""
        followed = self._followed.get((topic_id, int(partition.index)))
        if followed is not None and followed.refused_end != NOT_REFUSED:
            followed.refused_end = NOT_REFUSED
            self._rest(followed, now_ms, self._backoff_ms)

    def _refused(self, followed: Followed, found: FetchedPartition, now_ms: i64, result: Answered) -> None:
        """The leader does not answer for this partition."""
        partition = followed.partition
        code = int(found.error)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._locate(followed, now_ms, result)
            return
        name = ErrorCode(code).name if code in _CODES else str(code)
        result.troubles.append(Trouble(partition, f"the leader answers {name}", None, code in TRANSIENT))
        self._rest(followed, now_ms, SOON_MS if code in UNSETTLED else self._backoff_ms)

    def _locate(self, followed: Followed, now_ms: i64, result: Answered) -> None:
        """Has the leader asked where its log is; the partition rests until then."""
        result.out_of_range.append(followed.partition)
        self._rest(followed, now_ms, self._locate_ms)
        followed.refused_end = followed.partition.log.end_offset

    def _take(
        self, followed: Followed, found: FetchedPartition, data: bytes, now_ms: i64, wall_ms: i64
    ) -> Trouble | None:
        """Appends what came, or cuts what the leader does not have; what went wrong with it."""
        partition = followed.partition
        if self._throttle is not None and found.end > found.start:
            size = int(found.end - found.start)
            self._throttle.record(partition.topic, int(partition.index), size, now_ms / 1000)
        try:
            if found.diverging_end >= 0:
                end = divergence(partition, found.diverging_epoch, found.diverging_end)
                partition.truncate_to_leader(
                    end,
                    found.log_start_offset,
                    wall_ms,
                    f"on the leader, broker {partition.leader}, leader epoch {found.diverging_epoch} ends"
                    f" at offset {found.diverging_end}",
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
            self._rest(followed, now_ms, self._backoff_ms)
            return Trouble(partition, str(problem), problem)
        except (CorruptMessage, KafkaError) as problem:
            self._rest(followed, now_ms, self._backoff_ms)
            return Trouble(partition, str(problem))
        self._ask(followed, now_ms)
        return None

    def _ask(self, followed: Followed, now_ms: i64) -> None:
        """Adds the partition to the next request, once a sync that is under way has ended.

        The fetch offset tells the leader what this broker has on its disk. Nor may records come in the place
        of those that were cut before the cut is on the disk.
        """
        if followed.partition.has_pending_sync:
            self._rest(followed, now_ms, 0)
        else:
            self._changed[followed.key] = followed


_CODES: Final = frozenset(int(code) for code in ErrorCode)


def is_answer_to(followed: Followed, number: i64) -> bool:
    """Whether request ``number`` told of it last, or an earlier one, and nothing happened to it since."""
    partition = followed.partition
    return (
        0 < followed.told_in <= number
        and followed.fetch_offset == partition.log.end_offset
        and followed.leader_epoch == partition.leader_epoch
    )


def divergence(partition: Partition, leader_epoch: i64, leader_end: i64) -> i64:
    """Where ours has to be cut: the last point at which both logs surely agree."""
    log = partition.log
    end: i64 = log.end_offset
    found = log.leader_epochs.end_offset(int(leader_epoch), int(end))
    epoch: i64 = found[0]
    own_end: i64 = found[1]
    if epoch == NO_EPOCH:
        return leader_end if leader_end < end else end
    if own_end > end:
        own_end = end
    if epoch == leader_epoch and leader_end < own_end:
        return leader_end
    # Where the leader knows an epoch that we do not, all that we have of later ones is in question.
    return own_end
