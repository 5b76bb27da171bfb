"""Offsets by time, and start and end offsets: ListOffsets requests to each partition's leader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, error_for
from tidemill.client.network_client import CONTROL, NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
"""Special timestamps: the log end offset, the log start offset, the record with the largest timestamp."""

MAX_TIMESTAMP_FROM_VERSION = 7


class OffsetAt(NamedTuple):
    """The result of a lookup: ``offset`` is -1 if no record is that late; ``timestamp`` in ms, or -1."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, OffsetAt]:
    """Returns the first offset at or after each time (ms, or one of the constants above).

    Sends to all leaders at once; retries after a metadata refresh while leaders move, until ``deadline``.
    """
    failures: dict[TopicPartition, ClientError] = {}
    found = list_offsets_or_failures(
        network_client, times, deadline, failures, committed_only=committed_only, all_or_none=True
    )
    for failure in failures.values():
        raise failure
    return found


def list_offsets_or_failures(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    failures: dict[TopicPartition, ClientError],
    *,
    committed_only: bool = False,
    all_or_none: bool = False,
) -> dict[TopicPartition, OffsetAt]:
    """As :func:`list_offsets`, but adds partitions that fail to ``failures``, with their errors.

    ``all_or_none``: ends at the first error that cannot be retried.
    """
    try:
        return _list_offsets(network_client, times, deadline, failures, committed_only, all_or_none)
    finally:
        network_client.retrying = None


def _list_offsets(
    network_client: NetworkClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    failures: dict[TopicPartition, ClientError],
    committed_only: bool,
    all_or_none: bool,
) -> dict[TopicPartition, OffsetAt]:
    found: dict[TopicPartition, OffsetAt] = {}
    left = dict(times)
    began = time.monotonic()
    while left:
        again: dict[TopicPartition, ClientError] = {}
        requests: list[tuple[InFlightRequest, list[TopicPartition]]] = []
        led = partitions_by_leader_or_failures(
            network_client, left, deadline, "look up an offset of", failures
        )
        for node_id, items in led.items():
            try:
                request = _send(network_client, node_id, items, left, deadline, committed_only)
                requests.append((request, items))
            except (BrokerUnreachable, RequestTimeout) as problem:
                again.update(dict.fromkeys(items, problem))
            except ClientError as problem:
                failures.update(dict.fromkeys(items, problem))
        for request, items in requests:
            request.connection.wait(request, max(0.0, deadline - time.monotonic()))
            read_list_offsets(request, items, found, again, failures)
        left = {item: at for item, at in left.items() if item not in found and item not in failures}
        if not left or (all_or_none and failures):
            break
        pause = network_client.config.seconds("retry.backoff.ms")
        if time.monotonic() + pause >= deadline:
            late = RequestTimeout(
                f"no offsets for {', '.join(map(str, left))} within {time.monotonic() - began:.1f} s"
            )
            failures.update({item: again.get(item, late) for item in left})
            break
        network_client.retrying = (began, str(next(iter(again.values()), "no leader answers")))
        time.sleep(pause)
        try:
            network_client.refresh(deadline)
        except ClientError as problem:
            failures.update({item: again.get(item, problem) for item in left})
            break
    return found


def partitions_by_leader(
    network_client: NetworkClient, items: Iterable[TopicPartition], deadline: float, what: str
) -> dict[int, list[TopicPartition]]:
    """Groups partitions by leader; ``what`` names the operation in the error if a partition is missing."""
    failures: dict[TopicPartition, ClientError] = {}
    found = partitions_by_leader_or_failures(network_client, items, deadline, what, failures)
    for failure in failures.values():
        raise failure
    return found


def partitions_by_leader_or_failures(
    network_client: NetworkClient,
    items: Iterable[TopicPartition],
    deadline: float,
    what: str,
    failures: dict[TopicPartition, ClientError],
) -> dict[int, list[TopicPartition]]:
    """As :func:`partitions_by_leader`, but adds partitions that do not exist to ``failures``."""
    found: dict[int, list[TopicPartition]] = {}
    for item in items:
        try:
            topic = network_client.topic(item.topic, deadline)
        except ClientError as problem:
            failures[item] = problem
            continue
        if 0 <= item.partition < len(topic.partitions):
            found.setdefault(topic.partitions[item.partition].leader, []).append(item)
            continue
        failures[item] = error_for(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{what} {item}",
            detail=f"the topic has {len(topic.partitions)} partitions",
            topic=item.topic,
            partition=item.partition,
        )
    return found


def _send(
    network_client: NetworkClient,
    node_id: int,
    items: Iterable[TopicPartition],
    times: Mapping[TopicPartition, int],
    deadline: float,
    committed_only: bool,
) -> InFlightRequest:
    if node_id < 0:
        raise BrokerUnreachable("no leader for " + ", ".join(map(str, items)), ErrorCode.LEADER_NOT_AVAILABLE)
    connection = network_client.connection(node_id, CONTROL, deadline)
    requested = {item: times[item] for item in items}
    return send_list_offsets(connection, requested, network_client.config, committed_only=committed_only)


def send_list_offsets(
    connection: Connection, times: Mapping[TopicPartition, int], config: ClientConfig, *, committed_only: bool
) -> InFlightRequest:
    """Sends a request to the leader of these partitions, without waiting for the response."""
    version = connection.version(ApiKey.LIST_OFFSETS)
    topics: dict[str, ListOffsetsTopic] = {}
    for item, at in times.items():
        if at == MAX_TIMESTAMP and version < MAX_TIMESTAMP_FROM_VERSION:
            raise error_for(
                ErrorCode.UNSUPPORTED_VERSION, "look up the largest timestamp", broker=connection.address
            )
        topic = topics.setdefault(item.topic, ListOffsetsTopic(name=item.topic, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=item.partition, timestamp=at))
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed_only and version >= 2 else 0,
        topics=list(topics.values()),
        timeout_ms=config.int("request.timeout.ms"),
    )
    return connection.send(ApiKey.LIST_OFFSETS, message, version=version)


def read_list_offsets(
    request: InFlightRequest,
    items: Iterable[TopicPartition],
    found: dict[TopicPartition, OffsetAt],
    again: dict[TopicPartition, ClientError],
    failures: dict[TopicPartition, ClientError],
) -> None:
    """Sorts the results in a response: ``found``, to be retried (``again``), and final ``failures``."""
    broker = request.connection.address
    if not request.done:
        late = RequestTimeout(
            f"broker {broker} has not answered ListOffsets {request.wait_text}", broker=broker
        )
        again.update(dict.fromkeys(items, late))
        return
    try:
        response: Any = request.response()
    except (BrokerUnreachable, RequestTimeout) as problem:
        again.update(dict.fromkeys(items, problem))
        return
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
                (again if refused.retriable else failures)[item] = refused
            elif request.version == 0:
                offset = entry.old_style_offsets[0] if entry.old_style_offsets else -1
                found[item] = OffsetAt(offset, -1, -1)
            else:
                found[item] = OffsetAt(entry.offset, entry.timestamp, entry.leader_epoch)
