"""Writes markers of transactions: into partitions that this broker leads, and through other leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.committed_appends import append_marker, wait_committed
from tidemill.coordination.coordination_store import Node, StoreError
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import DeleteTopicNode, TopicNode
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, slices_of
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.types import NO_BROKER, TopicPartition
from tidemill.transactions.transaction_marker_channel_manager import PartitionMarker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import write_txn_markers as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.inter_broker_client import InterBrokerClient

logger = logging.getLogger("tidemill.transactions")

VERSIONS: Final = (0, 2)
COMMIT_WAIT_S: Final = 5.0
"""How long a response waits for the commits of its markers, at most half of ``request.timeout.ms``: after
that time the coordinator would write all markers of the request again, also those that are committed. Other
markers of the coordinator wait for the response."""
MarkerErrors = Mapping[tuple[int, TopicPartition], ErrorCode]
"""By producer id and partition."""


class MarkerWriter:
    """Writes markers into partitions that this broker leads, then waits for the commit of all of them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.errors: list[ErrorCode] = []
        """The result of each marker, in the order of the calls of :meth:`write`."""
        self._waiting: list[tuple[int, Awaitable[None]]] = []

    def write(self, marker: MarkerToWrite, where: TopicPartition) -> None:
        """Appends a marker."""
        try:
            commit = self._append(marker, where)
        except KafkaError as problem:
            self.errors.append(problem.code)
            return
        if commit is not None:
            self._waiting.append((len(self.errors), commit))
        self.errors.append(ErrorCode.NONE)

    async def wait(self) -> list[ErrorCode]:
        """Waits until all markers are committed, or a timeout is over. Returns :attr:`errors`."""
        loop = asyncio.get_running_loop()
        wait_s = min(COMMIT_WAIT_S, self._broker.config.seconds("request.timeout.ms") / 2)
        deadline_s = loop.time() + wait_s
        for count, (number, commit) in enumerate(self._waiting):
            if count % ITEMS_AT_ONCE_MAX == 0:
                await asyncio.sleep(0)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await commit
            except TimeoutError:
                # The coordinator writes the marker again, which then ends no transaction.
                self.errors[number] = ErrorCode.REQUEST_TIMED_OUT
            except KafkaError as problem:
                self.errors[number] = problem.code
        return self.errors

    def _append(self, marker: MarkerToWrite, where: TopicPartition) -> Awaitable[None] | None:
        """Returns the wait for the commit; None if the marker is committed already."""
        broker = self._broker
        if where.topic == OFFSETS_TOPIC:
            end = broker.group_coordinator.end_transaction(where.partition, marker)
            return asyncio.ensure_future(end)
        partition = broker.partition(where.topic, where.partition)
        if partition.is_mirror and not partition.log.mirror_has_ended:
            # It has no batch of this cluster.
            return None
        append_marker(broker, partition, marker)
        return wait_committed(partition, int(partition.log.end_offset))


class LeaderDestinations:
    """The leaders in the metadata of the cluster."""

    def __init__(self, broker: Broker, client: InterBrokerClient | None) -> None:
        self._broker = broker
        self._client = client

    def leader(self, partition: TopicPartition) -> int | None:
        """Returns the leader of a partition; None while there is none."""
        topic = self._broker.metadata_cache.topic(partition.topic)
        image = topic.partition(partition.partition) if topic is not None else None
        return None if image is None or image.leader == NO_BROKER else image.leader

    async def deleted(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Returns those of ``partitions`` that were deleted, according to the coordination store.

        The metadata of this broker lack further ones: it leads partitions before it has the metadata of a
        new topic, or any metadata after its start, and a controller may be unable to read a topic's node.
        """
        topics = {one.topic for one in partitions if self._is_unknown(one)}
        if not topics:
            return ()
        names = sorted(topics)
        try:
            nodes = await self._broker.store.get_many([TopicNode.path(name) for name in names])
            requests = await self._broker.store.get_many([DeleteTopicNode.path(name) for name in names])
        except StoreError as problem:
            logger.info("it is unknown whether topics were deleted: %s", problem)
            return ()
        existing = {
            name: _partitions_of(name, node)
            for name, node, request in zip(names, nodes, requests, strict=True)
            if node is not None and request is None
        }
        return {
            one
            for one in partitions
            if self._is_unknown(one) and _is_absent(one.partition, existing.get(one.topic, ()))
        }

    def _is_unknown(self, partition: TopicPartition) -> bool:
        topic = self._broker.metadata_cache.topic(partition.topic)
        return topic is None or topic.partition(partition.partition) is None

    async def write(self, broker_id: int, markers: Sequence[PartitionMarker]) -> MarkerErrors:
        """Writes markers through a leader. Raises KafkaError if the broker does not respond."""
        if broker_id == self._broker.node_id:
            return await self._write_here(markers)
        if self._client is None:
            raise KafkaError(f"broker {broker_id} is not this broker", ErrorCode.NETWORK_EXCEPTION)
        response = await self._client.request(
            broker_id, ApiKey.WRITE_TXN_MARKERS, VERSIONS, _request(markers), messages.WriteTxnMarkersResponse
        )
        return {
            (marker.producer_id, TopicPartition(topic.name, one.partition_index)): ErrorCode.of(
                one.error_code
            )
            for marker in response.markers
            for topic in marker.topics
            for one in topic.partitions
        }

    async def _write_here(self, markers: Sequence[PartitionMarker]) -> MarkerErrors:
        writer = MarkerWriter(self._broker)
        for number, some in enumerate(slices_of(markers)):
            if number:
                await asyncio.sleep(0)
            for one in some:
                writer.write(_marker_of(one), one.partition)
        errors = await writer.wait()
        return {
            (one.marker.producer.producer_id, one.partition): error
            for one, error in zip(markers, errors, strict=True)
        }


def _partitions_of(name: str, node: Node) -> Collection[int] | None:
    """Returns the partitions in the node of a topic; None if the node is unreadable."""
    try:
        return TopicNode.decode(name, node.data).replicas.keys()
    except NodeFormatError:
        return None


def _is_absent(partition: int, existing: Collection[int] | None) -> bool:
    return existing is not None and partition not in existing


def _marker_of(one: PartitionMarker) -> MarkerToWrite:
    marker = one.marker
    return MarkerToWrite(marker.producer, marker.is_commit, one.coordinator_epoch(), marker.client_version)


def _request(markers: Sequence[PartitionMarker]) -> messages.WriteTxnMarkersRequest:
    by_marker: dict[MarkerToWrite, dict[str, list[int]]] = {}
    for one in markers:
        topics = by_marker.setdefault(_marker_of(one), {})
        topics.setdefault(one.partition.topic, []).append(one.partition.partition)
    return messages.WriteTxnMarkersRequest(
        markers=[
            messages.WritableTxnMarker(
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.epoch,
                transaction_result=marker.is_commit,
                topics=[
                    messages.WritableTxnMarkerTopic(name=name, partition_indexes=partitions)
                    for name, partitions in topics.items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.version,
            )
            for marker, topics in by_marker.items()
        ]
    )
