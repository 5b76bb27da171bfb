"""Reads the entries of an index file in order, in pieces, without mapping or changing it: for tools.

The layouts are those of :mod:`tidemill.log.offset_index`, :mod:`tidemill.log.time_index` and
:mod:`tidemill.log.transaction_index`. The number of entries is determined when a reader is created: entries
that a running broker adds later are not read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from tidemill.log.offset_index import OFFSET_ENTRY_BYTES
from tidemill.log.time_index import TIME_ENTRY_BYTES
from tidemill.log.transaction_index import ABORTED_ENTRY, ABORTED_ENTRY_BYTES
from tidemill.model.system_interfaces import Files

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_ENTRIES_A_READ: Final = 4096


class EntryFile:
    """The raw entries of an index file. ``fault`` describes a wrong size; empty if there is none."""

    def __init__(self, files: Files, path: str, layout: struct.Struct, entry_bytes: int) -> None:
        self.layout = layout
        self.entry_bytes = entry_bytes
        self.file = files.open(path, read_only=True)
        self.size = int(self.file.size())
        is_whole = self.size % entry_bytes == 0
        self.fault = "" if is_whole else f"its size {self.size} is not a multiple of {entry_bytes}"
        self.count = self._used(self.size // entry_bytes)

    def _used(self, high: int) -> int:
        """Returns the number of entries before the zeros at the end of a file that is not closed yet."""
        if high == 0 or not self._is_zero(high - 1):
            return high
        return bisect_left(range(high), True, key=self._is_zero)

    def _is_zero(self, slot: int) -> bool:
        return not any(self.file.read_at(slot * self.entry_bytes, self.entry_bytes))

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Yields the stored entries. Ends early where the file was truncated in the meantime."""
        slot = 0
        while slot < self.count:
            wanted = min(_ENTRIES_A_READ, self.count - slot) * self.entry_bytes
            data = bytes(self.file.read_at(slot * self.entry_bytes, wanted))
            whole = len(data) // self.entry_bytes
            if whole == 0:
                return
            yield from self.layout.iter_unpack(data[: whole * self.entry_bytes])
            slot += whole


def offset_entries(files: Files, path: str) -> EntryFile:
    """Opens an ``.index`` file: (relative offset, position)."""
    return EntryFile(files, path, _OFFSET_ENTRY, OFFSET_ENTRY_BYTES)


def time_entries(files: Files, path: str) -> EntryFile:
    """Opens a ``.timeindex`` file: (timestamp, relative offset)."""
    return EntryFile(files, path, _TIME_ENTRY, TIME_ENTRY_BYTES)


def aborted_entries(files: Files, path: str) -> EntryFile:
    """Opens a ``.txnindex`` file: the fields of :class:`~tidemill.log.transaction_index.Aborted`."""
    return EntryFile(files, path, ABORTED_ENTRY, ABORTED_ENTRY_BYTES)
