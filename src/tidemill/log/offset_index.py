"""The offset index of a segment.

``<base offset>.index``, 8 bytes an entry:

====  =====  ===============  =============================================================
byte  type   field            notes
====  =====  ===============  =============================================================
0     int32  relative offset  the batch's last offset less the segment's base offset
4     int32  position         the byte in the ``.log`` file where that batch begins
====  =====  ===============  =============================================================

What the file does not promise: :mod:`tidemill.log.sparse_index`.

Source: Apache Kafka, ``OffsetIndex.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64

from tidemill.log.sparse_index import SparseIndex
from tidemill.model.ports import Files

OFFSET_ENTRY_BYTES: Final = 4 + 4


class OffsetIndex(SparseIndex):
    """Finds the position from which a scan for an offset begins."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64) -> None:
        super().__init__(files, path, base_offset, bytes_max, OFFSET_ENTRY_BYTES)

    def append(self, offset: i64, position: i64) -> None:
        """Notes that the batch whose last offset is ``offset`` begins at ``position``."""
        writer = BytesWriter()
        write_i32_be(writer, i32(offset - self.base_offset))
        write_i32_be(writer, i32(position))
        self._store(writer.getvalue())

    def lookup(self, offset: i64) -> i64:
        """The position of the last indexed batch whose last offset is at most ``offset``; 0 when none is."""
        self.load()
        wanted: i64 = offset - self.base_offset
        low: i64 = self._slots_up_to(wanted, 0)
        if low == 0:
            return 0
        return i64(read_i32_be(self._entry(low - 1), 4))

    def position_floor(self, position: i64) -> i64:
        """The last indexed position that is at most ``position``; 0 when none is.

        Batches begin there: a fetch that is cut there ends with a whole batch.
        """
        self.load()
        low: i64 = self._slots_up_to(position, 4)
        if low == 0:
            return 0
        return i64(read_i32_be(self._entry(low - 1), 4))

    def last_position(self) -> i64:
        """Where the last indexed batch begins; 0 without entries."""
        self.load()
        if self.entries == 0:
            return 0
        return i64(read_i32_be(self._entry(self.entries - 1), 4))

    def entry(self, slot: i64) -> tuple[i64, i64]:
        """Entry ``slot`` as (offset, position)."""
        data = self._entry(slot)
        return self.base_offset + i64(read_i32_be(data, 0)), i64(read_i32_be(data, 4))

    def truncate_to(self, position: i64) -> None:
        """Forgets the batches that begin at ``position`` or after it."""
        self.load()
        self.keep(self._slots_up_to(position - 1, 4))

    def _growing(self) -> i64:
        """As :meth:`SparseIndex._growing`."""
        offset_before: i64 = -1
        position_before: i64 = 0
        slot: i64 = 0
        while slot < self.entries:
            data = self._entry(slot)
            offset: i64 = i64(read_i32_be(data, 0))
            position: i64 = i64(read_i32_be(data, 4))
            if offset <= offset_before or position <= position_before:
                break
            offset_before = offset
            position_before = position
            slot += 1
        return slot

    def damage(self, log_bytes: i64) -> str:
        """What is wrong with the entries, for a log file of ``log_bytes``; empty when nothing is."""
        misfit = self._misfit()
        if misfit:
            return misfit
        self.load()
        slot: i64 = self._growing()
        offset_before: i64 = -1
        position_before: i64 = 0
        if slot > 0:
            data = self._entry(slot - 1)
            offset_before = i64(read_i32_be(data, 0))
            position_before = i64(read_i32_be(data, 4))
        if slot < self.entries:
            data = self._entry(slot)
            return (
                f"entry {slot} ({read_i32_be(data, 0)}, {read_i32_be(data, 4)}) does not grow from "
                f"({offset_before}, {position_before})"
            )
        if position_before > 0 and position_before >= log_bytes:
            return f"its last entry points to byte {position_before}, the log has {log_bytes}"
        return ""
