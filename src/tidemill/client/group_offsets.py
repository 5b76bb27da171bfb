"""Offsets of groups: OffsetCommit and OffsetFetch requests to the group's coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tidemill.client.connection import Connection
from tidemill.client.consumer_protocol import by_topic
from tidemill.client.errors import BrokerUnreachable, ClientClosed, ClientError, RequestTimeout, check
from tidemill.client.network_client import GROUP, NetworkClient
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

ResultT = TypeVar("ResultT")

NAMED_MAX = 9
"""The last version of both APIs with topic names; later ones have topic ids, which commits outlive."""

COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors after which the coordinator is looked up again."""

Offsets = Mapping[TopicPartition, tuple[int, int, str]]
"""Offset, leader epoch (-1 unknown), metadata by partition."""


class Committed(NamedTuple):
    """A committed offset: the next record to read, the leader epoch of the record before (-1), metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def call_coordinator(
    network_client: NetworkClient, group: str, deadline: float, send: Callable[[Connection], ResultT]
) -> ResultT:
    """Calls ``send`` with a connection to the group's coordinator; retries while the coordinator moves."""
    while True:
        try:
            node_id = network_client.find_coordinator(group, deadline)
            found = send(network_client.connection(node_id, GROUP, deadline))
        except ClientError as problem:
            if isinstance(problem, ClientClosed) or problem.code not in COORDINATOR_MOVED:
                raise
            network_client.coordinator_warnings.failed(group, problem)
            network_client.back_off(problem, deadline)
            network_client.request_refresh()
        else:
            network_client.coordinator_warnings.ended(group)
            return found


def commit_request(
    group: str, offsets: Offsets, member_id: str, generation: int, instance_id: str | None, version: int
) -> OffsetCommitRequest:
    """Builds the request; for a group without members, generation -1 and an empty member id."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id if version >= 7 else None,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=p,
                        committed_offset=offsets[TopicPartition(topic, p)][0],
                        committed_leader_epoch=offsets[TopicPartition(topic, p)][1],
                        committed_metadata=offsets[TopicPartition(topic, p)][2],
                    )
                    for p in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def check_commit(response: OffsetCommitResponse, group: str, broker: str) -> None:
    """Raises the first error in a response to OffsetCommit."""
    for topic in response.topics:
        for entry in topic.partitions:
            _check_partition(
                TopicPartition(topic.name, entry.partition_index), entry.error_code, "commit", group, broker
            )


def _check_partition(item: TopicPartition, error_code: int, action: str, group: str, broker: str) -> None:
    check(
        error_code,
        f"{action} {item} for group {group!r}",
        broker=broker,
        topic=item.topic,
        partition=item.partition,
    )


def commit_offsets(network_client: NetworkClient, group: str, offsets: Offsets, deadline: float) -> None:
    """Commits for a group without members, and waits for the acknowledgement."""
    if not offsets:
        return

    def send(connection: Connection) -> None:
        version = connection.version(ApiKey.OFFSET_COMMIT, NAMED_MAX)
        request = commit_request(group, offsets, "", -1, None, version)
        left_s = max(1.0, deadline - time.monotonic())
        timeout = min(left_s, network_client.config.seconds("request.timeout.ms"))
        response = connection.call(
            ApiKey.OFFSET_COMMIT, request, OffsetCommitResponse, version=version, timeout=timeout
        )
        check_commit(response, group, connection.address)

    call_coordinator(network_client, group, deadline, send)


def fetch_offsets(
    network_client: NetworkClient,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    deadline: float,
    *,
    stable: bool = False,
) -> dict[TopicPartition, Committed]:
    """Returns the committed offsets of ``partitions``, or all of the group; omits partitions without one."""
    wanted = None if partitions is None else by_topic(partitions)

    def send(connection: Connection) -> dict[TopicPartition, Committed]:
        version = connection.version(ApiKey.OFFSET_FETCH, NAMED_MAX)
        request = OffsetFetchRequest(require_stable=stable and version >= 7)
        topics = (
            None
            if wanted is None
            else [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in wanted.items()]
        )
        if version >= 8:
            request.groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
        else:
            request.group_id, request.topics = group, topics
        timeout = network_client.response_timeout_s(deadline)
        response = connection.call(
            ApiKey.OFFSET_FETCH, request, OffsetFetchResponse, version=version, timeout=timeout
        )
        found = response.groups if version >= 8 else [response]
        if not found:
            raise connection.reject_response(ProtocolError("an OffsetFetch response without a group"))
        return _read_offsets(found[0], group, connection.address)

    while True:
        try:
            return call_coordinator(network_client, group, deadline, send)
        except (BrokerUnreachable, RequestTimeout):
            raise
        except ClientError as problem:
            if problem.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
            network_client.back_off(problem, deadline)


def _read_offsets(
    response: OffsetFetchResponse | OffsetFetchResponseGroup, group: str, broker: str
) -> dict[TopicPartition, Committed]:
    check(response.error_code, f"read the offsets of group {group!r}", broker=broker)
    result: dict[TopicPartition, Committed] = {}
    for topic in response.topics:
        for entry in topic.partitions:
            item = TopicPartition(topic.name, entry.partition_index)
            _check_partition(item, entry.error_code, "read the offset of", group, broker)
            if entry.committed_offset >= 0:
                result[item] = Committed(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return result
