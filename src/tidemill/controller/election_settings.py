"""The settings that elections depend on: ``unclean.leader.election.enable`` and ``min.insync.replicas``.

Controller and leaders count with one ``min.insync.replicas``: the controller keeps the eligible leader
replicas by it, each leader its high watermark. It is the topic's value, else the cluster's default in the
store. Brokers' files may differ, so the first controller writes its own value there. A change of it empties
the eligible leader replicas in the transaction that writes it. Source: KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidemill.controller.configs import ConfigPlan
from tidemill.controller.elections import ElectionPolicy, plan_policy_change
from tidemill.controller.topics import Plan, write_config
from tidemill.coordination.image import SETTINGS, ClusterImage, TopicImage
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigChangeNode
from tidemill.coordination.port import Create
from tidemill.model.configs import MIN_INSYNC, BrokerConfig

UNCLEAN = "unclean.leader.election.enable"


class ElectionPolicies:
    """The election policy of each topic, by the settings in the controller's image.

    A broker's own configuration takes them over when the image is announced. A new controller elects before
    that, and so does one that has read the store again.
    """

    def __init__(self, config: Callable[[], BrokerConfig], image: Callable[[], ClusterImage]) -> None:
        self._config = config
        self._image = image
        self.with_settings: Callable[[BrokerConfig, ClusterImage], BrokerConfig] = lambda config, _: config
        """The configuration with what an image says was set while brokers ran."""
        self._known: _Known | None = None

    def of(self, topic: TopicImage) -> ElectionPolicy:
        """The topic's own settings, else those of the cluster.

        Of a setting that cannot be read the default holds, as for the leader
        (:func:`tidemill.broker.log_configs.log_config`).
        """
        known = self._now()
        if UNCLEAN in topic.config or MIN_INSYNC in topic.config:
            settings = known.effective.topic_config(topic.config)
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
    """What was found for a configuration and the settings of an image."""

    config: BrokerConfig
    settings: Mapping[str, Mapping[str, str]]
    effective: BrokerConfig
    default: ElectionPolicy
    """Of topics without settings of their own."""


def plan_min_insync_change(
    image: ClusterImage,
    topics: Iterable[TopicImage],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> list[Plan]:
    """Empties the ELR of ``topics`` if ``min.insync.replicas`` differs between these settings.

    Both are those that count for the topics: their own, else the cluster's (:func:`settings_that_count`).
    """
    if before.get(MIN_INSYNC) == after.get(MIN_INSYNC):
        return []
    plans = [plan_policy_change(image, topic) for topic in topics]
    return [plan for plan in plans if plan.operations]


def settings_that_count(image: ClusterImage, topic_settings: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a topic, and below them those of the cluster."""
    return {**image.default_broker_config(), **topic_settings}


def plan_default_min_insync_change(
    image: ClusterImage, before: Mapping[str, str], after: Mapping[str, str]
) -> list[Plan]:
    """The same for the cluster's settings: of topics without a value of their own."""
    topics = (topic for topic in image.topics.values() if MIN_INSYNC not in topic.config)
    return plan_min_insync_change(image, topics, before, after)


def fix_min_insync(image: ClusterImage, value: int, *, exists: bool) -> ConfigPlan | None:
    """Makes ``value`` the cluster's ``min.insync.replicas``; None where it has one, or it cannot be read.

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
