"""How far the groups that this broker coordinates are behind: what is not committed yet of what can be read.

Where a partition ends is known to its leader: of those that others lead, they are asked from time to time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from tidemill.broker.broker import Broker
from tidemill.broker.links import Links
from tidemill.model.errors import ErrorCode
from tidemill.net.link import LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LOOK_S: Final = 5.0
LAGS_MAX: Final = 10_000
"""Groups and topics that are told; of more, those that are behind most."""
PATIENCE_S: Final = 10.0
VERSIONS: Final = (4, 10)
LATEST: Final = -1
CONSUMER: Final = -1
NOBODY: Final = -1

Place = tuple[bytes, str, int]
"""A topic's id and name, and a partition: another topic of the name begins anew."""


class GroupLags:
    """The lags of groups; :meth:`look` brings them up to date for partitions that others lead."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._links = Links(broker)
        self._ends: dict[Place, int] = {}

    async def look(self) -> None:
        """Notes the ends of partitions from which groups here have committed; leaders elsewhere are asked.

        Where nobody tells, as the leader is away, the end stays as it was: a lag is not less for that.
        """
        wanted: dict[int, set[Place]] = defaultdict(set)
        ends: dict[Place, int] = {}
        for _, topic, partition, _ in self._broker.groups.committed():
            place = self._place(topic, partition)
            if place is None:
                continue
            known = self._end(place)
            if known is not None:
                ends[place] = known
            leader = self._leader(place)
            if leader not in (NOBODY, self._broker.node_id):
                wanted[leader].add(place)
        for told in await asyncio.gather(*(self._told(*one) for one in wanted.items())):
            ends |= told
        self._ends = ends

    def _place(self, topic: str, partition: int) -> Place | None:
        known = self._broker.metadata.topic(topic)
        if known is None or partition >= len(known.partitions):
            return None
        return known.topic_id, topic, partition

    def _leader(self, place: Place) -> int:
        _, topic, partition = place
        return int(self._broker.metadata.topics[topic].partitions[partition].leader)

    async def _told(self, leader: int, places: Collection[Place]) -> dict[Place, int]:
        try:
            ends = await self._ask(leader, places)
        except LinkError:
            return {}
        return {place: ends[place[1:]] for place in places if place[1:] in ends}

    async def _ask(self, leader: int, places: Collection[Place]) -> dict[tuple[str, int], int]:
        topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
        for _, topic, partition in places:
            topics[topic].append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST))
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=[ListOffsetsTopic(name=name, partitions=of_topic) for name, of_topic in topics.items()],
        )
        link = await self._links.open(leader)
        try:
            version = link.version_of(ApiKey.LIST_OFFSETS, *VERSIONS)
            answer = await link.ask(ApiKey.LIST_OFFSETS, version, request, PATIENCE_S)
        finally:
            link.close("its offsets are known")
        return {
            (topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }

    def _end(self, place: Place) -> int | None:
        known = self._ends.get(place)
        found = self._broker.partitions.find(*place[1:])
        if found is None or not found.is_leader or found.failed:
            return known
        if known is not None and found.is_unsettled:
            # It leads since a moment ago, and learns from its followers how far the leader before committed.
            return max(known, int(found.high_watermark))
        return int(found.high_watermark)

    def lags(self) -> list[tuple[str, str, int]]:
        """Group, topic, and the records behind its commits; without partitions whose end nobody told."""
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for group, topic, partition, offset in self._broker.groups.committed():
            place = self._place(topic, partition)
            end = self._end(place) if place is not None else None
            if end is not None:
                sums[group, topic] += max(end - offset, 0)
        most = heapq.nlargest(LAGS_MAX, sums.items(), key=lambda one: one[1])
        return [(group, topic, lag) for (group, topic), lag in most]
