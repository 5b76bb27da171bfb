"""From the configuration of broker and topic to what the log layer takes."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.log.config import LogConfig
from tidemill.model.configs import BrokerConfig
from tidemill.model.configs.formats import magic_of


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The settings of a topic's logs: its own over the broker's defaults."""
    topic = config.topic_config(overrides)
    return LogConfig(
        cleanup_policy=tuple(topic.list("cleanup.policy")),
        compression_gzip_level=topic.int("compression.gzip.level"),
        compression_lz4_level=topic.int("compression.lz4.level"),
        compression_type=topic.str("compression.type"),
        compression_zstd_level=topic.int("compression.zstd.level"),
        delete_retention_ms=topic.int("delete.retention.ms"),
        file_delete_delay_ms=topic.int("file.delete.delay.ms"),
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
    )
