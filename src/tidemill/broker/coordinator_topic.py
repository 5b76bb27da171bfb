"""Access of a coordinator to its topic: appends and reads, partition count, leaders."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING

from tidemill.broker.auto_topic_creation import create_missing_topics
from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint
from tidemill.log.errors import StorageErrors
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.records.batch import parse_batch
from tidemill.records.record_reader import iter_stored
from tidemill.replication.delayed_operations import OffsetCallback

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.coordination.cluster_image import Delta
    from tidemill.coordination.topic_image import TopicImage
    from tidemill.replication.partition import Partition

logger = logging.getLogger("tidemill.coordinator")

READ_BYTES = 256 * 1024
"""The size of one read while a partition is loaded."""
ACKS_ALL = -1
COMMIT_WARNING_S = 5.0
"""A new coordinator that waits longer for the commit of its records logs a warning. Followers usually fetch
from a new leader within a second."""


class PartitionCoordinatorLog:
    """The partitions of a coordinator's topic that this broker leads."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic

    def append(self, partition: int, batch: bytes) -> Awaitable[None]:
        """Appends a batch of the coordinator. The result is done once the batch is committed.

        It raises the KafkaError of the append.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            found = self._broker.partition(self._topic, partition)
            with _reporting_storage_errors(found):
                parsed = parse_batch(batch, 0, len(batch))
                result = found.append(parsed, ACKS_ALL, self._broker.clock.wall_ms())
        except KafkaError as error:
            future.set_exception(error)
            return future
        end_offset = int(result.last_offset) + 1
        if found.is_committed(end_offset):
            future.set_result(None)
        else:
            found.delayed.wait_committed(end_offset, OffsetCallback(lambda error: _complete(future, error)))
        return future

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        """Yields all batches of the log, some complete batches at a time, and waits until they are committed.

        It reads up to the log end: a new leader may have acknowledged records above its high watermark.
        Raises KafkaError, after an error of the disk with KAFKA_STORAGE_ERROR.
        """
        found = self._broker.partition(self._topic, partition)
        offset = int(found.log.start_offset)
        end = int(found.log.end_offset)
        loop = asyncio.get_running_loop()
        while offset < end:
            with _reporting_storage_errors(found):
                piece = found.read(offset, READ_BYTES, end, True)
                data = b"" if piece is None else await loop.run_in_executor(None, piece.read)
            if not data:
                break  # The cleaner has removed all records up to the log end.
            whole, offset = _whole_batches(data, offset)
            if not whole:
                raise CorruptMessage(f"the batch at offset {offset} is longer than the log")
            yield whole
        await _wait_until_committed(found, end)


@contextlib.contextmanager
def _reporting_storage_errors(partition: Partition) -> Iterator[None]:
    """Reports storage errors, as Produce and Fetch do, so that other brokers become leaders."""
    try:
        with StorageErrors("read", partition.log.directory):
            yield
    except KafkaError as error:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            partition.events.on_storage_error(partition, error)
        raise


async def _wait_until_committed(partition: Partition, end_offset: int) -> None:
    """Waits until all records below ``end_offset`` are committed. Logs a warning after a while.

    Raises KafkaError if this broker loses the leadership, or if its disk fails, before that.
    """
    if partition.is_committed(end_offset):
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.delayed.wait_committed(end_offset, OffsetCallback(lambda error: _complete(future, error)))
    try:
        done, _ = await asyncio.wait([future], timeout=COMMIT_WARNING_S)
    except asyncio.CancelledError:
        # The caller was cancelled: a later error has no receiver.
        if not future.cancel():
            future.exception()
        raise
    if not done:
        logger.warning(
            "%s-%d: loading it waits for the commit of offsets %d to %d: brokers %s are in sync, and"
            " min.insync.replicas is %d; start the brokers that are down",
            partition.topic,
            partition.index,
            partition.high_watermark,
            end_offset - 1,
            list(partition.isr),
            partition.effective_min_isr,
        )
    await future


def _complete(future: asyncio.Future[None], error: KafkaError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _whole_batches(data: bytes, offset: int) -> tuple[bytes, int]:
    """Returns the complete batches of ``data``, and the offset after them."""
    position = 0
    for stored in iter_stored(data):
        offset = int(stored.next_offset)
        position += int(stored.size)
    return data[:position], offset


class ClusterCoordinatorTopic:
    """A coordinator's topic in the metadata of the cluster.

    The partition count is the one in the first metadata that this broker received: another count would map
    ids to partitions without their records. The controller refuses to change it, but other programs may
    write to ZooKeeper. Source: Apache Kafka, whose group coordinator reads the count at its start.
    """

    def __init__(self, broker: Broker, name: str, partitions_key: str) -> None:
        self.name = name
        self._broker = broker
        self._partitions_key = partitions_key
        self._topic_id = ZERO_ID
        self._partition_count = 0
        self._reported_count = 0
        broker.metadata_cache.on_change(self._image_changed)

    async def _image_changed(self, delta: Delta) -> None:
        self._count(delta.image.topics.get(self.name))

    def partition_count(self) -> int:
        """Returns the partition count; before the topic exists, the configured one."""
        topic = self._broker.metadata_cache.topic(self.name)
        self._count(topic)
        return self._partition_count or self._broker.config.int(self._partitions_key)

    def _count(self, topic: TopicImage | None) -> None:
        if topic is None:
            return
        count = len(topic.partitions)
        if not self._partition_count or self._topic_id not in (ZERO_ID, topic.topic_id):
            self._topic_id, self._partition_count = topic.topic_id, count
            return
        self._topic_id = topic.topic_id  # A controller assigns an id to a topic without one.
        if count not in (self._partition_count, self._reported_count):
            self._reported_count = count
            logger.error(
                "%s has %d partitions now, and had %d: the records are in the former partitions,"
                " which this broker uses until its restart. Before that, stop all brokers and remove the"
                " others from /brokers/topics/%s in ZooKeeper.",
                self.name,
                count,
                self._partition_count,
                self.name,
            )

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        """Returns the endpoint of the leader on ``listener``; None if it is unknown."""
        metadata = self._broker.metadata_cache
        topic = metadata.topic(self.name)
        image = topic.partition(partition) if topic else None
        broker = metadata.brokers.get(image.leader) if image else None
        endpoint = broker.endpoints.get(listener) if broker else None
        if broker is None or endpoint is None:
            return None
        return CoordinatorEndpoint(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port)

    async def ensure(self) -> None:
        """Creates the topic if it does not exist. Raises KafkaError."""
        if self.name not in self._broker.metadata_cache.topics:
            made = await create_missing_topics(self._broker, [self.name])
            for error in made.errors.values():
                raise error
