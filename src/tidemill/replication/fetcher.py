"""How a broker follows one leader: what it asks for, and what it does with the answer.

One fetcher follows all partitions that one broker leads, in one fetch session (Fetch from version 15 on):
each request names only what changed since the one before. A partition that went wrong rests for a while,
outside of the session. No sockets and no clock here: whoever carries the requests calls
:meth:`LeaderFetcher.request`, then :meth:`LeaderFetcher.answer` or :meth:`LeaderFetcher.lost`.

Where logs diverged, the leader says so in its answer (the epoch of the follower's last record, and where that
epoch ended at the leader's), and the follower cuts its own before it asks again. Logs of message formats v0
and v1 know no epochs: there the high watermark is all there is, as in Apache Kafka.

Source: KIP-101, KIP-279, KIP-595 (epochs in Fetch), KIP-227 (sessions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import Throttle
from tidemill.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

NO_EPOCH = -1
SOON_MS = 50
"""After an answer that says that one of both brokers has not heard yet what the other has."""
UNSETTLED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
FLUSH_LOOK_MS = 5
"""How long the leader may hold a fetch while a partition waits for its flush: then it is back soon."""
THROTTLED_LOOK_MS = 1000
"""A partition that is throttled rests no longer at once: another rate may have been set."""
SESSION_FINAL = 0x7FFFFFFF

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


class Trouble(NamedTuple):
    """A partition that could not be followed just now. ``storage`` says that its log is at fault."""

    partition: Partition
    text: str
    storage: StorageError | None = None


class Answered(NamedTuple):
    """What came of an answer: what went wrong, and whose offsets the leader has to be asked for."""

    troubles: list[Trouble]
    out_of_range: list[Partition]


class Followed:
    """One partition and what the leader was told of it."""

    __slots__ = ("key", "lags", "leader_epoch", "partition", "rests_until_ms", "told")

    def __init__(self, key: Key, partition: Partition, leader_epoch: int) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.rests_until_ms = 0
        self.told: FetchPartition | None = None
        """As the session has it; None while the leader does not know of it."""
        self.lags = True
        """It had not all that is committed when the leader answered last."""


class LeaderFetcher:
    """Follows what one broker leads."""

    def __init__(
        self, node_id: int, node_epoch: int, limits: FetchLimits, throttle: Throttle | None = None
    ) -> None:
        self._throttle = throttle
        self.node_id = node_id
        self.node_epoch = node_epoch
        self.limits = limits
        self._followed: dict[Key, Followed] = {}
        self._changed: dict[Key, Followed] = {}
        """What the next request has to tell."""
        self._forgotten: dict[Key, None] = {}
        self._resting: dict[Key, Followed] = {}
        self._session_id = 0
        self._session_epoch = 0

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def partitions(self) -> list[Partition]:
        """All that are followed."""
        return [followed.partition for followed in self._followed.values()]

    # -- what is followed

    def follow(self, topic_id: bytes, partition: Partition, now_ms: int) -> None:
        """Begins to follow, in the epoch that ``partition`` is in. Raises StorageError."""
        key = (topic_id, int(partition.index))
        if partition.log.leader_epochs.latest == NO_EPOCH:
            partition.truncate_to(partition.high_watermark, now_ms)
        followed = Followed(key, partition, int(partition.leader_epoch))
        self._followed[key] = followed
        self._changed[key] = followed
        self._forgotten.pop(key, None)
        self._resting.pop(key, None)

    def leave(self, topic_id: bytes, index: int) -> None:
        """Follows a partition no longer, if it did."""
        followed = self._followed.pop((topic_id, index), None)
        if followed is not None:
            self._take_out(followed)
            self._resting.pop(followed.key, None)

    def _take_out(self, followed: Followed) -> None:
        self._changed.pop(followed.key, None)
        if followed.told is not None:
            followed.told = None
            self._forgotten[followed.key] = None

    def _rest(self, followed: Followed, now_ms: int, for_ms: int | None = None) -> None:
        self._take_out(followed)
        followed.rests_until_ms = now_ms + (self.limits.backoff_ms if for_ms is None else for_ms)
        self._resting[followed.key] = followed

    # -- asking

    def request(self, now_ms: int) -> FetchRequest | None:
        """The next request; None when there is nothing to fetch at present."""
        for key, followed in list(self._resting.items()):
            if followed.rests_until_ms <= now_ms and not followed.partition.flush_under_way:
                del self._resting[key]
                self._changed[key] = followed
        if self._throttle is not None and self._throttle.is_set:
            self._hold_back(self._throttle, now_ms)
        if len(self._followed) == len(self._resting):
            return None
        if self._session_epoch == 0:
            self._forgotten.clear()
            told = [one for key, one in self._followed.items() if key not in self._resting]
        else:
            told = [one for one in self._changed.values() if self._has_news(one)]
        self._changed.clear()
        topics = self._topics(told)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.node_id, replica_epoch=self.node_epoch),
            max_wait_ms=min(self.limits.wait_ms, self.rest_ms(now_ms)),
            min_bytes=self.limits.bytes_min,
            max_bytes=self.limits.bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=topics,
            forgotten_topics_data=_forgotten_topics(self._forgotten),
        )
        self._forgotten.clear()
        return request

    def _hold_back(self, throttle: Throttle, now_ms: int) -> None:
        """Lets throttled partitions rest while too much has come of them."""
        wait_s = throttle.limit.wait_s(now_ms / 1000)
        if wait_s <= 0.0:
            return
        for key, followed in self._followed.items():
            partition = followed.partition
            if (
                key not in self._resting
                and followed.lags
                and self.node_id not in partition.isr
                and throttle.covers(partition.topic, int(partition.index))
            ):
                self._rest(followed, now_ms, min(int(wait_s * 1000) + 1, THROTTLED_LOOK_MS))

    def rest_ms(self, now_ms: int) -> int:
        """How soon a partition that rests is to be followed again."""
        soonest = max(self.limits.backoff_ms, self.limits.wait_ms)
        for followed in self._resting.values():
            flushes = followed.partition.flush_under_way
            soonest = min(soonest, FLUSH_LOOK_MS if flushes else max(1, followed.rests_until_ms - now_ms))
        return soonest

    def _has_news(self, followed: Followed) -> bool:
        return followed.told is None or followed.told != self._ask(followed)

    def _ask(self, followed: Followed) -> FetchPartition:
        log = followed.partition.log
        return FetchPartition(
            partition=followed.key[1],
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=int(log.end_offset),
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=int(log.start_offset),
            partition_max_bytes=self.limits.partition_bytes_max,
            high_watermark=int(followed.partition.high_watermark),
        )

    def _topics(self, told: Iterable[Followed]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        for followed in told:
            topic_id = followed.key[0]
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            followed.told = self._ask(followed)
            self._forgotten.pop(followed.key, None)
            topic.partitions.append(followed.told)
        return list(topics.values())

    # -- answers

    def answer(self, response: FetchResponse, now_ms: int) -> Answered:
        """Takes the answer to the request that was made last."""
        result = Answered([], [])
        if response.error_code != 0:
            self.lost()
            return result
        self._session_id = response.session_id
        if response.session_id == 0:
            # The leader keeps no session for us: every request tells it all.
            self._session_epoch = 0
        else:
            self._session_epoch = 1 if self._session_epoch == SESSION_FINAL else self._session_epoch + 1
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._followed.get((topic.topic_id, data.partition_index))
                if followed is not None and self._is_answer_to(followed):
                    self._take(followed, data, now_ms, result)
        return result

    def lost(self) -> None:
        """The connection broke, or the leader does not know the session: the next request begins another."""
        self._session_id = 0
        self._session_epoch = 0
        self._changed.clear()
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.told = None

    def found(self, partition: Partition, topic_id: bytes, first: int, end: int, now_ms: int) -> None:
        """The leader's log reaches from ``first`` to ``end``: puts ours, which lay outside, where it belongs.

        Raises StorageError.
        """
        followed = self._followed.get((topic_id, int(partition.index)))
        if followed is None or followed.partition is not partition:
            return
        if partition.log.end_offset > end:
            partition.truncate_to(end, now_ms)
        elif partition.log.end_offset < first:
            partition.begin_at(first, now_ms)
        self._changed[followed.key] = followed

    @staticmethod
    def _is_answer_to(followed: Followed) -> bool:
        """Whether nothing happened to the partition since the request."""
        told = followed.told
        return (
            told is not None
            and told.fetch_offset == followed.partition.log.end_offset
            and followed.leader_epoch == followed.partition.leader_epoch
        )

    def _take(self, followed: Followed, data: PartitionData, now_ms: int, result: Answered) -> None:
        partition = followed.partition
        if self._throttle is not None and data.records:
            size = len(data.records)
            self._throttle.record(partition.topic, int(partition.index), size, now_ms / 1000)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            result.out_of_range.append(partition)
            self._rest(followed, now_ms)
            return
        if data.error_code != 0:
            name = ErrorCode(data.error_code).name if data.error_code in _CODES else str(data.error_code)
            result.troubles.append(Trouble(partition, f"the leader answers {name}"))
            self._rest(followed, now_ms, SOON_MS if data.error_code in UNSETTLED else None)
            return
        try:
            if data.diverging_epoch.end_offset >= 0:
                partition.truncate_to(_divergence(partition, data.diverging_epoch), now_ms)
            else:
                partition.append_from_leader(
                    data.records or b"", data.high_watermark, data.log_start_offset, now_ms
                )
                followed.lags = partition.log.end_offset < data.high_watermark
        except StorageError as problem:
            result.troubles.append(Trouble(partition, str(problem), problem))
            self._rest(followed, now_ms)
        except (CorruptMessage, KafkaError) as problem:
            result.troubles.append(Trouble(partition, str(problem)))
            self._rest(followed, now_ms)
        else:
            if partition.flush_under_way:
                # What it fetches next tells what it has, and that is what it has on the disk.
                self._take_out(followed)
                followed.rests_until_ms = now_ms
                self._resting[followed.key] = followed
            else:
                self._changed[followed.key] = followed


_CODES = frozenset(int(code) for code in ErrorCode)


def _divergence(partition: Partition, leader: EpochEndOffset) -> int:
    """Where ours has to be cut: the last point at which both logs surely agree."""
    log = partition.log
    end = int(log.end_offset)
    epoch, own_end = log.leader_epochs.end_offset(leader.epoch, end)
    if epoch == NO_EPOCH:
        return min(leader.end_offset, end)
    if epoch == leader.epoch:
        return min(own_end, leader.end_offset, end)
    # The leader knows an epoch that we do not: all that we have of later ones is in question.
    return min(own_end, end)


def _forgotten_topics(keys: Iterable[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
        topic.partitions.append(index)
    return list(topics.values())
