"""The settings that elections depend on: ``unclean.leader.election.enable`` and ``min.insync.replicas``.

Controller and leaders use the same ``min.insync.replicas``: the controller maintains the eligible leader
replicas by it, each leader its high watermark. It is the topic's value, or else the cluster default in the
store. Since the configuration files of brokers may differ, the first controller writes its own value there. A
change of the value empties the eligible leader replicas in the same transaction. Source: KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidemill.controller.configuration_control import ConfigPlan
from tidemill.controller.leader_election import ElectionPolicy, plan_policy_change
from tidemill.controller.topics import Plan, write_config
from tidemill.coordination.cluster_image import SETTINGS, ClusterImage
from tidemill.coordination.coordination_store import Create
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigChangeNode
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.configs import MIN_INSYNC, BrokerConfig, TopicConfig

UNCLEAN = "unclean.leader.election.enable"


class ElectionPolicies:
    """The election policy of each topic, by the settings in the controller's image.

    The configuration of a broker gets these settings when the image is announced. A new controller elects
    leaders before that, and so does a controller that has read the store again.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], ClusterImage],
        with_settings: Callable[[BrokerConfig, ClusterImage], BrokerConfig],
    ) -> None:
        """``with_settings`` adds the dynamic settings of an image to a configuration."""
        self._config = config
        self._image = image
        self.with_settings = with_settings
        self._known: _Known | None = None

    def of(self, topic: TopicImage) -> ElectionPolicy:
        """The policy by the topic's own settings, or else those of the cluster.

        An unreadable setting has its default, as for the leader
        (:func:`tidemill.broker.log_configs.log_config`).
        """
        known = self._now()
        if UNCLEAN in topic.config or MIN_INSYNC in topic.config:
            settings = TopicConfig(known.effective, topic.config)
            return ElectionPolicy(settings.bool(UNCLEAN), settings.int(MIN_INSYNC))
        return known.default

    def _now(self) -> _Known:
        config, image = self._config(), self._image()
        known = self._known
        if known is None or known.config is not config or known.settings != image.broker_configs:
            effective = self.with_settings(config, image)
            default = ElectionPolicy(effective.bool(UNCLEAN), effective.int(MIN_INSYNC))
            self._known = known = _Known(config, image.broker_configs, effective, default)
        return known


class _Known(NamedTuple):
    """The policy computed for a configuration and the settings of an image."""

    config: BrokerConfig
    settings: Mapping[str, Mapping[str, str]]
    effective: BrokerConfig
    default: ElectionPolicy
    """The policy of topics without own settings."""


def plan_min_insync_change(
    image: ClusterImage,
    topics: Iterable[TopicImage],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> list[Plan]:
    """Empties the ELR of ``topics`` if ``min.insync.replicas`` differs between these settings.

    Both are effective settings of the topics: see :func:`effective_settings`.
    """
    if before.get(MIN_INSYNC) == after.get(MIN_INSYNC):
        return []
    plans = [plan_policy_change(image, topic) for topic in topics]
    return [plan for plan in plans if plan.operations]


def effective_settings(image: ClusterImage, topic_settings: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a topic over those of the cluster."""
    return {**image.default_broker_config(), **topic_settings}


def plan_default_min_insync_change(
    image: ClusterImage, before: Mapping[str, str], after: Mapping[str, str]
) -> list[Plan]:
    """Same as :func:`plan_min_insync_change`, for the cluster settings and topics without own value."""
    topics = (topic for topic in image.topics.values() if MIN_INSYNC not in topic.config)
    return plan_min_insync_change(image, topics, before, after)


def ensure_min_insync(image: ClusterImage, value: int, *, exists: bool) -> ConfigPlan | None:
    """Sets the cluster's ``min.insync.replicas``. Returns None if it is set or unreadable.

    ``exists``: the store has a node for the settings of the cluster.
    """
    defaults = image.default_broker_config()
    if MIN_INSYNC in defaults or (SETTINGS, DEFAULT_ENTITY) in image.unreadable:
        return None
    settings = {**defaults, MIN_INSYNC: str(value)}
    note = ConfigChangeNode.encode("brokers", DEFAULT_ENTITY)
    operations = [
        write_config("brokers", DEFAULT_ENTITY, settings, exists),
        Create(ConfigChangeNode.prefix, note, sequential=True),
    ]
    return ConfigPlan(operations, settings, broker=DEFAULT_ENTITY)
