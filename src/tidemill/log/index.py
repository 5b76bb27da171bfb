"""The offset index and the time index of a segment.

``<base offset>.index``, 8 bytes an entry:

====  =====  ===============  =============================================================
byte  type   field            notes
====  =====  ===============  =============================================================
0     int32  relative offset  the batch's last offset less the segment's base offset
4     int32  position         the byte in the ``.log`` file where that batch begins
====  =====  ===============  =============================================================

``<base offset>.timeindex``, 12 bytes an entry:

====  =====  ===============  =============================================================
byte  type   field            notes
====  =====  ===============  =============================================================
0     int64  timestamp        ms; the largest in the segment so far
8     int32  relative offset  last offset of the batch that has it, less the base offset
====  =====  ===============  =============================================================

All integers are big-endian; both columns grow from entry to entry. The files are sparse and made at their
full size, so that an entry is a store into the memory map; rolling cuts them to what is used. A tail of
zeros is therefore what an unclean stop leaves behind, and no damage: position 0 is never indexed.

There is an entry for a batch only when more than ``index.interval.bytes`` were appended since the last one.
When a segment is closed, the time index gets a last entry with the segment's largest timestamp.

There is no checksum: what a crash leaves of an index is checked for sense, and rebuilt from the log.

Source: Apache Kafka, ``OffsetIndex.java``, ``TimeIndex.java``.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from tidemill.log.open_files import OPEN_FILES
from tidemill.model.ports import Files

OFFSET_ENTRY_BYTES: Final = 4 + 4
TIME_ENTRY_BYTES: Final = 8 + 4

RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF

PAGE_BYTES: Final = 4096
"""What is given disk space at a time; a multiple of it is every system's page."""


class _Index:
    """What both indexes share: a sparse file, mapped when it is first needed."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64, entry_bytes: i64) -> None:
        self.files = files
        self.path = path
        self.base_offset: i64 = base_offset
        self.entry_bytes: i64 = entry_bytes
        self.entries_max: i64 = bytes_max // entry_bytes
        self.entries: i64 = -1  # -1: not counted yet
        self._map: Any = None
        self._mapped_bytes: i64 = 0
        self._writable: bool = False
        self.pinned: bool = False
        self._backed_bytes: i64 = 0
        self._private: bool = False
        self.touched: bool = False
        """The map was used since :data:`OPEN_FILES` looked last."""

    def create(self) -> None:
        """Makes the file at its full size, empty of entries, over what was there."""
        self._map = None
        self._writable = False
        file = self.files.open(self.path, True)
        try:
            if file.size() != 0:
                file.truncate(0)
            file.truncate(self.entries_max * self.entry_bytes)
        finally:
            file.close()
        self.entries = 0

    def load(self) -> None:
        """Counts the entries, when that has not happened yet. A missing file has none."""
        if self.entries >= 0:
            return
        if not self._private and not self.files.exists(self.path):
            self.create()
            return
        self._map_file(False)
        self.entries = self._count_entries()

    def _map_file(self, writable: bool) -> Any:
        """Maps the file; the map too, as another thread may make this one let it go (None: an empty file)."""
        if self._private:
            return self._read_file()
        try:
            mapped = self._try_map(writable)
        except OSError as problem:
            if not OPEN_FILES.make_room(problem):
                raise
            mapped = self._try_map(writable)
        self._map = mapped
        self.touched = True
        OPEN_FILES.opened(self)
        return mapped

    def make_private(self, entries: i64) -> None:
        """Makes this an index for look-ups in another thread; ``entries`` are known to be in it (or -1).

        It reads where the other maps: the owner may cut the file meanwhile, and a mapped page beyond its end
        would end the process. Entries that are gone raise IndexError then.
        """
        self._private = True
        self.entries = entries

    def _read_file(self) -> Any:
        file = self.files.open(self.path, False, True)
        try:
            size: i64 = file.size() if self.entries < 0 else self.entries * self.entry_bytes
            data = file.read_at(0, size)
        finally:
            file.close()
        self._mapped_bytes = len(data)
        self._map = data
        return data

    def is_cached(self) -> bool:
        """Whether a look-up is likely to find its pages in memory. Raises OSError."""
        if self.entries <= 0:
            return self.entries == 0
        file = self.files.open(self.path, False, True)
        try:
            return file.is_cached(0, self.entries * self.entry_bytes)
        finally:
            file.close()

    def _try_map(self, writable: bool) -> Any:
        self._map = None
        mapped: Any = None
        file = self.files.open(self.path, False, not writable)
        try:
            size: i64 = file.size()
            if writable and size != self.entries_max * self.entry_bytes:
                size = self.entries_max * self.entry_bytes
                file.truncate(size)
            if size > 0:
                mapped = file.map(writable)
            self._mapped_bytes = size
        finally:
            file.close()
        self._writable = writable
        return mapped

    def _count_entries(self) -> i64:
        """The entries before the tail of zeros."""
        high: i64 = self._mapped_bytes // self.entry_bytes
        if high == 0 or not self._is_zero(high - 1):
            return high
        low: i64 = 0
        while low < high:
            middle: i64 = (low + high) >> 1
            if self._is_zero(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_zero(self, slot: i64) -> bool:
        entry = self._entry(slot)
        return entry.count(0) == len(entry)

    def _entry(self, slot: i64) -> bytes:
        mapped = self._map
        if mapped is None:
            mapped = self._map_file(False)
        self.touched = True
        position: i64 = slot * self.entry_bytes
        entry: bytes = mapped[position : position + self.entry_bytes]
        return entry

    def _store(self, entry: bytes) -> None:
        mapped = self._map
        if not self._writable or mapped is None:
            self.load()
            mapped = self._map_file(True)
            self._backed_bytes = self.entries * self.entry_bytes
        self.touched = True
        position: i64 = self.entries * self.entry_bytes
        if position + self.entry_bytes > self._backed_bytes:
            self._back_page(position + self.entry_bytes)
        mapped[position : position + self.entry_bytes] = entry
        self.entries += 1

    def _back_page(self, needed: i64) -> None:
        """Gives the next page of the sparse file its space on the disk by an ordinary write.

        A store into a mapped page that the disk has no room for kills the process (SIGBUS); a write that
        finds no room raises OSError.
        """
        page_end: i64 = (needed + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        if page_end > self._mapped_bytes:
            page_end = self._mapped_bytes
        file = self.files.open(self.path)
        try:
            file.write_at(self._backed_bytes, bytes(page_end - self._backed_bytes))
        finally:
            file.close()
        self._backed_bytes = page_end

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits; the segment rolls then."""
        if self.entries < 0:
            self.load()
        return self.entries >= self.entries_max

    def trim(self) -> None:
        """Cuts the file to its entries: the segment is closed, or the broker stops."""
        self.load()
        used: i64 = self.entries * self.entry_bytes
        if self._map is not None and self._mapped_bytes == used:
            return
        self._map = None  # a map beyond the end of its file must not be touched again
        self._writable = False
        file = self.files.open(self.path, True)
        try:
            if file.size() != used:
                file.truncate(used)
        finally:
            file.close()

    def _slots_up_to(self, value: i64, field: i64) -> i64:
        """How many entries have at most ``value`` in the four bytes at ``field``, where they ascend."""
        low: i64 = 0
        high: i64 = self.entries
        while low < high:
            middle: i64 = (low + high) >> 1
            if i64(read_i32_be(self._entry(middle), field)) <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def keep(self, entries: i64) -> None:
        """Forgets all entries but the first ``entries``, and zeroes their bytes."""
        self.load()
        if entries < self.entries:
            self._cut(entries)

    def keep_growing(self) -> bool:
        """Forgets the entries from the first pair on that does not grow; whether there was one.

        A power cut may lose entries, and keep later ones.
        """
        self.load()
        slot: i64 = self._growing()
        all_grow: bool = slot == self.entries
        # Of two entries that do not grow either may be wrong. What lies behind a hole goes, too.
        self._cut(slot if all_grow or slot == 0 else slot - 1)
        return not all_grow

    def _growing(self) -> i64:
        """How many entries from the first on grow, each from the one before."""
        raise NotImplementedError

    def _misfit(self) -> str:
        """Why the file is no index of this kind; empty when it may be one."""
        if not self.files.exists(self.path):
            return "the file is missing"
        size: i64 = self.files.size(self.path)
        if size % self.entry_bytes != 0:
            return f"its size {size} is no multiple of {self.entry_bytes}"
        return ""

    def _cut(self, entries: i64) -> None:
        position: i64 = entries * self.entry_bytes
        self._map = None
        self._writable = False
        file = self.files.open(self.path)
        try:
            size: i64 = file.size()
            file.truncate(position)
            file.truncate(size)
        finally:
            file.close()
        self.entries = entries

    def let_go(self) -> None:
        """Gives the memory map back until it is needed again."""
        if not self.pinned:
            self._map = None
            self._writable = False

    def pin(self) -> None:
        """Maps the file, and keeps it mapped until :meth:`release`: it is about to lose its name."""
        self.pinned = True
        self.load()
        if self.entries > 0 and self._map is None:
            self._map_file(False)

    def release(self) -> None:
        """As :meth:`let_go`, by the log itself."""
        self.pinned = False
        self.let_go()
        OPEN_FILES.closed(self)


class OffsetIndex(_Index):
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
        """As :meth:`_Index._growing`."""
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


class TimeIndex(_Index):
    """Finds the offset from which a scan for a timestamp begins."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64) -> None:
        super().__init__(files, path, base_offset, bytes_max, TIME_ENTRY_BYTES)
        self._last_timestamp: i64 = -2  # -2: not read yet

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits; one is kept free for the entry that closes the segment."""
        if self.entries < 0:
            self.load()
        return self.entries >= self.entries_max - 1

    def create(self) -> None:
        super().create()
        self._last_timestamp = -1

    def append(self, timestamp: i64, offset: i64) -> None:
        """Notes that ``timestamp`` is the largest up to ``offset``; nothing when it has not grown."""
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
        """The offset that goes with :meth:`last_timestamp`; the base offset without entries."""
        self.load()
        if self.entries == 0:
            return self.base_offset
        return self.base_offset + i64(read_i32_be(self._entry(self.entries - 1), 8))

    def lookup(self, timestamp: i64) -> i64:
        """The offset of the last entry whose timestamp is at most ``timestamp``; the base offset without."""
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

    def entry(self, slot: i64) -> tuple[i64, i64]:
        """Entry ``slot`` as (timestamp, offset)."""
        data = self._entry(slot)
        return read_i64_be(data, 0), self.base_offset + i64(read_i32_be(data, 8))

    def truncate_to(self, offset: i64) -> None:
        """Forgets the entries whose offset is ``offset`` or higher."""
        self.load()
        self.keep(self._slots_up_to(offset - self.base_offset - 1, 8))
        self._last_timestamp = -2

    def keep_growing(self) -> bool:
        """As :meth:`_Index.keep_growing`."""
        self._last_timestamp = -2
        return super().keep_growing()

    def _growing(self) -> i64:
        """As :meth:`_Index._growing`; neighbours may have the same offset."""
        timestamp_before: i64 = -1
        offset_before: i64 = -1
        slot: i64 = 0
        while slot < self.entries:
            data = self._entry(slot)
            timestamp: i64 = read_i64_be(data, 0)
            offset: i64 = i64(read_i32_be(data, 8))
            if timestamp <= timestamp_before or offset < offset_before or offset < 0:
                break
            timestamp_before = timestamp
            offset_before = offset
            slot += 1
        return slot

    def damage(self, offset_end: i64) -> str:
        """What is wrong with the entries, for a segment that ends before ``offset_end``; empty: nothing."""
        misfit = self._misfit()
        if misfit:
            return misfit
        self.load()
        slot: i64 = self._growing()
        timestamp_before: i64 = -1
        offset_before: i64 = -1
        if slot > 0:
            data = self._entry(slot - 1)
            timestamp_before = read_i64_be(data, 0)
            offset_before = i64(read_i32_be(data, 8))
        if slot < self.entries:
            data = self._entry(slot)
            return (
                f"entry {slot} ({read_i64_be(data, 0)}, {read_i32_be(data, 8)}) does not grow from "
                f"({timestamp_before}, {offset_before})"
            )
        if self.entries > 0 and self.base_offset + offset_before >= offset_end:
            return (
                f"its last entry has offset {self.base_offset + offset_before}, "
                f"the segment ends at {offset_end}"
            )
        return ""
