"""Keeps this broker's throttles of replication as the settings are."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.broker.broker import Broker
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.coordination.image import Delta, TopicImage
from tidemill.model.configs import TOPIC_KEYS
from tidemill.model.errors import ConfigError
from tidemill.replication.throttle import RateLimit, Throttle

LEADER, FOLLOWER = "leader", "follower"
RATES = {LEADER: "leader.replication.throttled.rate", FOLLOWER: "follower.replication.throttled.rate"}
REPLICAS = {
    LEADER: "leader.replication.throttled.replicas",
    FOLLOWER: "follower.replication.throttled.replicas",
}


class LeaderThrottle(Throttle):
    """The throttle of what goes to followers, as :mod:`tidemill.broker.fetch` asks it."""

    def note_sent(self, parts: Iterable[FetchPart], now: float) -> None:
        """Counts what an answer to a follower carries."""
        for part in parts:
            if part.slice is not None and part.partition is not None:
                self.record(part.partition.topic, int(part.partition.index), int(part.slice.size), now)

    def wait_ms(self, now: float) -> int:
        """After how long what is held back may go, if nothing else goes meanwhile; 1 at least."""
        return int(self.limit.wait_s(now) * 1000) + 1


class Throttling:
    """The throttles of what this broker sends to its followers, and of what it takes as one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.leader = LeaderThrottle(broker.node_id, self._limit(LEADER))
        self.follower = Throttle(broker.node_id, self._limit(FOLLOWER))
        self.sides: dict[str, Throttle] = {LEADER: self.leader, FOLLOWER: self.follower}
        for topic in broker.metadata.topics.values():
            self._take(topic)
        broker.metadata.on_change(self._changed)

    def _limit(self, side: str) -> RateLimit:
        return RateLimit(
            self._rate(side),
            self._broker.config.int("replication.quota.window.num"),
            self._broker.config.int("replication.quota.window.size.seconds"),
        )

    def _rate(self, side: str) -> int:
        return self._broker.config.int(RATES[side])

    async def _changed(self, delta: Delta) -> None:
        for topic in delta.deleted:
            for throttle in self.sides.values():
                throttle.set_topic(topic.name, ())
        for topic in delta.created:
            self._take(topic)
        for _, topic in delta.reconfigured:
            self._take(topic)
        if delta.broker_configs_changed:
            for side, throttle in self.sides.items():
                throttle.limit.bytes_per_second = self._rate(side)

    def _take(self, topic: TopicImage) -> None:
        for side, throttle in self.sides.items():
            text = topic.config.get(REPLICAS[side], "")
            try:
                listed = TOPIC_KEYS[REPLICAS[side]].parse(text) if text else ()
            except ConfigError:
                listed = ()  # Written past all checks; whoever reads the topic's settings tells of it.
            throttle.set_topic(topic.name, listed if isinstance(listed, tuple) else ())
