"""The brokers that topic deletions wait for.

The nodes of a deleted topic go once every broker that has a replica has deleted it. A dead broker is waited
for, as by Apache Kafka's controller on ZooKeeper: until it returns, or is unregistered.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable
from typing import Final

from tidemill.coordination.image import TopicImage
from tidemill.coordination.nodes import TopicNode
from tidemill.coordination.port import SetData
from tidemill.model.slices import ITEMS_A_PAUSE

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 3
"""Topics that a line names; it counts the others."""


class Deletions:
    """The brokers that have not confirmed yet, by topic, that their replicas are gone."""

    def __init__(self) -> None:
        self._left: dict[str, set[int]] = {}
        self._logged: dict[str, frozenset[int]] = {}

    def begin(self, topic: TopicImage) -> None:
        """Waits for every broker with a replica."""
        self._left[topic.name] = {one for partition in topic.partitions for one in partition.replicas}

    def confirmed(self, name: str, broker: int) -> bool:
        """Notes that a broker has deleted its replicas. Returns True once all brokers have."""
        left = self._left.get(name)
        if left is None:
            return False
        left.discard(broker)
        return not left

    def end(self, name: str) -> None:
        """The nodes of a topic are gone."""
        self._left.pop(name, None)
        self._logged.pop(name, None)

    def awaited(self, name: str) -> frozenset[int]:
        """The brokers that a topic's deletion waits for."""
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
    """Why the name of a topic that is being deleted is not free yet, and what to do."""
    dead = sorted(broker for broker in awaited if broker not in live)
    if not dead:
        return f"the topic {name!r} is still being deleted. Try again."
    return (
        f"the topic {name!r} is still being deleted, which waits for brokers {dead}: start them, or run "
        f"'tidemill broker unregister {dead[0]}' for a broker that will not return"
    )


def planning_without(
    topic: TopicImage, broker: int, instead: int
) -> Generator[None, None, tuple[TopicImage, SetData]]:
    """A topic that is being deleted without its replicas on ``broker``, and what that writes.

    A partition has to have a replica in its node: ``instead``, which has nothing to delete. It pauses between
    partitions.
    """
    partitions = []
    for count, one in enumerate(topic.partitions, 1):
        if count % ITEMS_A_PAUSE == 0:
            yield
        replicas = [replica for replica in one.replicas if replica != broker] or [instead]
        partitions.append(one.replaced(replicas=replicas, adding=None, removing=None))
    renewed = topic.with_partitions(partitions, topic.node_version + 1)
    data = yield from TopicNode.encoding(renewed.assignment())
    return renewed, SetData(TopicNode.path(topic.name), data, topic.node_version)
