"""The containers of decoded columns; see :mod:`tidemill.records.columns`."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64, u8

MILLISECONDS_MAX: Final = 9223372036854775
"""Beyond that, and below its negative, microseconds do not fit an int64."""

MICROSECONDS_BEYOND: Final = 9223372036854775807
"""Represents a time beyond :data:`MILLISECONDS_MAX`; its negative a time below. No other time maps to it."""


class Field:
    """A column of byte strings: edges into a buffer, and null flags."""

    def __init__(self, capacity: i64) -> None:
        self.null_count: i64 = 0
        self.edges: vec[i32] = vec[i32]([0] * int(2 * capacity))
        """Start and end of each string."""
        self.nulls: vec[u8] = vec[u8]([0] * int(capacity))
        """1 for each null, else 0."""


class HeaderFields:
    """All headers of all records, one after the other."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.value_null_count: i64 = 0
        self.begins: vec[i32] = vec[i32]()
        """Per record, the number of headers before it; at the end the total."""
        self.key_edges: vec[i32] = vec[i32]()
        self.value_edges: vec[i32] = vec[i32]()
        self.value_nulls: vec[u8] = vec[u8]()


class Columns:
    """The records of a fetch within an offset range, by column (see the module's table).

    The vectors may be longer than :attr:`count`; elements beyond it are undefined.
    """

    def __init__(self, buffer: bytes, capacity: i64, want_headers: bool) -> None:
        self.buffer = buffer
        """The buffer that all edges point into."""
        self.count: i64 = 0
        self.keys = Field(capacity)
        self.values = Field(capacity)
        self.offsets: vec[i64] = vec[i64]([0] * int(capacity))
        self.timestamps: vec[i64] = vec[i64]([0] * int(capacity))
        self.timestamp_types: list[tuple[int, int]] = []
        """(records, -1 none, 0 create time or 1 append time), in order."""
        self.headers: HeaderFields | None = HeaderFields() if want_headers else None
        self.next_offset: i64 = -1
        """The offset at which the next decode or fetch continues; -1 when there was no whole batch."""
        self.next_position: i64 = 0
        """The position of :attr:`next_offset` in the fetched data."""
        self.unfinished = False
        """Whether decoding stopped at ``bytes_max``, before the last whole batch."""

    def add_type(self, count: i64, timestamp_type: i64) -> None:
        """Records the timestamp type of ``count`` more rows."""
        types = self.timestamp_types
        if types and types[-1][1] == timestamp_type:
            types[-1] = (types[-1][0] + int(count), int(timestamp_type))
        else:
            types.append((int(count), int(timestamp_type)))

    def add_rows(self, count: i64, key_nulls: i64, value_nulls: i64) -> None:
        """Adds a batch to the counts: ``count`` is the new number of rows, the others are its nulls."""
        self.count = count
        self.keys.null_count += key_nulls
        self.values.null_count += value_nulls


def to_microseconds(timestamp_ms: i64) -> i64:
    """Converts to microseconds; ``MICROSECONDS_BEYOND`` or its negative for times out of range."""
    if timestamp_ms > MILLISECONDS_MAX:
        return MICROSECONDS_BEYOND
    if timestamp_ms < -MILLISECONDS_MAX:
        return -MICROSECONDS_BEYOND
    return timestamp_ms * 1000
