"""The settings of one log, as plain data."""

from __future__ import annotations

from typing import Final

from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
DAY_MS: Final = 24 * 60 * 60 * 1000


class LogConfig:
    """A topic's settings, named like their keys with underscores for dots, with Kafka's defaults.

    ``message_magic`` is the format that ``message.format.version`` selects: 0, 1 or 2. ``-1`` is no limit in
    ``retention_ms`` and ``retention_bytes``. ``unpacked_bytes_max`` is a broker setting for all topics
    (:mod:`tidemill.model.unpacked_limit`). ``preallocate`` has no effect, and the controller reads
    ``unclean.leader.election.enable``: both are not here.
    """

    __slots__ = (
        "cleanup_policy",
        "compression_gzip_level",
        "compression_lz4_level",
        "compression_type",
        "compression_zstd_level",
        "delete_retention_ms",
        "file_delete_delay_ms",
        "flush_messages",
        "flush_ms",
        "index_interval_bytes",
        "max_compaction_lag_ms",
        "max_message_bytes",
        "message_downconversion_enable",
        "message_magic",
        "message_timestamp_after_max_ms",
        "message_timestamp_before_max_ms",
        "message_timestamp_type",
        "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms",
        "min_insync_replicas",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
        "unpacked_bytes_max",
    )

    def __init__(
        self,
        *,
        cleanup_policy: tuple[str, ...] = ("delete",),
        compression_gzip_level: int = -1,
        compression_lz4_level: int = 9,
        compression_type: str = "producer",
        compression_zstd_level: int = 3,
        delete_retention_ms: int = DAY_MS,
        file_delete_delay_ms: int = 60_000,
        flush_messages: int = INT64_MAX,
        flush_ms: int = INT64_MAX,
        index_interval_bytes: int = 4096,
        max_compaction_lag_ms: int = INT64_MAX,
        max_message_bytes: int = 1024 * 1024 + 12,
        message_downconversion_enable: bool = True,
        message_magic: int = 2,
        message_timestamp_after_max_ms: int = 60 * 60 * 1000,
        message_timestamp_before_max_ms: int = INT64_MAX,
        message_timestamp_type: str = "CreateTime",
        min_cleanable_dirty_ratio: float = 0.5,
        min_compaction_lag_ms: int = 0,
        min_insync_replicas: int = 1,
        retention_bytes: int = -1,
        retention_ms: int = 7 * DAY_MS,
        segment_bytes: int = 1024 * 1024 * 1024,
        segment_index_bytes: int = 10 * 1024 * 1024,
        segment_jitter_ms: int = 0,
        segment_ms: int = 7 * DAY_MS,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.cleanup_policy = cleanup_policy
        self.compression_gzip_level = compression_gzip_level
        self.compression_lz4_level = compression_lz4_level
        self.compression_type = compression_type
        self.compression_zstd_level = compression_zstd_level
        self.delete_retention_ms = delete_retention_ms
        self.file_delete_delay_ms = file_delete_delay_ms
        self.flush_messages = flush_messages
        self.flush_ms = flush_ms
        self.index_interval_bytes = index_interval_bytes
        self.max_compaction_lag_ms = max_compaction_lag_ms
        self.max_message_bytes = max_message_bytes
        self.message_downconversion_enable = message_downconversion_enable
        self.message_magic = message_magic
        self.message_timestamp_after_max_ms = message_timestamp_after_max_ms
        self.message_timestamp_before_max_ms = message_timestamp_before_max_ms
        self.message_timestamp_type = message_timestamp_type
        self.min_cleanable_dirty_ratio = min_cleanable_dirty_ratio
        self.min_compaction_lag_ms = min_compaction_lag_ms
        self.min_insync_replicas = min_insync_replicas
        self.retention_bytes = retention_bytes
        self.retention_ms = retention_ms
        self.segment_bytes = segment_bytes
        self.segment_index_bytes = segment_index_bytes
        self.segment_jitter_ms = segment_jitter_ms
        self.segment_ms = segment_ms
        self.unpacked_bytes_max = unpacked_bytes_max

    @property
    def compact(self) -> bool:
        """Whether the last value of every key is retained."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogConfig):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"LogConfig({values})"
