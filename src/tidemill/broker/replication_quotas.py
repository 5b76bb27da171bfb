"""Applies the settings of the replication quotas of this broker (KIP-73)."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.metadata_cache import MetadataCache
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig
from tidemill.model.errors import ConfigError
from tidemill.replication.replication_quota import RateLimit, ReplicationQuota

LEADER, FOLLOWER = "leader", "follower"
RATES = {LEADER: "leader.replication.throttled.rate", FOLLOWER: "follower.replication.throttled.rate"}
REPLICAS = {
    LEADER: "leader.replication.throttled.replicas",
    FOLLOWER: "follower.replication.throttled.replicas",
}


class ReplicationQuotas:
    """The quota for the followers of this broker, and the quota for its own fetches as a follower."""

    def __init__(
        self, node_id: int, config: Callable[[], BrokerConfig], metadata_cache: MetadataCache
    ) -> None:
        self._config = config
        self.leader = ReplicationQuota(node_id, self._limit(LEADER))
        self.follower = ReplicationQuota(node_id, self._limit(FOLLOWER))
        self.sides: dict[str, ReplicationQuota] = {LEADER: self.leader, FOLLOWER: self.follower}
        for topic in metadata_cache.topics.values():
            self._set_throttled_replicas(topic)
        metadata_cache.on_change(self._changed)

    def _limit(self, side: str) -> RateLimit:
        return RateLimit(
            self._rate(side),
            self._config().int("replication.quota.window.num"),
            self._config().int("replication.quota.window.size.seconds"),
        )

    def _rate(self, side: str) -> int:
        return self._config().int(RATES[side])

    async def _changed(self, delta: Delta) -> None:
        for topic in delta.deleted:
            for quota in self.sides.values():
                quota.set_topic(topic.name, ())
        for topic in delta.created:
            self._set_throttled_replicas(topic)
        for _, topic in delta.reconfigured:
            self._set_throttled_replicas(topic)
        if delta.broker_configs_changed:
            for side, quota in self.sides.items():
                quota.limit.bytes_per_second = self._rate(side)

    def _set_throttled_replicas(self, topic: TopicImage) -> None:
        for side, quota in self.sides.items():
            text = topic.config.get(REPLICAS[side], "")
            try:
                listed = TOPIC_KEYS[REPLICAS[side]].parse(text) if text else ()
            except ConfigError:
                listed = ()  # Written to the store without validation. log_configs.py logs an error.
            quota.set_topic(topic.name, listed if isinstance(listed, tuple) else ())
