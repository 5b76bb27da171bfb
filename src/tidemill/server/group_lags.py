"""How far the groups that this broker coordinates are behind: what is not committed yet of what can be read.

Where a partition ends is known to its leader: of those that others lead, they are asked from time to time.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import defaultdict
from collections.abc import Iterable
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

Place = tuple[str, int]
"""Topic and partition."""


class GroupLags:
    """The lags of groups; :meth:`look` brings them up to date for partitions that others lead."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._links = Links(broker)
        self._ends: dict[Place, int] = {}

    async def look(self) -> None:
        """Asks the leaders elsewhere for the ends of partitions from which groups here have committed."""
        wanted: dict[int, set[Place]] = defaultdict(set)
        for _, topic, partition, _ in self._broker.groups.committed():
            leader = self._leader(topic, partition)
            if leader not in (NOBODY, self._broker.node_id):
                wanted[leader].add((topic, partition))
        ends: dict[Place, int] = {}
        for leader, places in wanted.items():
            with contextlib.suppress(LinkError):
                ends |= await self._ask(leader, places)
        self._ends = ends

    def _leader(self, topic: str, partition: int) -> int:
        known = self._broker.metadata.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return NOBODY
        return int(known.partitions[partition].leader)

    async def _ask(self, leader: int, places: Iterable[Place]) -> dict[Place, int]:
        topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
        for topic, partition in places:
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

    def _end(self, topic: str, partition: int) -> int | None:
        found = self._broker.partitions.find(topic, partition)
        if found is not None and found.is_leader:
            return int(found.high_watermark)
        return self._ends.get((topic, partition))

    def lags(self) -> list[tuple[str, str, int]]:
        """Group, topic, and the records behind its commits; without partitions whose end nobody told."""
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for group, topic, partition, offset in self._broker.groups.committed():
            end = self._end(topic, partition)
            if end is not None:
                sums[group, topic] += max(end - offset, 0)
        most = heapq.nlargest(LAGS_MAX, sums.items(), key=lambda one: one[1])
        return [(group, topic, lag) for (group, topic), lag in most]
