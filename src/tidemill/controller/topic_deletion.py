"""Tracks the brokers that topic deletions wait for.

The nodes of a deleted topic are removed after every broker with a replica has deleted it. The deletion waits
for dead brokers until they return or are unregistered, as with Apache Kafka's controller on ZooKeeper.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable
from typing import Final

from tidemill.coordination.coordination_store import SetData
from tidemill.coordination.nodes import TopicNode
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 3
"""The number of topics that a line names. It gives the number of the others."""


class TopicDeletions:
    """By topic, the brokers that have not confirmed the deletion of their replicas yet."""

    def __init__(self) -> None:
        self._left: dict[str, set[int]] = {}
        self._logged: dict[str, frozenset[int]] = {}

    def begin(self, topic: TopicImage) -> None:
        """Starts to wait for every broker with a replica."""
        self._left[topic.name] = {replica for partition in topic.partitions for replica in partition.replicas}

    def confirmed(self, name: str, broker: int) -> bool:
        """Records that a broker has deleted its replicas. Returns True once all brokers have."""
        left = self._left.get(name)
        if left is None:
            return False
        left.discard(broker)
        return not left

    def end(self, name: str) -> None:
        """Forgets a topic whose nodes are removed."""
        self._left.pop(name, None)
        self._logged.pop(name, None)

    def awaited(self, name: str) -> frozenset[int]:
        """The brokers that the deletion of a topic waits for."""
        return frozenset(self._left.get(name, ()))

    def waiting_for(self, broker: int) -> list[str]:
        """The topics whose deletion waits for a broker."""
        return [name for name, left in self._left.items() if broker in left]

    def log_waits(self, names: Iterable[str], live: Collection[int]) -> None:
        """Logs which of these deletions wait for dead brokers; again only when these brokers change."""
        news: dict[frozenset[int], list[str]] = {}
        for name in names:
            dead = self.awaited(name).difference(live)
            if self._logged.get(name, frozenset()) != dead:
                self._logged[name] = dead
                if dead:
                    news.setdefault(dead, []).append(name)
        for dead, waiting in news.items():
            more = f" and {len(waiting) - NAMES_MAX} more" if len(waiting) > NAMES_MAX else ""
            logger.info(
                "the deletion of topics %s%s waits for brokers %s, which have replicas and are not live",
                ", ".join(waiting[:NAMES_MAX]),
                more,
                sorted(dead),
            )


def waiting_text(name: str, awaited: Collection[int], live: Collection[int]) -> str:
    """The error text for the name of a topic in deletion, with the operator's next step."""
    dead = sorted(broker for broker in awaited if broker not in live)
    if not dead:
        return f"the topic {name!r} is still being deleted. Try again."
    return (
        f"the topic {name!r} is still being deleted, which waits for brokers {dead}: start them, or run "
        f"'tidemill broker unregister {dead[0]}' for a broker that will not return"
    )


def plan_without_broker_in_slices(
    topic: TopicImage, broker: int, instead: int
) -> Generator[None, None, tuple[TopicImage, SetData]]:
    """A topic in deletion without its replicas on ``broker``, and the write of its node.

    A partition without a replica gets ``instead``, which has nothing to delete: the node needs one. Pauses
    between many partitions.
    """
    partitions = []
    for count, partition in enumerate(topic.partitions, 1):
        if count % ITEMS_PER_SLICE == 0:
            yield
        replicas = [replica for replica in partition.replicas if replica != broker] or [instead]
        partitions.append(partition.replaced(replicas=replicas, adding=None, removing=None))
    renewed = topic.with_partitions(partitions, topic.node_version + 1)
    data = yield from TopicNode.encode_in_slices(renewed.assignment())
    return renewed, SetData(TopicNode.path(topic.name), data, topic.node_version)
