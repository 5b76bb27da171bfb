"""The log settings from the configuration of brokers and topics."""

from __future__ import annotations

import pytest

from tidemill.broker.log_configs import log_config
from tidemill.log.log_config import LogConfig
from tidemill.model.configs import BrokerConfig


def test_topics_without_settings_use_the_current_defaults_of_the_broker() -> None:
    one, two = (BrokerConfig.from_sources(sets=[f"log.segment.bytes={size}"]) for size in (10_000, 20_000))
    assert log_config(one, "a", {}).segment_bytes == 10_000
    assert log_config(one, "b", {}) is log_config(one, "c", {})
    assert log_config(one, "d", {"segment.bytes": "30000"}).segment_bytes == 30_000
    assert log_config(two, "a", {}).segment_bytes == 20_000
    assert log_config(one, "a", {}).segment_bytes == 10_000


def test_the_defaults_are_those_of_kafka() -> None:
    assert log_config(BrokerConfig.of(), "t", {}) == LogConfig()


SETTINGS: dict[str, tuple[str, str, object]] = {
    "cleanup.policy": ("cleanup_policy", "compact,delete", ("compact", "delete")),
    "compression.gzip.level": ("compression_gzip_level", "5", 5),
    "compression.lz4.level": ("compression_lz4_level", "5", 5),
    "compression.type": ("compression_type", "zstd", "zstd"),
    "compression.zstd.level": ("compression_zstd_level", "5", 5),
    "delete.retention.ms": ("delete_retention_ms", "5", 5),
    "file.delete.delay.ms": ("file_delete_delay_ms", "5", 5),
    "flush.messages": ("flush_messages", "5", 5),
    "flush.ms": ("flush_ms", "5", 5),
    "index.interval.bytes": ("index_interval_bytes", "5", 5),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", "5", 5),
    "max.message.bytes": ("max_message_bytes", "5000", 5000),
    "message.downconversion.enable": ("message_downconversion_enable", "false", False),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", "5", 5),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", "5", 5),
    "message.timestamp.type": ("message_timestamp_type", "LogAppendTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", "0.75", 0.75),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", "5", 5),
    "min.insync.replicas": ("min_insync_replicas", "5", 5),
    "retention.bytes": ("retention_bytes", "5", 5),
    "retention.ms": ("retention_ms", "5", 5),
    "segment.bytes": ("segment_bytes", "2000000", 2_000_000),
    "segment.index.bytes": ("segment_index_bytes", "5000", 5000),
    "segment.jitter.ms": ("segment_jitter_ms", "5", 5),
    "segment.ms": ("segment_ms", "5", 5),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_topic_setting_changes_one_log_setting(key: str) -> None:
    field, text, value = SETTINGS[key]
    default, made = LogConfig(), log_config(BrokerConfig.of(), "t", {key: text})
    assert made != default
    changed = {name for name in LogConfig._fields if getattr(made, name) != getattr(default, name)}
    assert (changed, getattr(made, field)) == ({field}, value)


@pytest.mark.parametrize("key", ["delete.retention.ms", "file.delete.delay.ms"])
def test_a_time_span_that_would_overflow_is_limited(key: str) -> None:
    field = SETTINGS[key][0]
    longest = getattr(log_config(BrokerConfig.of(), "t", {key: str(2**63 - 1)}), field)
    assert 2**50 < longest < 2**63 - 1_800_000_000_000
    assert getattr(log_config(BrokerConfig.of(), "t", {key: str(longest)}), field) == longest
