"""The lags of groups while leaders change, are away, and topics are made again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from tidemill.coordination.image import ClusterImage, PartitionImage, TopicImage
from tidemill.net.link import LinkError
from tidemill.server.group_lags import GroupLags, Place

HERE, ELSEWHERE, NOBODY = 1, 2, -1
COMMITTED = 10


class Cluster:
    """A broker that coordinates a group, which has read two partitions, and the leaders of those."""

    def __init__(self) -> None:
        self.commits = [("group", "t", 0, COMMITTED), ("group", "t", 1, COMMITTED)]
        self.held: dict[int, Any] = {}
        self.ends: dict[int, int] = {}
        """By partition, what the leader elsewhere tells; none where it cannot be reached."""
        self.metadata = SimpleNamespace(image=ClusterImage())
        broker: Any = SimpleNamespace(
            node_id=HERE,
            groups=SimpleNamespace(committed=lambda: self.commits),
            metadata=SimpleNamespace(topic=lambda name: self.image.topics.get(name), topics={}),
            partitions=SimpleNamespace(find=lambda topic, partition: self.held.get(partition)),
        )
        self.broker = broker
        self.lags = GroupLags(broker)
        asking: Any = self.lags
        asking._ask = self.ask
        self.leads(ELSEWHERE, ELSEWHERE)

    def leads(self, *leaders: int, topic_id: bytes = b"1" * 16) -> None:
        partitions = tuple(
            PartitionImage(at, leader, 0, [HERE, ELSEWHERE], [HERE]) for at, leader in enumerate(leaders)
        )
        self.image = ClusterImage().with_topics([TopicImage("t", topic_id, partitions, {})])
        self.broker.metadata.topics = self.image.topics

    def holds(
        self, partition: int, high_watermark: int, *, is_leader: bool, is_unsettled: bool = False
    ) -> None:
        self.held[partition] = SimpleNamespace(
            high_watermark=high_watermark, is_leader=is_leader, is_unsettled=is_unsettled, failed=""
        )

    async def ask(self, leader: int, places: Collection[Place]) -> dict[tuple[str, int], int]:
        assert leader == ELSEWHERE
        if not self.ends:
            raise LinkError("it is away")
        return {
            ("t", partition): self.ends[partition] for _, _, partition in places if partition in self.ends
        }

    def lag(self) -> int | None:
        """After the leaders were asked."""
        asyncio.run(self.lags.look())
        return self.told()

    def told(self) -> int | None:
        lags = {(group, topic): lag for group, topic, lag in self.lags.lags()}
        return lags.get(("group", "t"))


def test_a_lag_is_summed_over_partitions_whoever_leads() -> None:
    cluster = Cluster()
    assert cluster.lag() is None, "nobody has told"
    cluster.ends = {0: 13, 1: 14}
    assert cluster.lag() == 7
    cluster.leads(HERE, ELSEWHERE)
    cluster.holds(0, 15, is_leader=True)
    assert cluster.told() == 9
    cluster.holds(1, 2, is_leader=False)
    assert cluster.lag() == 9


def test_a_lag_stays_while_nobody_can_be_asked() -> None:
    cluster = Cluster()
    cluster.ends = {0: 13, 1: 14}
    assert cluster.lag() == 7
    cluster.ends = {}
    assert cluster.lag() == 7, "the leader cannot be reached"
    cluster.leads(NOBODY, NOBODY)
    assert cluster.lag() == 7
    cluster.leads(ELSEWHERE, ELSEWHERE)
    cluster.ends = {1: 20}
    assert cluster.lag() == 13, "one of them has told"


def test_a_lag_does_not_fall_for_a_moment_when_leaders_change() -> None:
    cluster = Cluster()
    cluster.leads(HERE, HERE)
    for partition in (0, 1):
        cluster.holds(partition, 20, is_leader=True)
    assert cluster.lag() == 20
    cluster.leads(ELSEWHERE, ELSEWHERE)
    for partition in (0, 1):
        cluster.holds(partition, 20, is_leader=False)
    assert cluster.told() == 20, "before its new leader has been asked"
    cluster.leads(HERE, HERE)
    for partition in (0, 1):
        cluster.holds(partition, 15, is_leader=True, is_unsettled=True)
    assert cluster.lag() == 20, "before it knows how far the leader before had committed"
    for partition in (0, 1):
        cluster.holds(partition, 15, is_leader=True)
    assert cluster.lag() == 10


def test_a_topic_that_is_made_again_begins_anew() -> None:
    cluster = Cluster()
    cluster.ends = {0: 1000, 1: 1000}
    assert cluster.lag() == 1980
    cluster.leads(ELSEWHERE, ELSEWHERE, topic_id=b"2" * 16)
    cluster.commits = [("group", "t", 0, 0)]
    assert cluster.told() is None
    cluster.ends = {0: 3, 1: 4}
    assert cluster.lag() == 3
    cluster.image = ClusterImage()
    assert cluster.told() is None, "nor is a series left of a topic that is deleted"
