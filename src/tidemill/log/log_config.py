"""The settings of one log, as plain data."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemill.model.mirror_state import NO_MIRROR
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.varint import INT64_MAX

DAY_MS: Final = 24 * 60 * 60 * 1000


class LogConfig(NamedTuple):
    """A topic's settings, named like their keys with underscores for dots, with Kafka's defaults.

    ``message_magic`` is the format that ``message.format.version`` selects: 0, 1 or 2. ``-1`` is no limit in
    ``retention_ms`` and ``retention_bytes``. ``mirror_state`` is ``tidemill.mirror.state``.
    ``unpacked_bytes_max`` is a broker setting for all topics (:mod:`tidemill.model.unpacked_limit`).
    ``preallocate`` has no effect, and the controller reads ``unclean.leader.election.enable``: both are not
    here.
    """

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = INT64_MAX
    max_message_bytes: int = 1024 * 1024 + 12
    message_downconversion_enable: bool = True
    message_magic: int = 2
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    mirror_state: str = NO_MIRROR
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX

    @property
    def compact(self) -> bool:
        """Whether the last value of every key is retained."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by time and size, once the topic is no mirror."""
        return "delete" in self.cleanup_policy

    @property
    def has_retention(self) -> bool:
        """Whether old segments are deleted by time and size. A mirror deletes what its source has deleted."""
        return self.delete and self.mirror_state == NO_MIRROR
