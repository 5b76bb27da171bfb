"""Access of a coordinator to its topic: appends and reads, partition count, leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING

from tidemill.broker.auto_topic_creation import create_missing_topics
from tidemill.broker.committed_appends import append_marker, reporting_storage_errors, wait_committed
from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint
from tidemill.model.errors import CorruptMessage, KafkaError
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.types import ZERO_ID
from tidemill.records.batch import parse_batch
from tidemill.records.record_reader import iter_stored

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
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            found = self._broker.partition(self._topic, partition)
            with reporting_storage_errors(found, "append to"):
                parsed = parse_batch(batch, 0, len(batch))
                result = found.append(parsed, ACKS_ALL, self._broker.clock.wall_ms())
        except KafkaError as error:
            ended.set_exception(error)
            return ended
        commit = wait_committed(found, int(result.last_offset) + 1)
        if commit is not None:
            return commit
        ended.set_result(None)
        return ended

    async def append_marker(self, partition: int, marker: MarkerToWrite) -> None:
        """Appends the marker of a transaction; returns once it is committed. Raises KafkaError."""
        found = self._broker.partition(self._topic, partition)
        append_marker(self._broker, found, marker)
        commit = wait_committed(found, int(found.log.end_offset))
        if commit is not None:
            await commit

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
            with reporting_storage_errors(found, "read"):
                piece = found.read(offset, READ_BYTES, end, True)
                data = b"" if piece is None else await loop.run_in_executor(None, piece.read)
            if not data:
                break  # The cleaner has removed all records up to the log end.
            whole, offset = _whole_batches(data, offset)
            if not whole:
                raise CorruptMessage(f"the batch at offset {offset} is longer than the log")
            yield whole
        await _wait_until_committed(found, end)


async def _wait_until_committed(partition: Partition, end_offset: int) -> None:
    """Waits until all records below ``end_offset`` are committed. Logs a warning after a while.

    Raises KafkaError if this broker loses the leadership, or if its disk fails, before that.
    """
    commit = wait_committed(partition, end_offset)
    if commit is None:
        return
    try:
        done, _ = await asyncio.wait([commit], timeout=COMMIT_WARNING_S)
    except asyncio.CancelledError:
        # The caller was cancelled: a later error has no receiver.
        if not commit.cancel():
            commit.exception()
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
    await commit


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
