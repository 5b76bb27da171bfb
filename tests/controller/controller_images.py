"""Builds cluster images for tests of controller decisions."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage, TopicImage

EPOCH = 4
"""The leader epoch of a partition."""
VERSION = 7
"""The version of its state node."""


def living(*broker_ids: int) -> dict[int, BrokerImage]:
    """Returns live brokers with registration epoch 100 + id."""
    return {one: BrokerImage(BrokerRegistration(one, ()), 100 + one) for one in broker_ids}


def cluster(broker_ids: tuple[int, ...], *topics: TopicImage) -> ClusterImage:
    """Returns a cluster with these live brokers."""
    return ClusterImage("cluster", 1, 5, living(*broker_ids), {topic.name: topic for topic in topics})


def partition(
    replicas: list[int],
    *,
    isr: list[int] | None = None,
    leader: int | None = None,
    adding: list[int] | None = None,
    removing: list[int] | None = None,
    number: int = 0,
) -> PartitionImage:
    """Returns a partition. By default the first replica leads and all replicas are in sync."""
    in_sync = replicas if isr is None else isr
    first = replicas[0] if leader is None else leader
    return PartitionImage(number, first, EPOCH, replicas, in_sync, VERSION, adding, removing)


def topic(name: str, *partitions: PartitionImage, config: Mapping[str, str] | None = None) -> TopicImage:
    """Returns a topic with these partitions, numbered from 0."""
    for number, one in enumerate(partitions):
        one.partition = number
    identifier = name.encode().ljust(16, b"\x01")[:16]
    return TopicImage(name, identifier, partitions, config or {}, 3)


BROKERS = st.integers(0, 6)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionImage:
    """Generates a partition in any valid state.

    It may have a reassignment, a leader and any in-sync set.
    """
    replicas = draw(st.lists(BROKERS, min_size=1, max_size=6, unique=True))
    moved = draw(st.booleans())
    adding = draw(st.lists(st.sampled_from(replicas), unique=True)) if moved else []
    if len(adding) == len(replicas):
        adding = adding[1:]
    settled = [broker for broker in replicas if broker not in adding]
    removing = draw(st.lists(st.sampled_from(settled), unique=True)) if moved else []
    if len(removing) == len(replicas):
        removing = removing[1:]
    # A reassignment writes the target replicas first.
    ordered = [one for one in replicas if one not in removing] + removing
    isr = draw(st.lists(st.sampled_from(ordered), min_size=1, unique=True))
    leader = draw(st.sampled_from([*isr, -1]))
    return partition(ordered, isr=isr, leader=leader, adding=adding, removing=removing)


def clusters(of: st.SearchStrategy[PartitionImage] | None = None) -> st.SearchStrategy[ClusterImage]:
    """Generates clusters of a few topics with any set of live brokers."""
    topics = st.lists(st.lists(of or partitions(), min_size=1, max_size=4), min_size=1, max_size=3)
    brokers = st.lists(BROKERS, min_size=1, unique=True)
    return st.builds(_cluster, brokers, topics)


def _cluster(brokers: list[int], topics: list[list[PartitionImage]]) -> ClusterImage:
    named = [topic(f"t{number}", *made) for number, made in enumerate(topics)]
    return cluster(tuple(brokers), *named)
