"""Compares the indexes of a segment with its batches, while those are walked once.

An index is a hint from where to search. What makes it wrong is a search that begins behind what it looks for:
an offset entry that leads past a batch which holds its offset, a time entry before whose offset a later
record lies. An entry that merely is not exact costs a longer search, and is told as a note: Apache Kafka
before version 4 writes such entries when it compacts.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.log.findings import Check
from tidemill.log.index_entries import EntryFile, aborted_entries, offset_entries, time_entries
from tidemill.log.names import INDEX, TIME_INDEX, TRANSACTION_INDEX, offset_name
from tidemill.log.scan import BatchScan
from tidemill.log.transaction_index import ABORTED_VERSION, Aborted


def _open(check: Check, path: str, kind: str) -> EntryFile | None:
    reader = {INDEX: offset_entries, TIME_INDEX: time_entries, TRANSACTION_INDEX: aborted_entries}[kind]
    entries = reader(check.files, path)
    if entries.fault:
        check.damage(
            path, f"{entries.fault}; a start makes it anew" if kind != TRANSACTION_INDEX else entries.fault
        )
    return entries


class _Entries:
    """One at a time, with the order checked."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str], kind: str) -> None:
        self.check = check
        self.base_offset = base_offset
        name = offset_name(base_offset, kind)
        self.path = f"{directory}/{name}"
        self.entries = _open(check, self.path, kind) if name in names else None
        self.rows: Iterator[tuple[int, ...]] = iter(()) if self.entries is None else self.entries.rows()
        self.slot = -1
        self.row: tuple[int, ...] | None = None
        self.off = False
        """Whether nothing more is said: its order is broken, one message is enough."""

    def next(self) -> None:
        """Goes to the next entry; :attr:`row` is None behind the last."""
        before = self.row
        self.row = None if self.off else next(self.rows, None)
        self.slot += 1
        if self.row is not None and not self.grows(before, self.row):
            wrong = "cannot be the first" if before is None else f"does not follow {before}"
            self.check.damage(self.path, f"entry {self.slot} {self.row} {wrong}; a start makes it anew")
            self.off = True
            self.row = None

    def grows(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        """Whether ``row`` may stand behind ``before`` (None: it is the first)."""
        raise NotImplementedError


class OffsetEntries(_Entries):
    """``.index``."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, INDEX)
        self.inexact = 0
        self.last_offset = -1
        self.next()

    def grows(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        return row[0] >= 0 and row[1] >= 0 and (before is None or (row[0] > before[0] and row[1] > before[1]))

    def batch(self, scan: BatchScan) -> None:
        """The walk is at a batch."""
        position = int(scan.position)
        while self.row is not None and self.row[1] < position:
            self.check.damage(
                self.path, f"entry {self.slot} leads to byte {self.row[1]}, where no batch begins"
            )
            self.next()
        if self.row is not None and self.row[1] == position:
            offset = self.base_offset + self.row[0]
            if offset <= self.last_offset:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} leads past the batch that holds its offset {offset}, "
                    f"to byte {position}",
                )
            elif offset != scan.last_offset:
                self.inexact += 1
            self.next()
        self.last_offset = int(scan.last_offset)

    def end(self, size: int) -> None:
        """The walk came to the end of the log file, ``size`` bytes."""
        if self.row is not None:
            self.check.damage(
                self.path,
                f"entry {self.slot} leads to byte {self.row[1]}: no batch begins there, the log has {size}",
            )
        if self.inexact:
            self.check.note(self.path, f"{self.inexact} entries are not exact: searches take a little longer")


class TimeEntries(_Entries):
    """``.timeindex``."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, TIME_INDEX)
        self.max_timestamp = -1
        self.indexed_timestamp = -1
        self.inexact = 0
        self.next()

    def grows(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        return row[1] >= 0 and (before is None or (row[0] > before[0] and row[1] >= before[1]))

    def batch(self, scan: BatchScan) -> None:
        """The walk is at a batch."""
        timestamp = int(scan.max_timestamp)
        while self.row is not None and self.base_offset + self.row[1] <= scan.last_offset:
            if self.max_timestamp > self.row[0]:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} says that {self.row[0]} is the largest timestamp up to offset "
                    f"{self.base_offset + self.row[1]}; {self.max_timestamp} lies before it",
                )
            elif self.row[0] != timestamp:
                self.inexact += 1
            self.indexed_timestamp = self.row[0]
            self.next()
        self.max_timestamp = max(self.max_timestamp, timestamp)

    def end(self, *, is_last: bool) -> None:
        """The walk came to the end. ``is_last``: more may still be written to this segment."""
        if self.row is not None:
            self.check.damage(
                self.path,
                f"entry {self.slot} has offset {self.base_offset + self.row[1]}, "
                "which lies behind the segment's end",
            )
        elif (
            not is_last
            and not self.off
            and self.entries is not None
            and self.indexed_timestamp < self.max_timestamp
        ):
            self.check.damage(
                self.path,
                f"it ends with timestamp {self.indexed_timestamp}, the segment has {self.max_timestamp}: "
                "retention and searches by time take the segment for older than it is",
            )
        if self.inexact:
            self.check.note(
                self.path, f"{self.inexact} entries are not exact: searches by time take a little longer"
            )


class AbortedEntries(_Entries):
    """``.txnindex``: a reader of committed records is told by it what to leave out."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, TRANSACTION_INDEX)
        self.next()

    def grows(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        entry = Aborted(*row)
        return (
            entry.version == ABORTED_VERSION
            and 0 <= entry.first_offset <= entry.last_offset
            and entry.last_offset >= self.base_offset
            and (before is None or entry.last_offset > Aborted(*before).last_offset)
        )

    def abort(
        self, path: str, position: int, producer_id: int, first_offset: int, marker_offset: int
    ) -> None:
        """The walk is at an abort marker; the transaction begins at ``first_offset`` (-1: unseen)."""
        while self.row is not None and Aborted(*self.row).last_offset < marker_offset:
            self.next()
        entry = None if self.row is None else Aborted(*self.row)
        if entry is None or entry.last_offset != marker_offset:
            if first_offset >= 0 and not self.off:
                self.check.damage(
                    path,
                    f"the transaction of producer {producer_id} from offset {first_offset} on is aborted at "
                    f"{marker_offset}, and {self.path} does not say so: readers of committed records get it",
                    position,
                )
            return
        if entry.producer_id != producer_id or (0 <= first_offset < entry.first_offset):
            self.check.damage(
                self.path,
                f"entry {self.slot} says producer {entry.producer_id} from offset {entry.first_offset}, "
                f"the log producer {producer_id} from offset {first_offset}",
            )
        self.next()

    def end(self, end_offset: int) -> None:
        """The walk came to the end of the segment."""
        while self.row is not None:
            if Aborted(*self.row).last_offset >= end_offset:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} ends at offset {Aborted(*self.row).last_offset}, "
                    f"the segment at {end_offset}",
                )
                return
            self.next()
