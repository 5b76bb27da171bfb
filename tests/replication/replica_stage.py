"""Brokers' partitions over files in memory, for tests of leaders and followers."""

from __future__ import annotations

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.validate import Limits
from tidemill.replication.partition import Partition, PartitionEvents
from tidemill.testing.files import FaultyFiles
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


class Quiet(PartitionEvents):
    """Notes what is asked for, and does nothing but bring cuts to the disk."""

    def __init__(self) -> None:
        self.flushes: list[Partition] = []
        self.wanted: list[tuple[tuple[int, ...], int]] = []
        self.cuts: list[tuple[int, int, str]] = []

    def flush_wanted(self, partition: Partition) -> None:
        self.flushes.append(partition)
        if not partition.log.needs_flush:
            # It was cut, and nothing else waits for the disk.
            partition.log.flush(0)
            partition.flushed(int(partition.log.end_offset), 0)

    def write_back_wanted(self, partition: Partition) -> None:
        pass

    def records_cut(self, partition: Partition, first: int, last: int, reason: str) -> None:
        self.cuts.append((first, last, reason))

    def isr_wanted(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.wanted.append((isr, partition_epoch))


class Broker:
    """A broker's logs in memory, and its partitions of one topic."""

    def __init__(self, node: int, count: int = 1, config: LogConfig | None = None) -> None:
        self.node = node
        self.files = FaultyFiles()
        self.events = Quiet()
        self.config = config or LogConfig()
        self.logs = LogManager(self.files, ["/d"])
        self.logs.lock()
        self.logs.claim("c" * 22, node)
        self.logs.load(0, lambda topic: self.config)
        self.partitions = [self._made(index) for index in range(count)]

    def _made(self, index: int) -> Partition:
        log = self.logs.create(TopicPartition("t", index), TOPIC, self.config, 0)
        return Partition("t", index, log, Limits(), self.node, self.events)

    def become(self, leader: int, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        for partition in self.partitions:
            partition.become(leader, epoch, (LEADER, FOLLOWER), isr)

    def write(self, index: int, *values: bytes) -> None:
        """Appends as the leader, one batch a value."""
        for value in values:
            data = build_batch([(1_700_000_000_000, b"k", value, None)])
            self.partitions[index].append([parse_batch(data, 0, len(data))], 1, 0)


class Leader:
    """Answers fetches out of a broker's logs, and keeps a session as KIP-227 has it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.session: dict[int, FetchPartition] = {}
        self.session_id = 0
        self.epoch = 0
        self.errors: dict[int, ErrorCode] = {}
        self.asked: list[dict[int, int]] = []
        """Of each request the partitions that it named, with their offsets."""
        self.forgotten: list[list[int]] = []

    def answer(self, request: FetchRequest) -> FetchResponse:
        named = {one.partition: one for topic in request.topics for one in topic.partitions}
        self.asked.append({index: one.fetch_offset for index, one in named.items()})
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

    def _read(self, asked: FetchPartition) -> PartitionData:
        code = self.errors.get(asked.partition)
        if code is not None:
            return PartitionData(partition_index=asked.partition, error_code=code, high_watermark=-1)
        partition = self.broker.partitions[asked.partition]
        log = partition.log
        result = PartitionData(
            partition_index=asked.partition,
            high_watermark=int(partition.high_watermark),
            log_start_offset=int(log.start_offset),
        )
        epoch, end = log.leader_epochs.end_offset(asked.last_fetched_epoch, log.end_offset)
        if asked.last_fetched_epoch > log.leader_epochs.latest:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif asked.last_fetched_epoch >= 0 and (epoch < asked.last_fetched_epoch or end < asked.fetch_offset):
            result.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
        elif not log.start_offset <= asked.fetch_offset <= log.end_offset:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            found = log.read(asked.fetch_offset, asked.partition_max_bytes, log.end_offset, True)
            result.records = found.read() if found is not None else b""
        return result


def content(log: Log) -> bytes:
    """Every byte from the log's start on."""
    data = b""
    offset = int(log.start_offset)
    while offset < log.end_offset:
        found = log.read(offset, 1 << 20, log.end_offset, True)
        assert found is not None
        data += found.read()
        offset = log.end_offset
    return data
