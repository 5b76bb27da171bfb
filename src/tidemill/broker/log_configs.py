"""From the configuration of broker and topic to what the log layer takes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tidemill.log.config import LogConfig
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig
from tidemill.model.configs.formats import magic_of
from tidemill.model.errors import ConfigError
from tidemill.model.unpacked_limit import UNPACKED_KEY

log = logging.getLogger("tidemill.broker")

SPAN_MS_MAX: Final = 1 << 62
"""The longest time that is added to a moment: the sum is still an int64."""

_defaults: tuple[BrokerConfig, LogConfig] | None = None
"""The configuration seen last, and what holds by it for topics without settings: neither ever changes."""


def log_config(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> LogConfig:
    """The settings of the logs of topic ``name``: its own over the broker's defaults.

    Those that cannot be read are told as errors, and the broker goes on: with them nobody could reach it to
    mend them.
    """
    if overrides:
        return _read(config, name, overrides)
    global _defaults
    if _defaults is None or _defaults[0] is not config:
        # Made once: a command may name thousands of topics without settings of their own.
        _defaults = config, _read(config, name, overrides)
    return _defaults[1]


def changed_defaults(before: BrokerConfig, after: BrokerConfig) -> set[str]:
    """The settings of topics that differ between two configurations, where a topic has none of its own.

    The limit of what a batch may unpack to is no topic's: where it differs, all topics are affected.
    """
    had, has = before.topic_config().values(), after.topic_config().values()
    changed = {key for key in had.keys() | has.keys() if had.get(key) != has.get(key)}
    if before.int(UNPACKED_KEY) != after.int(UNPACKED_KEY):
        changed.add(UNPACKED_KEY)
    return changed


def depends_on(changed: Iterable[str], overrides: Mapping[str, str]) -> bool:
    """Whether a topic with settings of its own has not all of ``changed`` among them, each one readable."""
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
    topic = config.topic_config(overrides)
    for key, problem in topic.unreadable.items():
        log.error(
            "topic %s: its setting %s (%s holds until it is set again, or deleted)",
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
        preallocate=topic.bool("preallocate"),
        retention_bytes=topic.int("retention.bytes"),
        retention_ms=topic.int("retention.ms"),
        segment_bytes=topic.int("segment.bytes"),
        segment_index_bytes=topic.int("segment.index.bytes"),
        segment_jitter_ms=topic.int("segment.jitter.ms"),
        segment_ms=topic.int("segment.ms"),
        unclean_leader_election_enable=topic.bool("unclean.leader.election.enable"),
        unpacked_bytes_max=config.int(UNPACKED_KEY),
    )
