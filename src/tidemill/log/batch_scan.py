"""Iterates over the batch headers of a log file without reading the records.

Batches of format v2 begin as described in :mod:`tidemill.records.batch`. Entries of formats v0 and v1 have
the same first 12 bytes and magic byte position; their offset is that of their last message.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from tidemill.model.system_interfaces import File
from tidemill.records.batch import (
    ATTRIBUTES,
    CRC,
    CURRENT_MAGIC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    OLD_ENTRY_BYTES_MIN,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS,
    Batch,
)
from tidemill.records.checksum import crc32, crc32c

WINDOW_BYTES: Final = 8192
"""Bytes per read: two index intervals, so that a lookup takes one read."""
ZEROS_WINDOW_BYTES: Final = 1024 * 1024


class BatchScan:
    """Steps from batch to batch between two positions of a log file.

    After ``step()`` returned True, the attributes describe the batch at :attr:`position`. It returns False at
    :attr:`end`, and at bytes that are not a complete batch; :attr:`fault` then says why.
    """

    def __init__(self, file: File, position: i64, end: i64, window_bytes: i64 = WINDOW_BYTES) -> None:
        self.file = file
        self.end: i64 = end
        self.window_bytes: i64 = window_bytes
        self.window: bytes = b""
        self.window_position: i64 = 0
        self.next_position: i64 = position
        self.fault: str = ""
        self.cut_off: bool = False
        """With a fault: whether only the end of a batch is missing."""
        self.position: i64 = position
        self.size: i64 = 0
        self.magic: i64 = 0
        self.base_offset: i64 = 0
        self.last_offset: i64 = 0

    def step(self) -> bool:
        """Moves to the next batch."""
        position: i64 = self.next_position
        left: i64 = self.end - position
        if left <= 0:
            return False
        self.position = position
        need: i64 = RECORDS if left >= RECORDS else left
        at: i64 = position - self.window_position
        if at < 0 or at + need > len(self.window):
            self._load(position, left)
            at = 0
        window = self.window
        if len(window) - at < OLD_ENTRY_BYTES_MIN:
            self.fault = f"only {left} bytes remain, too few for a batch"
            self.cut_off = True
            return False
        size: i64 = i64(read_i32_be(window, at + LENGTH)) + LOG_OVERHEAD
        magic: i64 = i64(window[at + MAGIC])
        if magic > 2:
            self.fault = f"magic byte {magic} is unknown"
            return False
        if size > left:
            self.fault = f"the batch length is {size} bytes, but only {left} remain"
            self.cut_off = True
            return False
        if size < (RECORDS if magic == 2 else OLD_ENTRY_BYTES_MIN):
            self.fault = f"the batch length is {size} bytes, less than its header"
            return False
        base: i64 = read_i64_be(window, at)
        last: i64 = base
        if magic == 2:
            last = base + i64(read_i32_be(window, at + LAST_OFFSET_DELTA))
        if base < 0 or last < base:
            self.fault = f"offsets {base} to {last} are invalid"
            return False
        self.size = size
        self.magic = magic
        self.base_offset = base
        self.last_offset = last
        self.next_position = position + size
        return True

    def _load(self, position: i64, left: i64) -> None:
        # After a batch larger than a window, the next one is probably large too: only its header is read.
        count: i64 = self.window_bytes if self.size < self.window_bytes else RECORDS
        if count > left:
            count = left
        self.window = self.file.read_at(position, count)
        self.window_position = position

    def whole(self) -> tuple[bytes, i64]:
        """All bytes of the current batch: a buffer, and the position of the batch in it."""
        at: i64 = self.position - self.window_position
        if at + self.size > len(self.window):
            left: i64 = self.end - self.position
            count: i64 = self.window_bytes if self.window_bytes > self.size else self.size
            self.window = self.file.read_at(self.position, count if count < left else left)
            self.window_position = self.position
            at = 0
        return self.window, at

    def header(self) -> Batch:
        """The header of the current batch, which must be of format v2, without its records."""
        return Batch(self.window, self.at, self.size)

    def checksum_fault(self) -> str:
        """Describes the checksum fault of the current batch; empty if there is none.

        A batch larger than a window is read in pieces of a window.
        """
        is_current: bool = self.magic == CURRENT_MAGIC
        header: i64 = self.at + (CRC if is_current else LOG_OVERHEAD)
        stored: i64 = i64(read_i32_be(self.window, header)) & 0xFFFFFFFF
        begin: i64 = ATTRIBUTES if is_current else MAGIC
        found: i64 = 0
        if self.size <= self.window_bytes:
            data, at = self.whole()
            covered = memoryview(data)[at + begin : at + self.size]
            found = crc32c(covered) if is_current else crc32(covered)
        else:
            position: i64 = self.position + begin
            end: i64 = self.position + self.size
            while position < end:
                piece = self.file.read_at(position, min(self.window_bytes, end - position))
                if not piece:
                    break
                found = crc32c(piece, found) if is_current else crc32(piece, found)
                position += len(piece)
        if found == stored:
            return ""
        return (
            f"the batch with base offset {self.base_offset} has checksum {found}, but its header has {stored}"
        )

    def step_to_end(self, base_offset: i64) -> i64:
        """Moves to the end. Returns the offset after the last batch, or ``base_offset`` without batches."""
        end: i64 = base_offset
        while self.step():
            end = self.last_offset + 1
        return end

    @property
    def at(self) -> i64:
        """The position of the current header in :attr:`window`."""
        return self.position - self.window_position

    @property
    def leader_epoch(self) -> i64:
        """The leader epoch; -1 before format v2."""
        if self.magic < 2:
            return -1
        return i64(read_i32_be(self.window, self.at + LEADER_EPOCH))

    @property
    def attributes(self) -> i64:
        """The attributes field; 8 bits before format v2."""
        if self.magic < 2:
            return i64(self.window[self.at + MAGIC + 1])
        return i64(read_i16_be(self.window, self.at + ATTRIBUTES))

    @property
    def max_timestamp(self) -> i64:
        """In ms; -1 in format v0."""
        if self.magic == 2:
            return read_i64_be(self.window, self.at + MAX_TIMESTAMP)
        if self.magic == 1:
            return read_i64_be(self.window, self.at + MAGIC + 2)
        return -1

    @property
    def producer_id(self) -> i64:
        """-1 without idempotence."""
        return read_i64_be(self.window, self.at + PRODUCER_ID) if self.magic == 2 else -1

    @property
    def producer_epoch(self) -> i64:
        """-1 without idempotence."""
        return i64(read_i16_be(self.window, self.at + PRODUCER_EPOCH)) if self.magic == 2 else -1


def zeros_to_end(file: File, position: i64, size: i64) -> bool:
    """Whether a file of ``size`` bytes has only zeros from ``position`` on.

    They are blocks that the file system allocated but never wrote.
    """
    while position < size:
        data = file.read_at(position, ZEROS_WINDOW_BYTES)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True
