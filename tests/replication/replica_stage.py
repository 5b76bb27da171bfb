"""Brokers' partitions over files in memory, for tests of leaders and followers."""

from __future__ import annotations

from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.validate import Limits
from tidemill.replication.partition import Partition, PartitionEvents
from tidemill.testing.files import FaultyFiles

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
