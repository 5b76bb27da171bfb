"""The log end offsets of leaders: OffsetForLeaderEpoch requests for their current epoch.

The high watermark of a new leader may be lower than that of the leader before it, until its followers have
fetched. Its log end is not: a leader that was elected from the ISR has all committed records.

Source: KIP-320; Apache Kafka, ``LeaderEpochFileCache.endOffsetFor``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import ClientError
from tidemill.client.network_client import NetworkClient
from tidemill.client.offsets import leader_connection, partitions_by_leader_or_failures
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

CONSUMER = -1
"""The replica id of a client."""


def leader_log_ends(
    network_client: NetworkClient, items: Iterable[TopicPartition], deadline: float
) -> dict[TopicPartition, int]:
    """Returns the log ends of the leaders of ``items``, in the leader epochs of the current metadata.

    Omits partitions whose leader does not answer, has another epoch, or is of a version without leader epochs
    (Apache Kafka before 2.1).
    """
    found: dict[TopicPartition, int] = {}
    led, _ = partitions_by_leader_or_failures(network_client, items, deadline, "look up the log end of")
    for node_id, part in led.items():
        try:
            connection = leader_connection(network_client, node_id, part, deadline)
            request = _send(network_client, connection, part)
            if request is None:
                continue
            connection.wait(request, max(0.0, deadline - time.monotonic()))
            if request.done:
                found |= _log_ends_in(request)
        except ClientError:
            continue  # The caller has nothing that it could do with the reason.
    return found


def _send(
    network_client: NetworkClient, connection: Connection, items: Iterable[TopicPartition]
) -> InFlightRequest | None:
    """Sends a request for the partitions whose leader epochs are known; None if there are none."""
    if not connection.supports(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        return None
    topics = []
    for topic, numbers in by_topic(items).items():
        epochs = {
            number: known.leader_epoch
            for number in numbers
            if (known := network_client.partition(topic, number)) is not None and known.leader_epoch >= 0
        }
        if epochs:
            partitions = [
                OffsetForLeaderPartition(partition=number, current_leader_epoch=epoch, leader_epoch=epoch)
                for number, epoch in epochs.items()
            ]
            topics.append(OffsetForLeaderTopic(topic=topic, partitions=partitions))
    if not topics:
        return None
    message = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)
    version = connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    return connection.send(ApiKey.OFFSET_FOR_LEADER_EPOCH, message, version=version)


def _log_ends_in(request: InFlightRequest) -> dict[TopicPartition, int]:
    response = request.response(OffsetForLeaderEpochResponse)
    return {
        TopicPartition(topic.topic, entry.partition): entry.end_offset
        for topic in response.topics
        for entry in topic.partitions
        if not entry.error_code and entry.end_offset >= 0
    }
