"""Partitions of brokers over files in memory, for tests of leaders and followers."""

from __future__ import annotations

from typing import Any

from faulty_files import FaultyFiles
from message_fetcher import MessageFetcher

from default_limits import RecordLimits
from log_start import NOW, start_logs
from partition_events import IgnoredEvents
from record_builders import build_batch
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.record_reader import iter_stored
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits, FetchOutcome, ReplicaFetcher
from tidemill.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

TOPIC = b"T" * 16
LEADER, FOLLOWER = 1, 2
BACKOFF_MS = 50
ALL = (1, 2, 3)
LAG_MS = 1000


def batch_of(*values: bytes, **options: Any) -> Batch:
    """Returns a batch with these values."""
    data = build_batch([(NOW, b"k", value, None) for value in values], **options)
    return parse_batch(data, 0, len(data))


class Quiet(IgnoredEvents):
    """Records requests, and executes none of them except syncs after truncations."""

    def __init__(self) -> None:
        self.flushes: list[Partition] = []
        self.wanted: list[tuple[tuple[int, ...], int]] = []
        self.cuts: list[tuple[int, int, str]] = []
        self.failures: list[KafkaError] = []

    def on_storage_error(self, partition: Partition, error: KafkaError) -> None:
        self.failures.append(error)

    def flush_requested(self, partition: Partition) -> None:
        self.flushes.append(partition)
        if not partition.log.needs_flush:
            # The log was truncated, and no other operation waits for a sync.
            partition.log.flush(0)
            partition.flushed(int(partition.log.end_offset), 0)

    def records_truncated(self, partition: Partition, first: int, last: int, reason: str) -> None:
        self.cuts.append((first, last, reason))

    def isr_requested(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.wanted.append((isr, partition_epoch))


class Broker:
    """A broker's logs in memory, and its partitions of one topic."""

    def __init__(self, node: int, count: int = 1, config: LogConfig | None = None) -> None:
        self.node = node
        self.files = FaultyFiles()
        self.events = Quiet()
        self.config = config or LogConfig()
        self.logs = start_logs(self.files, ["/d"], self.config, now_ms=0, node=node)
        self.partitions = [self._made(index) for index in range(count)]

    def _made(self, index: int) -> Partition:
        log = self.logs.create(TopicPartition("t", index), TOPIC, self.config, 0)
        return Partition("t", index, log, RecordLimits(), self.node, self.events)

    def become(self, leader: int, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        for partition in self.partitions:
            partition.apply_state(leader, epoch, (LEADER, FOLLOWER), isr, partition_epoch=-1, now_ms=0)

    def write(self, index: int, *values: bytes) -> None:
        """Appends as the leader, one batch a value."""
        for value in values:
            self.partitions[index].append(batch_of(value), 1, 0)


def led(isr: tuple[int, ...] = ALL, config: LogConfig | None = None) -> tuple[Broker, Partition]:
    """Broker 1, which leads a partition with replicas on 1, 2 and 3 in epoch 5 with partition epoch 7."""
    broker = Broker(LEADER, 1, config)
    (partition,) = broker.partitions
    partition.events.lag_ms_max = LAG_MS
    partition.apply_state(LEADER, 5, ALL, isr, partition_epoch=7, now_ms=0)
    return broker, partition


class Leader:
    """Responds to fetches from a broker's logs, with a session as in KIP-227."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.session: dict[int, FetchPartition] = {}
        self.session_id = 0
        self.epoch = 0
        self.errors: dict[int, ErrorCode] = {}
        self.requested: list[dict[int, int]] = []
        """Of each request the partitions that it named, with their offsets."""
        self.forgotten: list[list[int]] = []

    def answer(self, request: FetchRequest) -> FetchResponse:
        named = {one.partition: one for topic in request.topics for one in topic.partitions}
        self.requested.append({index: one.fetch_offset for index, one in named.items()})
        self.forgotten.append([one for topic in request.forgotten_topics_data for one in topic.partitions])
        if request.session_epoch == 0:
            self.session = dict(named)
            self.session_id += 1
            self.epoch = 1
        elif (request.session_id, request.session_epoch) != (self.session_id, self.epoch):
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        else:
            self.epoch += 1
            self.session |= named
            for index in self.forgotten[-1]:
                del self.session[index]
        parts = [self._read(one) for one in self.session.values()]
        news = [one for one in parts if request.session_epoch == 0 or one.records or one.error_code]
        news += [one for one in parts if one not in news and one.diverging_epoch.end_offset >= 0]
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=news)] if news else []
        return FetchResponse(session_id=self.session_id, responses=topics)

    def _read(self, requested: FetchPartition) -> PartitionData:
        code = self.errors.get(requested.partition)
        if code is not None:
            return PartitionData(partition_index=requested.partition, error_code=code, high_watermark=-1)
        partition = self.broker.partitions[requested.partition]
        log = partition.log
        result = PartitionData(
            partition_index=requested.partition,
            high_watermark=int(partition.high_watermark),
            log_start_offset=int(log.start_offset),
        )
        epoch, end = log.leader_epochs.end_offset(requested.last_fetched_epoch, log.end_offset)
        if requested.last_fetched_epoch > log.leader_epochs.latest:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif requested.last_fetched_epoch >= 0 and (
            epoch < requested.last_fetched_epoch or end < requested.fetch_offset
        ):
            result.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
        elif not log.start_offset <= requested.fetch_offset <= log.end_offset:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            found = log.read(requested.fetch_offset, requested.partition_max_bytes, log.end_offset, True)
            result.records = found.read() if found is not None else b""
        return result


def content(log: Log) -> bytes:
    """Returns all bytes of the log."""
    data = b""
    offset = int(log.start_offset)
    while offset < log.end_offset:
        found = log.read(offset, 1 << 20, log.end_offset, True)
        assert found is not None
        piece = found.read()
        data += piece
        *_, last = iter_stored(piece)
        offset = int(last.next_offset)
    return data


class Pair:
    """A leader and a follower of all its partitions."""

    def __init__(self, count: int = 1, config: LogConfig | None = None) -> None:
        self.one = Broker(LEADER, count, config)
        self.two = Broker(FOLLOWER, count, config)
        self.leader = Leader(self.one)
        self.fetcher = MessageFetcher(
            ReplicaFetcher(FOLLOWER, FetchLimits(backoff_ms=BACKOFF_MS), node_epoch=7)
        )
        self.now_ms = 0

    def start(self, epoch: int = 0) -> None:
        self.one.become(LEADER, epoch)
        self.two.become(LEADER, epoch)
        for partition in self.two.partitions:
            self.fetcher.add_partition(TOPIC, partition, self.now_ms)

    def request(self) -> FetchRequest:
        """Returns the next request of the follower, which has one."""
        request = self.fetcher.build_request(self.now_ms)
        assert request is not None
        return request

    def fetch(self) -> FetchOutcome:
        """One request and its response; returns what the follower reports."""
        return self.fetcher.handle_response(self.leader.answer(self.request()), self.now_ms)

    def refused(self) -> Partition:
        """One request, whose fetch offset the leader reports as out of range; returns the partition."""
        _, (partition,), _ = self.fetch()
        return partition

    def round(self) -> None:
        """One request and its response, without errors."""
        failures, out_of_range, _ = self.fetch()
        assert not failures
        assert not out_of_range

    def same(self) -> None:
        for mine, theirs in zip(self.two.partitions, self.one.partitions, strict=True):
            assert content(mine.log) == content(theirs.log)
