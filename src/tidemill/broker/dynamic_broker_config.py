"""The effective configuration of this broker, and the reconfiguration of its parts.

The settings of the broker's file are overridden by those of the coordination store, which
:mod:`tidemill.broker.dynamic_config_manager` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemill.broker.log_cleaner import LogCleaner
from tidemill.broker.log_configs import changed_defaults, depends_on, log_config
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.model.configs import BROKER_KEYS, MIN_INSYNC, BrokerConfig, brokers_while_unreadable
from tidemill.model.errors import ConfigError
from tidemill.model.event_loop_slices import TimeSlice
from tidemill.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)


class DynamicBrokerConfig:
    """Applies changed settings of the cluster image to this broker and to its topics."""

    def __init__(
        self,
        static_config: BrokerConfig,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        log_cleaner: LogCleaner,
        current_config: Callable[[], BrokerConfig],
        set_config: Callable[[BrokerConfig], Awaitable[None]],
    ) -> None:
        """``static_config`` is that of the file; ``set_config`` replaces the one of the broker."""
        self._static_config = static_config
        self._metadata_cache = metadata_cache
        self._replica_manager = replica_manager
        self._log_cleaner = log_cleaner
        self._current_config = current_config
        self._set_config = set_config

    async def image_changed(self, delta: Delta) -> None:
        """Applies the changed settings of the broker, and then those of its topics."""
        if delta.broker_configs_changed:
            before = self._current_config()
            config = effective_config(self._static_config, delta.image, self._replica_manager.node_id)
            if delta.before.broker_configs != delta.image.broker_configs:
                warn_overridden(self._static_config, delta.image, self._replica_manager.node_id)
            await self._set_config(config)
            self._replica_manager.logs.producer_expiration_ms = config.int("producer.id.expiration.ms")
            move_rate = config.int("replica.alter.log.dirs.io.max.bytes.per.second")
            self._replica_manager.replica_alter_log_dirs.set_bytes_per_second(move_rate)
            self._log_cleaner.reconfigured()
            await self._reconfigure_topics(before)
        for _, image in delta.reconfigured:
            self._replica_manager.reconfigure(
                image.name, log_config(self._current_config(), image.name, image.config)
            )

    async def _reconfigure_topics(self, before: BrokerConfig) -> None:
        """Applies changed broker defaults to the topics that do not override them, in slices.

        Each topic receives the configuration that is valid when it is processed.
        """
        changed = changed_defaults(before, self._current_config())
        if not changed:
            return
        time_slice = TimeSlice(self._replica_manager.clock)
        for entry in list(self._replica_manager.topics.by_name.values()):
            await time_slice.step()
            image = self._metadata_cache.image.topics.get(entry.name)
            if image is not None and depends_on(changed, image.config):
                self._replica_manager.reconfigure(
                    image.name, log_config(self._current_config(), image.name, image.config)
                )


def effective_config(config: BrokerConfig, image: ClusterImage, broker_id: int) -> BrokerConfig:
    """Returns ``config`` with the dynamic settings of the image, for this broker and for all brokers.

    Invalid settings are logged as errors and ignored, so that the broker starts and they can be corrected. An
    invalid retention setting disables the deletion of records: the default may be shorter.

    Source: Apache Kafka, ``DynamicBrokerConfig.scala``, which uses the defaults.
    """
    own = _valid_settings(image.broker_config(broker_id), f"broker {broker_id}")
    shared = _valid_settings(image.default_broker_config(), "all brokers")
    if config.store() == "zookeeper" and MIN_INSYNC in shared:
        own.pop(MIN_INSYNC, None)
    try:
        return config.with_overrides(own, shared)
    except ConfigError as problem:
        logger.error("the dynamic broker settings are ignored, as they contradict each other: %s", problem)
        return config.with_overrides({}, {})


def warn_overridden(config: BrokerConfig, image: ClusterImage, broker_id: int) -> None:
    """Logs a warning if the cluster overrides the ``min.insync.replicas`` of this broker.

    Controller and leaders must use the same value: see docs/decisions/eligible-leader-replicas.md.
    """
    shared = image.default_broker_config().get(MIN_INSYNC)
    if config.store() != "zookeeper" or shared is None:
        return
    in_file = config.int(MIN_INSYNC)
    for text, where in (
        (str(in_file) if config.is_set(MIN_INSYNC) else None, "in its file"),
        (image.broker_config(broker_id).get(MIN_INSYNC), f"in the store, for broker {broker_id} alone"),
    ):
        if text is not None and text != shared:
            logger.warning(
                "%s=%s %s is overridden by the value of the cluster, %s: change it with "
                "'tidemill broker alter default --set %s=%s'",
                MIN_INSYNC,
                text,
                where,
                shared,
                MIN_INSYNC,
                text,
            )


def _valid_settings(settings: Mapping[str, str], whose: str) -> dict[str, str]:
    found: dict[str, str] = {}
    fallbacks: dict[str, str] = {}
    for name, text in settings.items():
        try:
            if name in BROKER_KEYS:
                BROKER_KEYS[name].parse(text)
            found[name] = text
        except ConfigError as problem:
            logger.error("an invalid setting of %s in the coordination store is ignored: %s", whose, problem)
            fallbacks |= brokers_while_unreadable(name)
    return found | fallbacks
