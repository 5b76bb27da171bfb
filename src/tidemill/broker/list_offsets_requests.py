"""Requests offsets from other brokers (ListOffsets)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from tidemill.broker.handlers import list_offsets as handler
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.types import TopicPartition
from tidemill.net.link import Link
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LEADER_EPOCH_FROM: Final = 4
"""From this version on the response contains the leader epoch."""
PARTITIONS_MAX: Final = 1000
"""The limit for one request."""
ANY_LEADER_EPOCH: Final = -1
"""The current leader epoch in a request that any leader epoch of the other broker fits."""

Offsets = dict[TopicPartition, ListOffsetsPartitionResponse]


async def list_offsets(
    link: Link,
    leader_epochs: Mapping[TopicPartition, int],
    *,
    replica_id: int,
    timestamp: int,
    timeout_s: float,
) -> Offsets:
    """Returns the offsets for ``timestamp`` of all partitions without an error. Raises LinkError.

    ``leader_epochs`` has the partitions, each with the current leader epoch that the requesting broker knows.
    """
    found: Offsets = {}
    async for part in list_offsets_in_parts(
        link, leader_epochs, replica_id=replica_id, timestamp=timestamp, timeout_s=timeout_s
    ):
        found |= part
    return found


async def list_offsets_in_parts(
    link: Link,
    leader_epochs: Mapping[TopicPartition, int],
    *,
    replica_id: int,
    timestamp: int,
    timeout_s: float,
) -> AsyncIterator[Offsets]:
    """As :func:`list_offsets`, with the offsets of each response as it arrives."""
    version = link.version_of(ApiKey.LIST_OFFSETS, LEADER_EPOCH_FROM, handler.API.last)
    for keys in slices_of(list(leader_epochs), PARTITIONS_MAX):
        topics: dict[str, ListOffsetsTopic] = {}
        for key in keys:
            topic = topics.setdefault(key.topic, ListOffsetsTopic(name=key.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=key.partition,
                    current_leader_epoch=leader_epochs[key],
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(replica_id=replica_id, isolation_level=0, topics=list(topics.values()))
        response = await link.request(ApiKey.LIST_OFFSETS, version, request, ListOffsetsResponse, timeout_s)
        yield {
            TopicPartition(answered.name, one.partition_index): one
            for answered in response.topics
            for one in answered.partitions
            if one.error_code == 0
        }
