"""Offsets by time, and start and end offsets: ListOffsets requests to each partition's leader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, error_for
from tidemill.client.network_client import CONTROL, NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.list_offset_timestamps import FIRST_VERSION_OF, MAX_TIMESTAMP
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)


class OffsetAndTimestamp(NamedTuple):
    """The result of a lookup: ``offset`` is -1 if no record is that late; ``timestamp`` in ms, or -1."""

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetsAndFailures(NamedTuple):
    """The offsets of partitions, and the errors of the others."""

    offsets: dict[TopicPartition, OffsetAndTimestamp]
    failures: dict[TopicPartition, ClientError]
    retriable: dict[TopicPartition, ClientError]
    """The errors after which the request is sent again; empty at the end."""


def list_offsets(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Returns the first offset at or after each time (ms, or one of the constants above).

    Sends to all leaders at once; retries after a metadata refresh while leaders move, until ``deadline``.
    """
    found = list_offsets_or_failures(
        network_client, times, deadline, committed_only=committed_only, all_or_none=True
    )
    for failure in found.failures.values():
        raise failure
    return found.offsets


def list_offsets_or_failures(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    *,
    committed_only: bool = False,
    all_or_none: bool = False,
) -> OffsetsAndFailures:
    """As :func:`list_offsets`, but returns the errors of the partitions that fail.

    ``all_or_none``: ends at the first error that cannot be retried.
    """
    try:
        return _list_offsets(network_client, times, deadline, committed_only, all_or_none)
    finally:
        network_client.retrying = None


def _list_offsets(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    committed_only: bool,
    all_or_none: bool,
) -> OffsetsAndFailures:
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    failures: dict[TopicPartition, ClientError] = {}
    left = dict(times)
    began = time.monotonic()
    while left:
        again: dict[TopicPartition, ClientError] = {}
        requests: list[tuple[InFlightRequest, list[TopicPartition]]] = []
        led, unknown = partitions_by_leader_or_failures(
            network_client, left, deadline, "look up an offset of"
        )
        failures |= unknown
        for node_id, items in led.items():
            try:
                connection = leader_connection(network_client, node_id, items, deadline)
                requested = {item: left[item] for item in items}
                request = send_list_offsets(
                    connection, requested, network_client.config, committed_only=committed_only
                )
                requests.append((request, items))
            except (BrokerUnreachable, RequestTimeout) as problem:
                again.update(dict.fromkeys(items, problem))
            except ClientError as problem:
                failures.update(dict.fromkeys(items, problem))
        for request, items in requests:
            request.connection.wait(request, max(0.0, deadline - time.monotonic()))
            result = read_list_offsets(request, items)
            found |= result.offsets
            failures |= result.failures
            again |= result.retriable
        left = {item: at for item, at in left.items() if item not in found and item not in failures}
        if not left or (all_or_none and failures):
            break
        late = RequestTimeout(
            f"no offsets for {', '.join(map(str, left))} within {time.monotonic() - began:.1f} s"
        )
        network_client.retrying = (began, str(next(iter(again.values()), "no leader answers")))
        try:
            network_client.back_off(late, deadline)
            network_client.refresh(deadline)
        except ClientError as problem:
            failures.update({item: again.get(item, problem) for item in left})
            break
    return OffsetsAndFailures(found, failures, {})


def partitions_by_leader(
    network_client: NetworkClient, items: Iterable[TopicPartition], deadline: float, operation: str
) -> dict[int, list[TopicPartition]]:
    """Groups partitions by leader. The error of a missing partition names ``operation``."""
    found, failures = partitions_by_leader_or_failures(network_client, items, deadline, operation)
    for failure in failures.values():
        raise failure
    return found


def partitions_by_leader_or_failures(
    network_client: NetworkClient, items: Iterable[TopicPartition], deadline: float, operation: str
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, ClientError]]:
    """As :func:`partitions_by_leader`, but also returns the errors of partitions that do not exist."""
    found: dict[int, list[TopicPartition]] = {}
    failures: dict[TopicPartition, ClientError] = {}
    for item in items:
        try:
            topic = network_client.topic(item.topic, deadline, partition=item.partition)
        except ClientError as problem:
            failures[item] = problem
            continue
        if 0 <= item.partition < len(topic.partitions):
            found.setdefault(topic.partitions[item.partition].leader, []).append(item)
            continue
        failures[item] = error_for(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{operation} {item}",
            detail=f"the topic has {len(topic.partitions)} partitions",
            topic=item.topic,
            partition=item.partition,
        )
    return found, failures


def leader_connection(
    network_client: NetworkClient, node_id: int, items: Iterable[TopicPartition], deadline: float
) -> Connection:
    """Returns a connection to the leader of ``items``. Raises BrokerUnreachable if there is no leader."""
    if node_id < 0:
        raise BrokerUnreachable("no leader for " + ", ".join(map(str, items)), ErrorCode.LEADER_NOT_AVAILABLE)
    return network_client.connection(node_id, CONTROL, deadline)


def send_list_offsets(
    connection: Connection, times: Mapping[TopicPartition, int], config: ClientConfig, *, committed_only: bool
) -> InFlightRequest:
    """Sends a request to the leader of these partitions, without waiting for the response."""
    version = connection.version(ApiKey.LIST_OFFSETS)
    topics: dict[str, ListOffsetsTopic] = {}
    for item, at in times.items():
        if version < FIRST_VERSION_OF.get(at, 0):
            what = "the largest timestamp" if at == MAX_TIMESTAMP else f"the offset of the timestamp {at}"
            raise error_for(ErrorCode.UNSUPPORTED_VERSION, f"look up {what}", broker=connection.address)
        topic = topics.setdefault(item.topic, ListOffsetsTopic(name=item.topic, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=item.partition, timestamp=at))
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed_only and version >= 2 else 0,
        topics=list(topics.values()),
        timeout_ms=config.int("request.timeout.ms"),
    )
    return connection.send(ApiKey.LIST_OFFSETS, message, version=version)


def read_list_offsets(request: InFlightRequest, items: Iterable[TopicPartition]) -> OffsetsAndFailures:
    """Returns the results in the response to a request for ``items``."""
    broker = request.connection.address
    try:
        if not request.done:
            raise RequestTimeout(
                f"broker {broker} has not answered ListOffsets {request.wait_text}", broker=broker
            )
        response = request.response(ListOffsetsResponse)
    except (BrokerUnreachable, RequestTimeout) as problem:
        return OffsetsAndFailures({}, {}, dict.fromkeys(items, problem))
    result = OffsetsAndFailures({}, {}, {})
    for topic in response.topics:
        for entry in topic.partitions:
            item = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                refused = error_for(
                    entry.error_code,
                    f"look up an offset of {item}",
                    broker=broker,
                    topic=item.topic,
                    partition=item.partition,
                )
                (result.retriable if refused.retriable else result.failures)[item] = refused
            elif request.version == 0:
                offset = entry.old_style_offsets[0] if entry.old_style_offsets else -1
                result.offsets[item] = OffsetAndTimestamp(offset, -1, -1)
            else:
                result.offsets[item] = OffsetAndTimestamp(entry.offset, entry.timestamp, entry.leader_epoch)
    return result
