"""Builds the :class:`LogConfig` of a topic from its configuration and that of the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tidemill.log.log_config import LogConfig
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig, TopicConfig
from tidemill.model.configs.message_format_versions import magic_of
from tidemill.model.errors import ConfigError
from tidemill.model.unpacked_limit import UNPACKED_KEY

logger = logging.getLogger("tidemill.broker")

SPAN_MS_MAX: Final = 1 << 62
"""The longest time that can be added to a timestamp within an int64."""

_defaults: tuple[BrokerConfig, LogConfig] | None = None
"""The last configuration, and its LogConfig for topics without settings. Both are immutable."""


def log_config(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> LogConfig:
    """Returns the settings of the logs of topic ``name``: its own ones, and the defaults of the broker.

    Invalid settings are logged as errors and ignored, so that the broker starts and they can be corrected.
    """
    if overrides:
        return _read(config, name, overrides)
    global _defaults
    if _defaults is None or _defaults[0] is not config:
        # Cached: a request of the controller may name thousands of topics without settings.
        _defaults = config, _read(config, name, overrides)
    return _defaults[1]


def changed_defaults(before: BrokerConfig, after: BrokerConfig) -> set[str]:
    """Returns the topic settings whose defaults differ between two configurations.

    They include the limit for decompressed batches, which is a setting of the broker for all topics.
    """
    had, has = before.topic_defaults(), after.topic_defaults()
    changed = {key for key in had.keys() | has.keys() if had.get(key) != has.get(key)}
    if before.int(UNPACKED_KEY) != after.int(UNPACKED_KEY):
        changed.add(UNPACKED_KEY)
    return changed


def depends_on(changed: Iterable[str], overrides: Mapping[str, str]) -> bool:
    """Whether a topic uses the default of a ``changed`` setting: it has no value, or an invalid one."""
    for key in changed:
        text = overrides.get(key)
        if text is None:
            return True
        try:
            TOPIC_KEYS[key].parse(text)
        except ConfigError:
            return True
    return False


def _read(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> LogConfig:
    topic = TopicConfig(config, overrides)
    for key, problem in topic.unreadable.items():
        logger.error(
            "topic %s: invalid setting %s (%s is used until it is corrected or deleted)",
            name,
            problem,
            topic.rendered(key),
        )
    return LogConfig(
        cleanup_policy=tuple(topic.list("cleanup.policy")),
        compression_gzip_level=topic.int("compression.gzip.level"),
        compression_lz4_level=topic.int("compression.lz4.level"),
        compression_type=topic.str("compression.type"),
        compression_zstd_level=topic.int("compression.zstd.level"),
        delete_retention_ms=min(topic.int("delete.retention.ms"), SPAN_MS_MAX),
        file_delete_delay_ms=min(topic.int("file.delete.delay.ms"), SPAN_MS_MAX),
        flush_messages=topic.int("flush.messages"),
        flush_ms=topic.int("flush.ms"),
        index_interval_bytes=topic.int("index.interval.bytes"),
        max_compaction_lag_ms=topic.int("max.compaction.lag.ms"),
        max_message_bytes=topic.int("max.message.bytes"),
        message_downconversion_enable=topic.bool("message.downconversion.enable"),
        message_magic=magic_of(topic.str("message.format.version")),
        message_timestamp_after_max_ms=topic.int("message.timestamp.after.max.ms"),
        message_timestamp_before_max_ms=topic.int("message.timestamp.before.max.ms"),
        message_timestamp_type=topic.str("message.timestamp.type"),
        min_cleanable_dirty_ratio=topic.float("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=topic.int("min.compaction.lag.ms"),
        min_insync_replicas=topic.int("min.insync.replicas"),
        mirror_state=topic.str("tidemill.mirror.state"),
        retention_bytes=topic.int("retention.bytes"),
        retention_ms=topic.int("retention.ms"),
        segment_bytes=topic.int("segment.bytes"),
        segment_index_bytes=topic.int("segment.index.bytes"),
        segment_jitter_ms=topic.int("segment.jitter.ms"),
        segment_ms=topic.int("segment.ms"),
        unpacked_bytes_max=config.int(UNPACKED_KEY),
    )
