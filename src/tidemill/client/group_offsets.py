"""The committed offsets of a group: OffsetFetch requests to its coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, check
from tidemill.client.group_requests import call_coordinator
from tidemill.client.network_client import NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

NAMED_MAX = 9
"""The last version of OffsetFetch and OffsetCommit with topic names: committed offsets outlive topic ids."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, the leader epoch of the record before (-1), metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def fetch_offsets(
    network_client: NetworkClient,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    deadline: float,
    *,
    stable: bool = False,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the committed offsets of ``partitions``, or all of the group; omits partitions without one."""
    wanted = None if partitions is None else by_topic(partitions)

    def send(connection: Connection) -> dict[TopicPartition, OffsetAndMetadata]:
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
        found = connection.only_result(ApiKey.OFFSET_FETCH, response.groups) if version >= 8 else response
        return read_offsets(found, group, connection.address)

    while True:
        try:
            return call_coordinator(network_client, group, deadline, send)
        except ClientError as problem:
            if problem.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
            network_client.back_off(problem, deadline)


def read_offsets(
    response: OffsetFetchResponse | OffsetFetchResponseGroup, group: str, broker: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets in a response; omits partitions without one. Raises ClientError."""
    check(response.error_code, f"read the offsets of group {group!r}", broker=broker)
    result: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in response.topics:
        for entry in topic.partitions:
            item = TopicPartition(topic.name, entry.partition_index)
            check(
                entry.error_code,
                f"read the offset of {item} for group {group!r}",
                broker=broker,
                topic=item.topic,
                partition=item.partition,
            )
            if entry.committed_offset >= 0:
                result[item] = OffsetAndMetadata(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return result
