"""Compacts one entry of formats v0 and v1: a single message, or a wrapper with its messages.

A message is kept unchanged or removed. A wrapper that loses messages is built again from the others, with the
same codec: it has the offset of the last one, and in v1 relative offsets from the first one. A wrapper
without remaining messages is removed: these formats have no batches without records.

These formats have no delete horizon. The time of the segment's file decides on tombstones: the caller passes
whether they are kept.

A wrapper with messages of another format is rejected, as in all reads.

Source: Apache Kafka, ``MemoryRecords.java`` (``buildRetainedRecordsInto``), ``LogCleaner.scala``.
"""

from __future__ import annotations

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from tidemill.log.offset_map import OffsetMap
from tidemill.records.batch import LENGTH, NO_COMPRESSION, NO_TIMESTAMP
from tidemill.records.legacy_formats import Entry, parse_entry
from tidemill.records.message_set import wrap
from tidemill.records.record_cursor import EntryCursor


class EntryCleaner:
    """Cleans the entries of one log with a map. After :meth:`clean` the attributes describe the result."""

    def __init__(self, offsets: OffsetMap, unpacked_bytes_max: i64) -> None:
        self.offsets = offsets
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
        self.records_read: i64 = 0
        self.records_kept: i64 = 0
        self.records_without_key: i64 = 0
        self.base_offset: i64 = 0
        """The offset of the first remaining message."""
        self.last_offset: i64 = 0
        """The offset of the last remaining message."""
        self.max_timestamp: i64 = NO_TIMESTAMP

    def index(self, data: bytes, position: i64, end: i64, start_offset: i64) -> bool:
        """Adds the keys from ``start_offset`` on of the entry at ``position`` to the map.

        Returns False if it is full. Raises the errors of :meth:`tidemill.log.clean_batch.BatchCleaner.index`.
        """
        cursor = EntryCursor(parse_entry(data, position, end), self.unpacked_bytes_max)
        while cursor.step():
            if (
                cursor.key_length >= 0
                and cursor.offset >= start_offset
                and not self.offsets.put(cursor.data, cursor.key_position, cursor.key_length, cursor.offset)
            ):
                return False
        return True

    def clean(self, data: bytes, position: i64, end: i64, keeps_tombstones: bool) -> bytes:
        """The remaining part of the entry at ``position``: empty, the same bytes, or another wrapper.

        Raises CorruptMessage and InvalidRecord for an invalid entry.
        """
        entry = parse_entry(data, position, end)
        cursor = EntryCursor(entry, self.unpacked_bytes_max)
        kept = BytesWriter()
        count: i64 = 0
        largest: i64 = NO_TIMESTAMP
        begin: i64 = cursor.position
        while cursor.step():
            self.records_read += 1
            if self._stays(cursor, keeps_tombstones):
                if count == 0:
                    self.base_offset = cursor.offset
                count += 1
                self.last_offset = cursor.offset
                largest = max(largest, cursor.timestamp)
                if entry.codec != NO_COMPRESSION:
                    write_i64_be(kept, cursor.offset - self.base_offset if entry.magic > 0 else cursor.offset)
                    kept.write(cursor.data[begin + LENGTH : cursor.position])
            begin = cursor.position
        self.records_kept += count
        if count == 0:
            return b""
        if count == cursor.count:
            self.max_timestamp = entry.timestamp
            return data[position : position + entry.size]
        return self._wrapped(entry, kept.getvalue(), largest)

    def _wrapped(self, entry: Entry, inside: bytes, largest: i64) -> bytes:
        append_time_ms: i64 = entry.timestamp if entry.append_time else NO_TIMESTAMP
        self.max_timestamp = largest
        return wrap(entry.magic, entry.codec, inside, self.last_offset, largest, append_time_ms)

    def _stays(self, cursor: EntryCursor, keeps_tombstones: bool) -> bool:
        if cursor.offset > self.offsets.latest_offset:
            return True
        if cursor.key_length < 0:
            self.records_without_key += 1
            return False
        if cursor.value_length < 0 and not keeps_tombstones:
            return False
        return cursor.offset >= self.offsets.get(cursor.data, cursor.key_position, cursor.key_length)
