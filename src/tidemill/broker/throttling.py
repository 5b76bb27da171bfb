"""Keeps this broker's throttle of replication as the settings are."""

from __future__ import annotations

from tidemill.broker.broker import Broker
from tidemill.coordination.image import Delta, TopicImage
from tidemill.model.configs import TOPIC_KEYS
from tidemill.model.errors import ConfigError
from tidemill.replication.throttle import RateLimit, Throttle

RATE = "follower.replication.throttled.rate"
REPLICAS = "follower.replication.throttled.replicas"


class Throttling:
    """The throttle of what this broker follows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        limit = RateLimit(
            config.int(RATE),
            config.int("replication.quota.window.num"),
            config.int("replication.quota.window.size.seconds"),
        )
        self.follower = Throttle(broker.node_id, limit)
        for topic in broker.metadata.topics.values():
            self._take(topic)
        broker.metadata.on_change(self._changed)

    async def _changed(self, delta: Delta) -> None:
        for topic in delta.deleted:
            self.follower.set_topic(topic.name, ())
        for topic in delta.created:
            self._take(topic)
        for _, topic in delta.reconfigured:
            self._take(topic)
        if delta.broker_configs_changed:
            self.follower.limit.bytes_per_second = self._broker.config.int(RATE)

    def _take(self, topic: TopicImage) -> None:
        try:
            listed = TOPIC_KEYS[REPLICAS].parse(topic.config.get(REPLICAS, ""))
        except ConfigError:
            listed = ()  # Written past all checks; whoever reads the topic's settings tells of it.
        self.follower.set_topic(topic.name, listed if isinstance(listed, tuple) else ())
