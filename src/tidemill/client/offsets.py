"""Offsets by time, and the ends of partitions: ListOffsets, asked of each partition's leader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidemill.client.cluster import CONTROL, Cluster
from tidemill.client.connection import Request
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, error_for
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
"""Times that stand for places: the end, the start, the record with the largest timestamp."""

MAX_TIMESTAMP_FROM_VERSION = 7


class OffsetAt(NamedTuple):
    """Where a lookup led: ``offset`` is -1 when no record is that late; ``timestamp`` in ms, -1 without."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], deadline: float, *, committed_only: bool = False
) -> dict[TopicPartition, OffsetAt]:
    """The first offset at or after each time (ms, or one of the constants above).

    Leaders are asked all at once, and again after a metadata refresh while they move and there is time.
    """
    found: dict[TopicPartition, OffsetAt] = {}
    left = dict(times)
    while left:
        failure: ClientError | None = None
        requests: list[Request] = []
        for node_id, items in by_leader(cluster, left, deadline, "look up an offset of").items():
            try:
                requests.append(_ask(cluster, node_id, items, left, deadline, committed_only))
            except (BrokerUnreachable, RequestTimeout) as problem:
                failure = problem
        for request in requests:
            request.connection.wait(request, max(0.0, deadline - time.monotonic()))
            failure = _take(request, left, found) or failure
        if not left:
            break
        if failure is None:
            failure = RequestTimeout(f"no offsets for {', '.join(map(str, left))} in time")
        pause = cluster.config.seconds("retry.backoff.ms")
        if time.monotonic() + pause >= deadline:
            raise failure
        time.sleep(pause)
        cluster.refresh(deadline)
    return found


def by_leader(
    cluster: Cluster, items: Iterable[TopicPartition], deadline: float, what: str
) -> dict[int, list[TopicPartition]]:
    """The partitions of each leader; ``what`` is to be done with them, for the error if one is missing."""
    found: dict[int, list[TopicPartition]] = {}
    for item in items:
        topic = cluster.topic(item.topic, deadline)
        if not 0 <= item.partition < len(topic.partitions):
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{what} {item}",
                detail=f"the topic has {len(topic.partitions)} partitions",
                topic=item.topic,
                partition=item.partition,
            )
        found.setdefault(topic.partitions[item.partition].leader, []).append(item)
    return found


def _ask(
    cluster: Cluster,
    node_id: int,
    items: Iterable[TopicPartition],
    times: Mapping[TopicPartition, int],
    deadline: float,
    committed_only: bool,
) -> Request:
    if node_id < 0:
        raise BrokerUnreachable("no leader for " + ", ".join(map(str, items)), ErrorCode.LEADER_NOT_AVAILABLE)
    connection = cluster.connection(node_id, CONTROL, deadline)
    version = connection.version(ApiKey.LIST_OFFSETS)
    topics: dict[str, ListOffsetsTopic] = {}
    for item in items:
        if times[item] == MAX_TIMESTAMP and version < MAX_TIMESTAMP_FROM_VERSION:
            raise error_for(
                ErrorCode.UNSUPPORTED_VERSION, "look up the largest timestamp", broker=connection.address
            )
        topic = topics.setdefault(item.topic, ListOffsetsTopic(name=item.topic, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=item.partition, timestamp=times[item]))
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed_only and version >= 2 else 0,
        topics=list(topics.values()),
        timeout_ms=cluster.config.int("request.timeout.ms"),
    )
    return connection.send(ApiKey.LIST_OFFSETS, message, version=version)


def _take(
    request: Request, left: dict[TopicPartition, int], found: dict[TopicPartition, OffsetAt]
) -> ClientError | None:
    """Moves what was answered from ``left`` to ``found``; the error after which it is worth asking again."""
    failure: ClientError | None = None
    if not request.done:
        return RequestTimeout(
            f"broker {request.connection.address} has not answered ListOffsets in time",
            broker=request.connection.address,
        )
    try:
        answer: Any = request.response()
    except (BrokerUnreachable, RequestTimeout) as problem:
        return problem
    for topic in answer.topics:
        for entry in topic.partitions:
            item = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                refused = error_for(
                    entry.error_code,
                    f"look up an offset of {item}",
                    broker=request.connection.address,
                    topic=item.topic,
                    partition=item.partition,
                )
                if not refused.retriable:
                    raise refused
                failure = refused
                continue
            if request.version == 0:
                offset = entry.old_style_offsets[0] if entry.old_style_offsets else -1
                found[item] = OffsetAt(offset, -1, -1)
            else:
                found[item] = OffsetAt(entry.offset, entry.timestamp, entry.leader_epoch)
            left.pop(item, None)
    return failure
