"""The lag of the groups with this broker as coordinator: high watermark minus committed offset.

The high watermarks of partitions with other leaders come from periodic ListOffsets requests.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from tidemill.broker.broker import Broker
from tidemill.broker.broker_links import BrokerLinks
from tidemill.broker.list_offsets_requests import ANY_LEADER_EPOCH, list_offsets
from tidemill.model.types import NO_BROKER, TopicPartition
from tidemill.net.link import LinkError
from tidemill.replication.delayed_operations import CONSUMER
from tidemill.wire.list_offset_timestamps import LATEST

UPDATE_INTERVAL_S: Final = 5.0
LAGS_MAX: Final = 10_000
"""The maximum number of reported pairs of group and topic; those with the largest lag are reported."""
REQUEST_TIMEOUT_S: Final = 10.0

PartitionKey = tuple[bytes, str, int]
"""Topic id, topic name, partition. With the id, a topic that is created again has a key of its own."""


class GroupLags:
    """The lags of groups. :meth:`update` updates the end offsets of partitions with other leaders."""

    def __init__(self, broker: Broker, links: BrokerLinks) -> None:
        self._broker = broker
        self._links = links
        self._known_ends: dict[PartitionKey, int] = {}

    async def update(self) -> None:
        """Updates the end offsets of all partitions with committed offsets, with requests to other leaders.

        Without a response, because the leader is offline for example, the last known end offset stays.
        """
        by_leader: dict[int, set[PartitionKey]] = defaultdict(set)
        ends: dict[PartitionKey, int] = {}
        for _, topic, partition, _ in self._broker.group_coordinator.committed():
            key = self._key(topic, partition)
            if key is None:
                continue
            known = self._end_offset(key)
            if known is not None:
                ends[key] = known
            leader = self._leader(key)
            if leader not in (NO_BROKER, self._broker.node_id):
                by_leader[leader].add(key)
        for ends_of_leader in await asyncio.gather(*(self._end_offsets(*one) for one in by_leader.items())):
            ends |= ends_of_leader
        self._known_ends = ends

    def _key(self, topic: str, partition: int) -> PartitionKey | None:
        known = self._broker.metadata_cache.topic(topic)
        if known is None or partition >= len(known.partitions):
            return None
        return known.topic_id, topic, partition

    def _leader(self, key: PartitionKey) -> int:
        _, topic, partition = key
        return int(self._broker.metadata_cache.topics[topic].partitions[partition].leader)

    async def _end_offsets(self, leader: int, keys: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        try:
            ends = await self._list_offsets(leader, keys)
        except LinkError:
            return {}
        return {key: ends[at] for key in keys if (at := TopicPartition(*key[1:])) in ends}

    async def _list_offsets(self, leader: int, keys: Collection[PartitionKey]) -> dict[TopicPartition, int]:
        link = await self._links.open(leader)
        try:
            offsets = await list_offsets(
                link,
                {TopicPartition(topic, partition): ANY_LEADER_EPOCH for _, topic, partition in keys},
                replica_id=CONSUMER,
                timestamp=LATEST,
                timeout_s=REQUEST_TIMEOUT_S,
            )
        finally:
            link.close("its offsets are known")
        return {key: one.offset for key, one in offsets.items()}

    def _end_offset(self, key: PartitionKey) -> int | None:
        known = self._known_ends.get(key)
        found = self._broker.replica_manager.find(*key[1:])
        if found is None or not found.is_leader or found.is_offline:
            return known
        if known is not None and found.awaits_high_watermark:
            # A new leader: its high watermark may be behind that of the former leader until followers fetch.
            return max(known, int(found.high_watermark))
        return int(found.high_watermark)

    def lags(self) -> list[tuple[str, str, int]]:
        """Group, topic and lag in records, without partitions whose end offset is unknown."""
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for group, topic, partition, offset in self._broker.group_coordinator.committed():
            key = self._key(topic, partition)
            end = self._end_offset(key) if key is not None else None
            if end is not None:
                sums[group, topic] += max(end - offset, 0)
        most = heapq.nlargest(LAGS_MAX, sums.items(), key=lambda one: one[1])
        return [(group, topic, lag) for (group, topic), lag in most]
