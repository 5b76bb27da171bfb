"""The log end offsets of leaders: OffsetForLeaderEpoch requests for their current epoch.

The high watermark of a new leader may be lower than that of the leader before it, until its followers have
fetched. Its log end is not: a leader that was elected from the ISR has all committed records.

Source: KIP-320; Apache Kafka, ``LeaderEpochFileCache.endOffsetFor``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import ClientClosed, ClientError, RequestTimeout, check
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


class LeaderLogEnds(NamedTuple):
    """The log ends of partitions, and the retriable errors of others: a later request may succeed.

    Without both are partitions whose leader is of a version without leader epochs (Apache Kafka before 2.1),
    or does not allow the request.
    """

    offsets: dict[TopicPartition, int]
    failures: dict[TopicPartition, ClientError]


def leader_log_ends(
    network_client: NetworkClient, items: Iterable[TopicPartition], deadline: float
) -> LeaderLogEnds:
    """Returns the log ends of the leaders of ``items``, in the leader epochs of the current metadata.

    Sends to all leaders at once, and nothing again. Raises ClientClosed.
    """
    result = LeaderLogEnds({}, {})
    requests: list[tuple[InFlightRequest, list[TopicPartition]]] = []
    led, unknown = partitions_by_leader_or_failures(network_client, items, deadline, "look up the log end of")
    for item, problem in unknown.items():
        with _noted([item], result.failures):
            raise problem
    for node_id, part in led.items():
        with _noted(part, result.failures):
            connection = leader_connection(network_client, node_id, part, deadline)
            request = _send(network_client, connection, part)
            if request is not None:
                requests.append((request, part))
    for request, part in requests:
        with _noted(part, result.failures):
            request.connection.wait(request, max(0.0, deadline - time.monotonic()))
            if not request.done:
                raise RequestTimeout(
                    f"broker {request.connection.address} has not answered {request.wait_text}",
                    broker=request.connection.address,
                )
            _read(request, result)
    return result


@contextmanager
def _noted(items: Iterable[TopicPartition], failures: dict[TopicPartition, ClientError]) -> Iterator[None]:
    """Notes a retriable error as that of all partitions."""
    try:
        yield
    except ClientClosed:
        raise
    except ClientError as problem:
        if problem.retriable:
            failures.update(dict.fromkeys(items, problem))


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


def _read(request: InFlightRequest, result: LeaderLogEnds) -> None:
    for topic in request.response(OffsetForLeaderEpochResponse).topics:
        for entry in topic.partitions:
            item = TopicPartition(topic.topic, entry.partition)
            with _noted([item], result.failures):
                check(
                    entry.error_code,
                    f"look up the log end of {item}",
                    broker=request.connection.address,
                    topic=item.topic,
                    partition=item.partition,
                )
                if entry.end_offset >= 0:
                    result.offsets[item] = entry.end_offset
