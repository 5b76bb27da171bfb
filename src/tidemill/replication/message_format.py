"""The limits of a topic for producers, its message format and its compression. Compiled."""

from __future__ import annotations

from mypy_extensions import i64

from tidemill.log.log_config import LogConfig
from tidemill.records.batch import GZIP, LZ4, ZSTD
from tidemill.records.batch_validation import RecordLimits
from tidemill.records.compression import codec_of
from tidemill.records.format_conversion import KEEP_CODEC


class TopicMessageFormat:
    """How a topic stores records: ``message.format.version`` and ``compression.type``."""

    def __init__(
        self, magic: i64 = 2, codec: i64 = KEEP_CODEC, level: int | None = None, append_time: bool = False
    ) -> None:
        self.magic: i64 = magic
        self.codec: i64 = codec
        """The number of a codec, or ``KEEP_CODEC`` for the producer's codec."""
        self.level = level
        """The compression level; None for the default."""
        self.append_time = append_time
        """Whether records get the time of their append."""
        self.as_produced: bool = magic == 2 and codec == KEEP_CODEC
        """Whether a batch of the current format is stored unchanged."""


def message_format_of(config: LogConfig) -> TopicMessageFormat:
    """The message format and the compression of a topic with ``config``."""
    name = config.compression_type
    codec = KEEP_CODEC if name == "producer" else codec_of("none" if name == "uncompressed" else name)
    levels = {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }
    append_time = config.message_timestamp_type == "LogAppendTime"
    return TopicMessageFormat(config.message_magic, codec, levels.get(int(codec)), append_time)


def validation_limits_of(config: LogConfig) -> RecordLimits:
    """The limits of a topic with ``config`` for producers."""
    return RecordLimits(
        unpacked_bytes_max=config.unpacked_bytes_max,
        max_batch_bytes=config.max_message_bytes,
        key_required=config.compact,
        timestamp_before_ms=config.message_timestamp_before_max_ms,
        timestamp_after_ms=config.message_timestamp_after_max_ms,
        check_timestamps=config.message_timestamp_type == "CreateTime",
    )
