"""The common base of the two indexes of a segment: a sparse file of fixed-size entries, mapped on demand.

For the layouts see :mod:`tidemill.log.offset_index` and :mod:`tidemill.log.time_index`. All integers are
big-endian; both columns grow from entry to entry. The files have their full size (in a new log from their
first entry on), so that an entry is a store into the memory map; a roll truncates them to their entries. A
tail of zeros is therefore left by an unclean shutdown, and is no damage: position 0 is never indexed.

A batch gets an entry only if more than ``index.interval.bytes`` were appended since the last entry.

There is no checksum: after a crash an index is checked for consistency, and rebuilt from the log.

Source: Apache Kafka, ``AbstractIndex.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from tidemill.log.open_files import OPEN_FILES
from tidemill.model.system_interfaces import FileMap, Files

RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
"""The largest difference between a record's offset and the base offset of its segment."""

PAGE_BYTES: Final = 4096
"""The unit in which disk space is allocated; a multiple of it is the page size of every system."""


class SparseIndex:
    """The common part of both indexes: a sparse file that is mapped on first use."""

    def __init__(self, files: Files, path: str, base_offset: i64, bytes_max: i64, entry_bytes: i64) -> None:
        self.files = files
        self.path = path
        self.base_offset: i64 = base_offset
        self.entry_bytes: i64 = entry_bytes
        self.entries_max: i64 = bytes_max // entry_bytes
        self.entries: i64 = -1  # -1: not counted yet
        self._map: FileMap | bytes | None = None
        """The map, the bytes of a private index, or None while the file is not mapped."""
        self._mapped_bytes: i64 = 0
        self._writable: bool = False
        self.pinned: bool = False
        self._backed_bytes: i64 = 0
        self._private: bool = False
        self.touched: bool = False
        """The map was used since the last check by :data:`OPEN_FILES`."""

    def create(self) -> None:
        """Creates the file at its full size without entries, replacing an existing one."""
        self._map = None
        self._writable = False
        with self.files.open(self.path, True) as file:
            if file.size() != 0:
                file.truncate(0)
            self.entries = 0
            file.truncate(self.entries_max * self.entry_bytes)

    def load(self) -> None:
        """Counts the entries, unless that was done. A missing file has none."""
        if self.entries >= 0:
            return
        if not self._private and not self.files.exists(self.path):
            self.create()
            return
        self._map_file(False)
        self.entries = self._count_entries()

    def _map_file(self, writable: bool) -> FileMap | bytes | None:
        """Maps the file and returns the map, which another thread may evict (None: an empty file)."""
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
        """Makes this an index for lookups in another thread; ``entries`` are known to be in it (or -1).

        It reads the file instead of mapping it: the owner may truncate the file meanwhile, and access to a
        mapped page beyond its end would kill the process. Missing entries raise IndexError instead.
        """
        self._private = True
        self.entries = entries

    def _read_file(self) -> bytes:
        with self.files.open(self.path, False, True) as file:
            size: i64 = file.size() if self.entries < 0 else self.entries * self.entry_bytes
            data = file.read_at(0, size)
        self._mapped_bytes = len(data)
        self._map = data
        return data

    def is_cached(self) -> bool:
        """Whether a lookup is likely to find its pages in memory. Raises OSError."""
        if self.entries <= 0:
            return self.entries == 0
        with self.files.open(self.path, False, True) as file:
            return file.is_cached(0, self.entries * self.entry_bytes)

    def _try_map(self, writable: bool) -> FileMap | None:
        self._map = None
        mapped: FileMap | None = None
        with self.files.open(self.path, False, not writable) as file:
            size: i64 = file.size()
            if writable and size != self.entries_max * self.entry_bytes:
                size = self.entries_max * self.entry_bytes
                file.truncate(size)
            if size > 0:
                mapped = file.map(writable)
            self._mapped_bytes = size
        self._writable = writable
        return mapped

    def _count_entries(self) -> i64:
        """The number of entries before the tail of zeros."""
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
            if mapped is None:
                raise IndexError(f"{self.path} is empty and has no entry {slot}")
        self.touched = True
        position: i64 = slot * self.entry_bytes
        return mapped[position : position + self.entry_bytes]

    def _store(self, entry: bytes) -> None:
        mapped = self._map
        if not self._writable or mapped is None:
            self.load()
            mapped = self._map_file(True)
            self._backed_bytes = self.entries * self.entry_bytes
        if mapped is None or isinstance(mapped, bytes):
            raise TypeError(f"{self.path} cannot be written: it is mapped for lookups only")
        self.touched = True
        position: i64 = self.entries * self.entry_bytes
        if position + self.entry_bytes > self._backed_bytes:
            self._back_page(position + self.entry_bytes)
        mapped[position : position + self.entry_bytes] = entry
        self.entries += 1

    def _back_page(self, needed: i64) -> None:
        """Allocates disk space for the next page of the sparse file with an ordinary write.

        A store into a mapped page without disk space kills the process (SIGBUS); a write raises OSError.
        """
        page_end: i64 = (needed + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        if page_end > self._mapped_bytes:
            page_end = self._mapped_bytes
        with self.files.open(self.path) as file:
            file.write_at(self._backed_bytes, bytes(page_end - self._backed_bytes))
        self._backed_bytes = page_end

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits; the segment then rolls."""
        if self.entries < 0:
            self.load()
        return self.entries >= self.entries_max

    def trim_to_valid_size(self) -> None:
        """Truncates the file to its entries when the segment is closed or the broker stops."""
        self.load()
        used: i64 = self.entries * self.entry_bytes
        if self._map is not None and self._mapped_bytes == used:
            return
        self._map = None  # A map beyond the end of its file must not be accessed any more.
        self._writable = False
        with self.files.open(self.path, True) as file:
            if file.size() != used:
                file.truncate(used)

    def sync(self) -> None:
        """Syncs the entries of the file."""
        with self.files.open(self.path) as file:
            file.sync()

    def _slots_up_to(self, value: i64, field: i64) -> i64:
        """The number of entries with at most ``value`` in the four bytes at ``field``, which ascend."""
        low: i64 = 0
        high: i64 = self.entries
        while low < high:
            middle: i64 = (low + high) >> 1
            if i64(read_i32_be(self._entry(middle), field)) <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def truncate_to_entries(self, entries: i64) -> None:
        """Removes all entries but the first ``entries``, and zeroes their bytes."""
        self.load()
        if entries < self.entries:
            self._truncate_entries(entries)

    def truncate_to_growing(self) -> bool:
        """Removes the entries from the first pair on that does not grow. Returns whether there was one.

        A power failure may lose entries and keep later ones.
        """
        self.load()
        slot: i64 = self._growing()
        all_grow: bool = slot == self.entries
        # Either entry of a pair that does not grow may be wrong. Entries after a hole are removed, too.
        self._truncate_entries(slot if all_grow or slot == 0 else slot - 1)
        return not all_grow

    def _growing(self) -> i64:
        """The number of entries from the first on that grow."""
        raise NotImplementedError

    def damage(self, end: i64) -> str:
        """Describes the damage to the file and its entries; empty if there is none.

        ``end`` is the end of the segment, in the units of the second column.
        """
        if not self.files.exists(self.path):
            return "the file is missing"
        size: i64 = self.files.size(self.path)
        if size % self.entry_bytes != 0:
            return f"its size {size} is not a multiple of {self.entry_bytes}"
        self.load()
        slot: i64 = self._growing()
        if slot < self.entries:
            return f"entry {slot} {self.columns(slot)} does not follow {self.columns(slot - 1)}"
        return self._end_damage(end)

    def columns(self, slot: i64) -> tuple[i64, i64]:
        """Both columns of entry ``slot``; of slot -1 the values that the first entry has to follow."""
        raise NotImplementedError

    def _end_damage(self, end: i64) -> str:
        """Describes the damage to entries that grow: the last one is beyond ``end``. Else empty."""
        raise NotImplementedError

    def _truncate_entries(self, entries: i64) -> None:
        position: i64 = entries * self.entry_bytes
        self._map = None
        self._writable = False
        with self.files.open(self.path) as file:
            size: i64 = file.size()
            file.truncate(position)
            # They are removed now, even after an error: the file gets its size with the next entry.
            self.entries = entries
            file.truncate(size)

    def close_idle(self) -> None:
        """Releases the memory map until it is needed again."""
        if not self.pinned:
            self._map = None
            self._writable = False

    def pin(self) -> None:
        """Maps the file, and keeps it mapped until :meth:`close_handlers`: it is about to be renamed."""
        self.pinned = True
        self.load()
        if self.entries > 0 and self._map is None:
            self._map_file(False)

    def close_handlers(self) -> None:
        """Same as :meth:`close_idle`, called by the log."""
        self.pinned = False
        self.close_idle()
        OPEN_FILES.closed(self)
