"""What decoded columns are kept in: see :mod:`tidemill.records.columns`."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64, u8

MILLISECONDS_MAX: Final = 9223372036854775
"""Beyond that, and below its negative, microseconds are no int64."""

MICROSECONDS_BEYOND: Final = 9223372036854775807
"""Stands for a time beyond :data:`MILLISECONDS_MAX`; its negative for one below. No other time gives it."""


class Field:
    """A column of byte strings: edges into a buffer, and which are null."""

    def __init__(self, capacity: i64) -> None:
        self.null_count: i64 = 0
        self.edges: vec[i32] = vec[i32]([0] * int(2 * capacity))
        """Begin and end of each."""
        self.nulls: vec[u8] = vec[u8]([0] * int(capacity))
        """1 for each that is null, else 0."""


class HeaderFields:
    """All headers of all records, one after the other."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.value_null_count: i64 = 0
        self.begins: vec[i32] = vec[i32]()
        """For each record the number of headers before it; at the end the number of all."""
        self.key_edges: vec[i32] = vec[i32]()
        self.value_edges: vec[i32] = vec[i32]()
        self.value_nulls: vec[u8] = vec[u8]()


class Columns:
    """The records of a fetch within an offset range, by column (see the module's table).

    The vectors may be longer than :attr:`count` says; what is behind it means nothing.
    """

    def __init__(self, buffer: bytes, capacity: i64, want_headers: bool) -> None:
        self.buffer = buffer
        """What all edges point into."""
        self.count: i64 = 0
        self.keys = Field(capacity)
        self.values = Field(capacity)
        self.offsets: vec[i64] = vec[i64]([0] * int(capacity))
        self.timestamps: vec[i64] = vec[i64]([0] * int(capacity))
        self.timestamp_types: list[tuple[int, int]] = []
        """(records, -1 none, 0 create time or 1 append time), in order."""
        self.headers: HeaderFields | None = HeaderFields() if want_headers else None
        self.next_offset: i64 = -1
        """From here the next decode or fetch goes on; -1 when no whole batch was there."""
        self.next_position: i64 = 0
        """The byte in the fetched data that belongs to :attr:`next_offset`."""
        self.unfinished = False
        """Whether decoding stopped at ``bytes_max``, before the last whole batch."""

    def add_type(self, count: i64, timestamp_type: i64) -> None:
        """Notes the kind of time of ``count`` more rows."""
        types = self.timestamp_types
        if types and types[-1][1] == timestamp_type:
            types[-1] = (types[-1][0] + int(count), int(timestamp_type))
        else:
            types.append((int(count), int(timestamp_type)))

    def take(self, count: i64, key_nulls: i64, value_nulls: i64) -> None:
        """Counts in what a batch has written: ``count`` rows there are now, with so many more nulls."""
        self.count = count
        self.keys.null_count += key_nulls
        self.values.null_count += value_nulls


def to_microseconds(timestamp_ms: i64) -> i64:
    """Microseconds; ``MICROSECONDS_BEYOND`` or its negative for what is too far away for them."""
    if timestamp_ms > MILLISECONDS_MAX:
        return MICROSECONDS_BEYOND
    if timestamp_ms < -MILLISECONDS_MAX:
        return -MICROSECONDS_BEYOND
    return timestamp_ms * 1000
