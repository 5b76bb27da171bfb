"""The time index of a segment.

``<base offset>.timeindex``, 12 bytes an entry:

====  =====  ===============  =============================================================
byte  type   field            notes
====  =====  ===============  =============================================================
0     int64  timestamp        ms; the largest in the segment so far
8     int32  relative offset  last offset of the batch that has it, minus the base offset
====  =====  ===============  =============================================================

A closed segment has a last entry with its largest timestamp.

For limitations, see :mod:`tidemill.log.sparse_index`.

Source: Apache Kafka, ``TimeIndex.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from tidemill.log.sparse_index import SparseIndex
from tidemill.model.system_interfaces import Files

TIME_ENTRY_BYTES: Final = 8 + 4


class TimeIndex(SparseIndex):
    """Finds the offset at which a scan for a timestamp begins."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64) -> None:
        super().__init__(files, path, base_offset, bytes_max, TIME_ENTRY_BYTES)
        self._last_timestamp: i64 = -2  # -2: not read yet

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits; one is reserved for the entry that closes the segment."""
        if self.entries < 0:
            self.load()
        return self.entries >= self.entries_max - 1

    def create(self) -> None:
        super().create()
        self._last_timestamp = -1

    def append(self, timestamp: i64, offset: i64) -> None:
        """Records ``timestamp`` as the largest up to ``offset``, unless it has not grown."""
        self.load()
        if timestamp <= self.last_timestamp() or self.entries >= self.entries_max:
            return
        writer = BytesWriter()
        write_i64_be(writer, timestamp)
        write_i32_be(writer, i32(offset - self.base_offset))
        self._store(writer.getvalue())
        self._last_timestamp = timestamp

    def last_timestamp(self) -> i64:
        """The largest indexed timestamp in ms; -1 without entries."""
        if self._last_timestamp == -2:
            self.load()
            self._last_timestamp = -1
            if self.entries > 0:
                self._last_timestamp = read_i64_be(self._entry(self.entries - 1), 0)
        return self._last_timestamp

    def last_offset(self) -> i64:
        """The offset of :meth:`last_timestamp`; the base offset without entries."""
        self.load()
        if self.entries == 0:
            return self.base_offset
        return self.base_offset + i64(read_i32_be(self._entry(self.entries - 1), 8))

    def lookup(self, timestamp: i64) -> i64:
        """The offset of the last entry with a timestamp of at most ``timestamp``; else the base offset."""
        self.load()
        low: i64 = 0
        high: i64 = self.entries
        while low < high:
            middle: i64 = (low + high) >> 1
            if read_i64_be(self._entry(middle), 0) <= timestamp:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return self.base_offset
        return self.base_offset + i64(read_i32_be(self._entry(low - 1), 8))

    def columns(self, slot: i64) -> tuple[i64, i64]:
        """Timestamp and relative offset: see :meth:`SparseIndex.columns`."""
        if slot < 0:
            return -1, -1
        data = self._entry(slot)
        return read_i64_be(data, 0), i64(read_i32_be(data, 8))

    def truncate_to(self, offset: i64) -> None:
        """Removes the entries with offsets of at least ``offset``."""
        self.load()
        self.truncate_to_entries(self._slots_up_to(offset - self.base_offset - 1, 8))
        self._last_timestamp = -2

    def truncate_to_growing(self) -> bool:
        """See :meth:`SparseIndex.truncate_to_growing`."""
        self._last_timestamp = -2
        return super().truncate_to_growing()

    def _growing(self) -> i64:
        """See :meth:`SparseIndex._growing`; neighbours may have equal offsets."""
        timestamp_before, offset_before = self.columns(-1)
        slot: i64 = 0
        while slot < self.entries:
            timestamp, offset = self.columns(slot)
            if timestamp <= timestamp_before or offset < offset_before or offset < 0:
                break
            timestamp_before = timestamp
            offset_before = offset
            slot += 1
        return slot

    def _end_damage(self, end: i64) -> str:
        """See :meth:`SparseIndex._end_damage`; ``end`` is the offset after the segment."""
        if self.entries > 0 and self.last_offset() >= end:
            return f"its last entry has offset {self.last_offset()}, but the segment ends at {end}"
        return ""
