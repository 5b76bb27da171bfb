"""``__consumer_offsets`` as the group coordinator sees it: partitions to write and read, and leaders."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING

from tidemill.broker.automatic_topics import make_topics
from tidemill.groups.ports import (
    OFFSETS_TOPIC,
    CoordinatorEndpoint,
)
from tidemill.log.errors import storage_error
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.records.batch import parse_batches
from tidemill.records.reader import iter_stored
from tidemill.replication.waiting import CommitCallback

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.coordination.image import TopicImage
    from tidemill.replication.partition import Partition

log = logging.getLogger("tidemill.groups")

READ_BYTES = 256 * 1024
"""One slice while a partition is loaded."""
ACKS_ALL = -1
COMMIT_WARNING_S = 5.0
"""A new coordinator that waits longer for its records to be committed logs a warning. Followers usually fetch
from a new leader within a second."""


class PartitionOffsetsLog:
    """The partitions of ``__consumer_offsets`` that this broker leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(self, partition: int, batch: bytes) -> Awaitable[None]:
        """Appends a batch of our own; done once it is committed. Raises the error of the append."""
        broker = self._broker
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            found = broker.partition(OFFSETS_TOPIC, partition)
            with _storage_trouble_reported(found):
                batches = parse_batches(batch, 0, len(batch))
                result = found.append(batches, ACKS_ALL, broker.clock.wall_ms())
        except KafkaError as error:
            future.set_exception(error)
            return future
        end_offset = int(result.last_offset) + 1
        if found.is_committed(end_offset):
            future.set_result(None)
        else:
            found.wait_committed(end_offset, CommitCallback(lambda error: _settle(future, error)))
        return future

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        """All batches of the log, a slice of whole ones at a time; ends once they are committed.

        Up to its end, not to the high watermark: a new leader may hold acknowledged records above its own.
        Raises KafkaError, with KAFKA_STORAGE_ERROR when the disk does not give them.
        """
        found = self._broker.partition(OFFSETS_TOPIC, partition)
        offset = int(found.log.start_offset)
        end = int(found.log.end_offset)
        loop = asyncio.get_running_loop()
        while offset < end:
            with _storage_trouble_reported(found):
                piece = found.read(offset, READ_BYTES, end, True)
                if piece is None:
                    return
                data = await loop.run_in_executor(None, piece.read)
            whole, offset = _whole_batches(data, offset)
            if not whole:
                return
            yield whole
        await _committed(found, end)


@contextlib.contextmanager
def _storage_trouble_reported(partition: Partition) -> Iterator[None]:
    """Reports a disk that fails, as Produce and Fetch do: other brokers may lead what it holds."""
    try:
        try:
            yield
        except OSError as problem:
            raise storage_error("read", partition.log.directory, problem) from problem
    except KafkaError as error:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            partition.events.storage_trouble(partition, error)
        raise


async def _committed(partition: Partition, end_offset: int) -> None:
    """Returns once everything below ``end_offset`` is committed; a log line says so when that takes long.

    Raises KafkaError when another broker leads the partition, or its disk fails, before that.
    """
    if partition.is_committed(end_offset):
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.wait_committed(end_offset, CommitCallback(lambda error: _settle(future, error)))
    try:
        done, _ = await asyncio.wait([future], timeout=COMMIT_WARNING_S)
    except asyncio.CancelledError:
        # The caller is gone: an error that comes later has nobody to raise it to.
        if not future.cancel():
            future.exception()
        raise
    if not done:
        log.warning(
            "%s-%d: its groups wait for offsets %d to %d to be committed: brokers %s are in sync, and"
            " min.insync.replicas is %d; start the brokers that are down",
            partition.topic,
            partition.index,
            partition.high_watermark,
            end_offset - 1,
            list(partition.isr),
            partition.min_insync,
        )
    await future


def _settle(future: asyncio.Future[None], error: KafkaError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _whole_batches(data: bytes, offset: int) -> tuple[bytes, int]:
    """The batches of ``data`` that are whole, and the offset after them."""
    position = 0
    for stored in iter_stored(data):
        offset = int(stored.next_offset)
        position += int(stored.size)
    return data[:position], offset


class ClusterOffsetsTopic:
    """The topic as the cluster's metadata has it.

    The number of its partitions is the one in the first metadata that this broker received: another one would
    map groups to partitions that do not have their positions. Controllers refuse to change it, but other
    programs write to ZooKeeper. Source: Apache Kafka, whose group coordinator reads the number at its start.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic_id = ZERO_ID
        self._partition_count = 0
        self._reported_count = 0
        broker.metadata.on_change(lambda delta: self._count(delta.image.topics.get(OFFSETS_TOPIC)))

    def partition_count(self) -> int:
        """Its partitions, or those that it will have."""
        topic = self._broker.metadata.topic(OFFSETS_TOPIC)
        self._count(topic)
        return self._partition_count or self._broker.config.int("offsets.topic.num.partitions")

    def _count(self, topic: TopicImage | None) -> None:
        if topic is None:
            return
        count = len(topic.partitions)
        if not self._partition_count or self._topic_id not in (ZERO_ID, topic.topic_id):
            self._topic_id, self._partition_count = topic.topic_id, count
            return
        self._topic_id = topic.topic_id  # A controller gives an id to a topic that had none.
        if count not in (self._partition_count, self._reported_count):
            self._reported_count = count
            log.error(
                "%s has %d partitions now, and had %d: the positions of groups are in those that it had, and"
                " this broker goes on with these until it is restarted. Before that, stop all brokers and"
                " take the others out of /brokers/topics/%s in ZooKeeper.",
                OFFSETS_TOPIC,
                count,
                self._partition_count,
                OFFSETS_TOPIC,
            )

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        """The leader's address on ``listener``."""
        metadata = self._broker.metadata
        topic = metadata.topic(OFFSETS_TOPIC)
        image = topic.partition(partition) if topic else None
        broker = metadata.brokers.get(image.leader) if image else None
        endpoint = broker.endpoints.get(listener) if broker else None
        if broker is None or endpoint is None:
            return None
        return CoordinatorEndpoint(broker.broker_id, endpoint.host, endpoint.port)

    async def ensure(self) -> None:
        """Creates the topic where it is missing."""
        if OFFSETS_TOPIC not in self._broker.metadata.topics:
            made = await make_topics(self._broker, [OFFSETS_TOPIC])
            for error in made.errors.values():
                raise error
