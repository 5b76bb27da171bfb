"""Builds record batches and message sets from lists of records, and parses sequences of batches."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.records.batch import (
    NO_COMPRESSION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Batch,
    parse_batch,
)
from tidemill.records.builder import BatchBuilder, Headers
from tidemill.records.message_set import MessageSetWriter, wrap

RecordFields = tuple[int, bytes | None, bytes | None, Headers | None]
"""Timestamp in ms, key, value, headers."""

OldRecord = tuple[int, bytes | None, bytes | None]
"""Timestamp in ms (not stored by v0), key, value."""


def build_batch(
    records: Iterable[RecordFields],
    codec: int = NO_COMPRESSION,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    leader_epoch: int = -1,
    base_offset: int = 0,
) -> bytes:
    """Builds one batch of ``records``: (timestamp in ms, key, value, headers or None) each."""
    builder = BatchBuilder(codec, level)
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build(producer_id, producer_epoch, base_sequence, transactional, leader_epoch, base_offset)


def build_message_set(
    magic: int,
    records: Iterable[OldRecord],
    codec: int = NO_COMPRESSION,
    level: int | None = None,
    base_offset: int = 0,
    append_time_ms: int = NO_TIMESTAMP,
) -> bytes:
    """Builds a message set of format ``magic`` (0 or 1) with offsets from ``base_offset``.

    With a codec (gzip, snappy or lz4) it is one wrapper. ``append_time_ms`` other than -1 marks the times as
    the broker's (v1). Raises ValueError when there is no record and for another format, InvalidRecord for
    zstd.
    """
    writer = MessageSetWriter(magic, append_time_ms != NO_TIMESTAMP and codec == NO_COMPRESSION)
    offset = 0 if codec != NO_COMPRESSION and magic > 0 else base_offset
    for time_ms, key, value in records:
        timestamp = append_time_ms if writer.append_time else time_ms
        both = (key or b"") + (value or b"")
        split = len(key) if key is not None else 0
        writer.append(
            offset,
            timestamp,
            both,
            0,
            split if key is not None else -1,
            split,
            len(both) - split if value is not None else -1,
        )
        offset += 1
    if writer.count == 0:
        raise ValueError("a message set without records cannot be built")
    inside = writer.getvalue()
    if codec == NO_COMPRESSION:
        return inside
    last = base_offset + writer.count - 1
    return wrap(magic, codec, inside, last, writer.max_timestamp, append_time_ms, level)


def parse_batches(data: bytes, position: int, end: int) -> list[Batch]:
    """Parses all batches from ``position`` to ``end``, the end of the last; raises as ``parse_batch``."""
    batches: list[Batch] = []
    while position < end:
        batches.append(parse_batch(data, position, end))
        position += int(batches[-1].size)
    return batches
