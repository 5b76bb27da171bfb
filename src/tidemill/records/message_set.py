"""Message sets of formats v0 and v1: built, and given their offsets.

The layout is in :mod:`tidemill.records.legacy`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import i64

from tidemill.records.batch import NO_TIMESTAMP, NONE

OldRecord = tuple[int, bytes | None, bytes | None]
"""Timestamp in ms (not kept by v0), key, value."""


class MessageSet:
    """What a topic of format 0 or 1 stores of what a producer sent: checked, with offsets from 0 on.

    Made by :func:`tidemill.records.convert.for_storage`; :meth:`Log.append_messages` takes it.
    """

    def __init__(
        self,
        data: bytes,
        magic: i64,
        codec: i64,
        record_count: i64,
        max_timestamp: i64,
        unpacked: bytes | None = None,
        level: int | None = None,
    ) -> None:
        self.data = data
        """Entries of offsets 0, 1, 2 ..., or one wrapper of the last of them. Empty for a wrapper of v0."""
        self.magic: i64 = magic
        self.codec: i64 = codec
        self.record_count: i64 = record_count
        self.max_timestamp: i64 = max_timestamp
        """ms; the largest of the records, -1 when there is none (always in v0)."""
        self.unpacked = unpacked
        """Of a wrapper of v0: its inner entries, which take absolute offsets before they are compressed."""
        self.level = level

    def stored(self, base_offset: i64, append_time_ms: i64 = NO_TIMESTAMP) -> bytes:
        """The set as the log holds it, its first record at ``base_offset``.

        ``append_time_ms`` is the broker's clock in a topic of append time, -1 in one of create time.
        """
        raise NotImplementedError


def build_message_set(
    magic: i64,
    records: Iterable[OldRecord],
    codec: i64 = NONE,
    level: int | None = None,
    base_offset: i64 = 0,
    append_time_ms: i64 = NO_TIMESTAMP,
) -> bytes:
    """A message set of format ``magic`` (0 or 1) whose records have the offsets from ``base_offset`` on.

    With a codec (gzip, snappy or lz4) it is one wrapper. ``append_time_ms`` other than -1 makes the times
    the broker's (v1). ValueError when there is no record, for zstd and for another format.
    """
    raise NotImplementedError
