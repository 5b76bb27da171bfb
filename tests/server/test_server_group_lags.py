"""Group lags while leaders change or are unreachable, and after a topic is created again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.net.link import LinkError
from tidemill.server.group_lags import GroupLags, PartitionKey

HERE, ELSEWHERE, NO_LEADER = 1, 2, -1
COMMITTED = 10


class Cluster:
    """A coordinator of a group with committed offsets in two partitions, and the leaders of these."""

    def __init__(self) -> None:
        self.commits = [("group", "t", 0, COMMITTED), ("group", "t", 1, COMMITTED)]
        self.held: dict[int, Any] = {}
        self.ends: dict[int, int] = {}
        """End offsets by partition from the other leader; empty if it is unreachable."""
        self.metadata = SimpleNamespace(image=ClusterImage())
        broker: Any = SimpleNamespace(
            node_id=HERE,
            group_coordinator=SimpleNamespace(committed=lambda: self.commits),
            metadata_cache=SimpleNamespace(topic=lambda name: self.image.topics.get(name), topics={}),
            replica_manager=SimpleNamespace(find=lambda topic, partition: self.held.get(partition)),
        )
        self.broker = broker
        no_links: Any = None
        self.lags = GroupLags(broker, no_links)
        group_lags: Any = self.lags
        group_lags._list_offsets = self.list_offsets
        self.leads(ELSEWHERE, ELSEWHERE)

    def leads(self, *leaders: int, topic_id: bytes = b"1" * 16) -> None:
        partitions = tuple(
            PartitionImage(at, leader, 0, [HERE, ELSEWHERE], [HERE]) for at, leader in enumerate(leaders)
        )
        self.image = ClusterImage().with_topics([TopicImage("t", topic_id, partitions, {})])
        self.broker.metadata_cache.topics = self.image.topics

    def holds(
        self,
        partition: int,
        high_watermark: int,
        *,
        is_leader: bool,
        awaits_high_watermark: bool = False,
    ) -> None:
        self.held[partition] = SimpleNamespace(
            high_watermark=high_watermark,
            is_leader=is_leader,
            awaits_high_watermark=awaits_high_watermark,
            is_offline=False,
        )

    async def list_offsets(self, leader: int, keys: Collection[PartitionKey]) -> dict[tuple[str, int], int]:
        assert leader == ELSEWHERE
        if not self.ends:
            raise LinkError("unreachable")
        return {("t", partition): self.ends[partition] for _, _, partition in keys if partition in self.ends}

    def lag(self) -> int | None:
        """Updates the end offsets, and returns the lag."""
        asyncio.run(self.lags.update())
        return self.current()

    def current(self) -> int | None:
        lags = {(group, topic): lag for group, topic, lag in self.lags.lags()}
        return lags.get(("group", "t"))


def test_sums_the_lag_over_partitions_of_all_leaders() -> None:
    cluster = Cluster()
    assert cluster.lag() is None, "no leader has responded"
    cluster.ends = {0: 13, 1: 14}
    assert cluster.lag() == 7
    cluster.leads(HERE, ELSEWHERE)
    cluster.holds(0, 15, is_leader=True)
    assert cluster.current() == 9
    cluster.holds(1, 2, is_leader=False)
    assert cluster.lag() == 9


def test_keeps_the_lag_while_leaders_are_unreachable() -> None:
    cluster = Cluster()
    cluster.ends = {0: 13, 1: 14}
    assert cluster.lag() == 7
    cluster.ends = {}
    assert cluster.lag() == 7, "the leader cannot be reached"
    cluster.leads(NO_LEADER, NO_LEADER)
    assert cluster.lag() == 7
    cluster.leads(ELSEWHERE, ELSEWHERE)
    cluster.ends = {1: 20}
    assert cluster.lag() == 13, "one leader has responded"


def test_a_lag_does_not_decrease_during_a_leader_change() -> None:
    cluster = Cluster()
    cluster.leads(HERE, HERE)
    for partition in (0, 1):
        cluster.holds(partition, 20, is_leader=True)
    assert cluster.lag() == 20
    cluster.leads(ELSEWHERE, ELSEWHERE)
    for partition in (0, 1):
        cluster.holds(partition, 20, is_leader=False)
    assert cluster.current() == 20, "before the new leader has responded"
    cluster.leads(HERE, HERE)
    for partition in (0, 1):
        cluster.holds(partition, 15, is_leader=True, awaits_high_watermark=True)
    assert cluster.lag() == 20, "before it knows how far the leader before had committed"
    for partition in (0, 1):
        cluster.holds(partition, 15, is_leader=True)
    assert cluster.lag() == 10


def test_a_topic_created_again_has_a_new_lag() -> None:
    cluster = Cluster()
    cluster.ends = {0: 1000, 1: 1000}
    assert cluster.lag() == 1980
    cluster.leads(ELSEWHERE, ELSEWHERE, topic_id=b"2" * 16)
    cluster.commits = [("group", "t", 0, 0)]
    assert cluster.current() is None
    cluster.ends = {0: 3, 1: 4}
    assert cluster.lag() == 3
    cluster.image = ClusterImage()
    assert cluster.current() is None, "a deleted topic has no series"
