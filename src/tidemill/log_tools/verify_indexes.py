"""Compares the indexes of a segment with its batches, in one pass over them.

An index is a hint for the start of a search. It is damaged when a search would start behind its target: an
offset entry whose position is past the batch with its offset, or a time entry with a later record before its
offset. An entry that is merely inexact makes searches longer, and is reported as a note: Apache Kafka before
version 4 writes such entries during compaction.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import INDEX, TIME_INDEX, TRANSACTION_INDEX, offset_name
from tidemill.log.transaction_index import ABORTED_VERSION, Aborted
from tidemill.log_tools.findings import Check
from tidemill.log_tools.index_entries import EntryFile, aborted_entries, offset_entries, time_entries


def _open(check: Check, path: str, kind: str) -> EntryFile | None:
    reader = {INDEX: offset_entries, TIME_INDEX: time_entries, TRANSACTION_INDEX: aborted_entries}[kind]
    entries = reader(check.files, path)
    if entries.fault:
        check.damage(
            path,
            f"{entries.fault}; the next start rebuilds it" if kind != TRANSACTION_INDEX else entries.fault,
        )
    return entries


class _Entries:
    """Iterates over the entries of an index, and checks their order."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str], kind: str) -> None:
        self.check = check
        self.base_offset = base_offset
        name = offset_name(base_offset, kind)
        self.path = f"{directory}/{name}"
        self.entries = _open(check, self.path, kind) if name in names else None
        self.rows: Iterator[tuple[int, ...]] = iter(()) if self.entries is None else self.entries.rows()
        self.slot = -1
        self.row: tuple[int, ...] | None = None
        self.suppressed = False
        """Whether further findings are suppressed: the order is broken, and one message is enough."""

    def next(self) -> None:
        """Moves to the next entry; :attr:`row` is None after the last."""
        before = self.row
        self.row = None if self.suppressed else next(self.rows, None)
        self.slot += 1
        if self.row is not None and not self.may_follow(before, self.row):
            wrong = "cannot be the first" if before is None else f"does not follow {before}"
            self.check.damage(self.path, f"entry {self.slot} {self.row} {wrong}; the next start rebuilds it")
            self.suppressed = True
            self.row = None

    def may_follow(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        """Whether ``row`` may follow ``before`` (None: it is the first)."""
        raise NotImplementedError


class OffsetEntries(_Entries):
    """The entries of an ``.index`` file."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, INDEX)
        self.inexact = 0
        self.last_offset = -1
        self.next()

    def may_follow(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        return row[0] >= 0 and row[1] >= 0 and (before is None or (row[0] > before[0] and row[1] > before[1]))

    def batch(self, scan: BatchScan) -> None:
        """Compares the entries with the current batch."""
        position = int(scan.position)
        while self.row is not None and self.row[1] < position:
            self.check.damage(
                self.path, f"entry {self.slot} points to byte {self.row[1]}, where no batch starts"
            )
            self.next()
        if self.row is not None and self.row[1] == position:
            offset = self.base_offset + self.row[0]
            if offset <= self.last_offset:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} points past the batch with its offset {offset}, to byte {position}",
                )
            elif offset != scan.last_offset:
                self.inexact += 1
            self.next()
        self.last_offset = int(scan.last_offset)

    def end(self, size: int) -> None:
        """Checks the remaining entries at the end of the log file of ``size`` bytes."""
        if self.row is not None:
            self.check.damage(
                self.path,
                f"entry {self.slot} points to byte {self.row[1]}: no batch starts there, the log has {size}",
            )
        if self.inexact:
            self.check.note(self.path, f"{self.inexact} entries are inexact: searches take a little longer")


class TimeEntries(_Entries):
    """The entries of a ``.timeindex`` file."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, TIME_INDEX)
        self.max_timestamp = -1
        self.indexed_timestamp = -1
        self.inexact = 0
        self.next()

    def may_follow(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
        return row[1] >= 0 and (before is None or (row[0] > before[0] and row[1] >= before[1]))

    def batch(self, scan: BatchScan) -> None:
        """Compares the entries with the current batch."""
        timestamp = int(scan.max_timestamp)
        while self.row is not None and self.base_offset + self.row[1] <= scan.last_offset:
            if self.max_timestamp > self.row[0]:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} says that {self.row[0]} is the largest timestamp up to offset "
                    f"{self.base_offset + self.row[1]}; {self.max_timestamp} is before it",
                )
            elif self.row[0] != timestamp:
                self.inexact += 1
            self.indexed_timestamp = self.row[0]
            self.next()
        self.max_timestamp = max(self.max_timestamp, timestamp)

    def end(self, *, is_last: bool) -> None:
        """Checks the remaining entries. ``is_last``: the segment may still be written to."""
        if self.row is not None:
            self.check.damage(
                self.path,
                f"entry {self.slot} has offset {self.base_offset + self.row[1]}, "
                "which is beyond the end of the segment",
            )
        elif (
            not is_last
            and not self.suppressed
            and self.entries is not None
            and self.indexed_timestamp < self.max_timestamp
        ):
            self.check.damage(
                self.path,
                f"it ends with timestamp {self.indexed_timestamp}, the segment has {self.max_timestamp}: "
                "retention and searches by time assume that the segment is older than it is",
            )
        if self.inexact:
            self.check.note(
                self.path, f"{self.inexact} entries are inexact: searches by time take a little longer"
            )


class AbortedEntries(_Entries):
    """The entries of a ``.txnindex`` file: the transactions that read_committed consumers skip."""

    def __init__(self, check: Check, directory: str, base_offset: int, names: set[str]) -> None:
        super().__init__(check, directory, base_offset, names, TRANSACTION_INDEX)
        self.next()

    def may_follow(self, before: tuple[int, ...] | None, row: tuple[int, ...]) -> bool:
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
        """Compares the entries with an abort marker; ``first_offset`` is the transaction's (-1: unknown)."""
        while self.row is not None and Aborted(*self.row).last_offset < marker_offset:
            self.next()
        entry = None if self.row is None else Aborted(*self.row)
        if entry is None or entry.last_offset != marker_offset:
            if first_offset >= 0 and not self.suppressed:
                self.check.damage(
                    path,
                    f"the transaction of producer {producer_id} from offset {first_offset} is aborted at "
                    f"{marker_offset}, but {self.path} lacks it: read_committed consumers get its records",
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
        """Checks the remaining entries at the end of the segment."""
        while self.row is not None:
            if Aborted(*self.row).last_offset >= end_offset:
                self.check.damage(
                    self.path,
                    f"entry {self.slot} ends at offset {Aborted(*self.row).last_offset}, "
                    f"the segment at {end_offset}",
                )
                return
            self.next()
