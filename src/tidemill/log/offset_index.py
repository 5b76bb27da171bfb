"""The offset index of a segment.

``<base offset>.index``, 8 bytes an entry:

====  =====  ===============  =============================================================
byte  type   field            notes
====  =====  ===============  =============================================================
0     int32  relative offset  the batch's last offset minus the segment's base offset
4     int32  position         the position of that batch in the ``.log`` file
====  =====  ===============  =============================================================

For limitations, see :mod:`tidemill.log.sparse_index`.

Source: Apache Kafka, ``OffsetIndex.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64

from tidemill.log.sparse_index import SparseIndex
from tidemill.model.system_interfaces import Files

OFFSET_ENTRY_BYTES: Final = 4 + 4


class OffsetIndex(SparseIndex):
    """Finds the position at which a scan for an offset begins."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64) -> None:
        super().__init__(files, path, base_offset, bytes_max, OFFSET_ENTRY_BYTES)

    def append(self, offset: i64, position: i64) -> None:
        """Adds an entry for the batch at ``position`` with the last offset ``offset``."""
        writer = BytesWriter()
        write_i32_be(writer, i32(offset - self.base_offset))
        write_i32_be(writer, i32(position))
        self._store(writer.getvalue())

    def lookup(self, offset: i64) -> i64:
        """The position of the last indexed batch with a last offset of at most ``offset``; 0 if there is
        none.
        """
        self.load()
        return self._position_before(self._slots_up_to(offset - self.base_offset, 0))

    def position_floor(self, position: i64) -> i64:
        """The last indexed position that is at most ``position``; 0 if there is none.

        Batches begin there: a fetch that ends there has only complete batches.
        """
        self.load()
        return self._position_before(self._slots_up_to(position, 4))

    def last_position(self) -> i64:
        """The position of the last indexed batch; 0 without entries."""
        self.load()
        return self._position_before(self.entries)

    def _position_before(self, slot: i64) -> i64:
        return 0 if slot == 0 else i64(read_i32_be(self._entry(slot - 1), 4))

    def columns(self, slot: i64) -> tuple[i64, i64]:
        """Relative offset and position: see :meth:`SparseIndex.columns`."""
        if slot < 0:
            return -1, 0
        data = self._entry(slot)
        return i64(read_i32_be(data, 0)), i64(read_i32_be(data, 4))

    def truncate_to(self, position: i64) -> None:
        """Removes the entries of batches that begin at ``position`` or later."""
        self.load()
        self.truncate_to_entries(self._slots_up_to(position - 1, 4))

    def _growing(self) -> i64:
        """See :meth:`SparseIndex._growing`."""
        offset_before, position_before = self.columns(-1)
        slot: i64 = 0
        while slot < self.entries:
            offset, position = self.columns(slot)
            if offset <= offset_before or position <= position_before:
                break
            offset_before = offset
            position_before = position
            slot += 1
        return slot

    def _end_damage(self, end: i64) -> str:
        """See :meth:`SparseIndex._end_damage`; ``end`` is the size of the log file."""
        position: i64 = self.last_position()
        if position > 0 and position >= end:
            return f"its last entry points to byte {position}, but the log has {end}"
        return ""
