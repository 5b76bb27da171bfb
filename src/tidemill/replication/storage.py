"""What a topic takes from producers, and in which form it stores it: format and compression. Compiled."""

from __future__ import annotations

from mypy_extensions import i64

from tidemill.log.config import LogConfig
from tidemill.records.batch import GZIP, LZ4, ZSTD
from tidemill.records.compression import codec_of
from tidemill.records.convert import KEEP_CODEC
from tidemill.records.validate import Limits


class Storage:
    """How a topic stores records: ``message.format.version`` and ``compression.type``."""

    def __init__(
        self, magic: i64 = 2, codec: i64 = KEEP_CODEC, level: int | None = None, append_time: bool = False
    ) -> None:
        self.magic: i64 = magic
        self.codec: i64 = codec
        """A codec's number, or ``KEEP_CODEC`` for the producer's."""
        self.level = level
        """The codec's own; None is its usual one."""
        self.append_time = append_time
        """Records carry the time of their append."""
        self.as_produced: bool = magic == 2 and codec == KEEP_CODEC
        """Whether a batch of today's format is stored as it came."""


def storage_of(config: LogConfig) -> Storage:
    """How a topic with ``config`` stores records."""
    name = config.compression_type
    codec = KEEP_CODEC if name == "producer" else codec_of("none" if name == "uncompressed" else name)
    levels = {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }
    append_time = config.message_timestamp_type == "LogAppendTime"
    return Storage(config.message_magic, codec, levels.get(int(codec)), append_time)


def limits_of(config: LogConfig) -> Limits:
    """What a topic with ``config`` takes from producers."""
    return Limits(
        max_batch_bytes=config.max_message_bytes,
        max_unpacked_bytes=config.unpacked_bytes_max,
        key_required=config.compact,
        timestamp_before_ms=config.message_timestamp_before_max_ms,
        timestamp_after_ms=config.message_timestamp_after_max_ms,
        check_timestamps=config.message_timestamp_type == "CreateTime",
    )
