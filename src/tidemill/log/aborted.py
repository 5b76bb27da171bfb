"""The aborted transactions of a log, as its segments' indexes tell them: what a reader of committed records
leaves out.

The index of a segment is read once; that of the active one, and those of a log that was cut, again when the
log says that they tell something else now.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Final

from tidemill.log.errors import storage_error
from tidemill.log.log import Log
from tidemill.log.names import DELETED, TRANSACTION_INDEX, offset_name
from tidemill.log.segment import Segment, Slice
from tidemill.log.transaction_index import Aborted, decode_all
from tidemill.model.ports import Files

FEW: Final = 50
"""So many are told without a look at where they begin: 16 bytes each."""

_last_offset = attrgetter("last_offset")


class _Known:
    """What one log's indexes say: aborted transactions by segment, and in one list."""

    __slots__ = ("by_segment", "changes", "log", "segments", "transactions", "truncations")

    def __init__(self, of: Log) -> None:
        self.log = of
        self.segments: list[Segment] = []
        self.by_segment: dict[Segment, list[Aborted]] = {}
        self.transactions: list[Aborted] = []
        self.changes = -1
        self.truncations = int(of.truncations)

    def is_current(self) -> bool:
        """Whether the log has the same segments and noted nothing since."""
        return self.changes == self.log.aborts_noted and self.segments == self.log.segments


class AbortedTransactions:
    """Call it with a log, an offset and what is read from there."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _Known] = {}

    def __call__(self, of: Log, offset: int, found: Slice) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that the records may be of, in order.

        Raises StorageError where an index cannot be read: else aborted records were read as if they were not.

        Those that ended before ``offset`` are left out: their markers are not read any more. Those that begin
        behind the records only where they are many.
        """
        known = self._known.get(of.directory)
        if known is None or known.log is not of or known.truncations != of.truncations:
            self._known = {path: one for path, one in self._known.items() if not one.log.closed}
            known = self._known[of.directory] = _Known(of)
        if not known.is_current():
            self._read(known)
        transactions = known.transactions
        if not transactions:
            return []
        try:
            return self._told(of, transactions, offset, int(found.position + found.size))
        except OSError as problem:
            raise storage_error("read the index of", of.directory, problem) from problem

    @staticmethod
    def _told(of: Log, transactions: list[Aborted], offset: int, end: int) -> list[tuple[int, int]]:
        """What is told of ``transactions``, in the order of their markers; records end at byte ``end``."""
        at = bisect_right(of.segments, offset, key=lambda segment: int(segment.base_offset)) - 1
        segment = of.segments[max(at, 0)]
        following = int(of.segments[at + 1].base_offset) if at + 1 < len(of.segments) else -1

        def is_behind(first: int) -> bool:
            """Whether it lies behind the records, as the offset index tells."""
            return 0 <= following <= first or (first > offset and segment.index.lookup(first) >= end)

        pairs: list[tuple[int, int]] = []
        for place in range(bisect_left(transactions, offset, key=_last_offset), len(transactions)):
            one = transactions[place]
            # All whose markers come later began at its last stable offset or after it.
            if pairs and len(pairs) % FEW == 0 and is_behind(one.last_stable_offset):
                break
            pairs.append((one.first_offset, one.producer_id))
        pairs.sort()
        if len(pairs) > FEW:
            del pairs[bisect_right(pairs, False, key=lambda pair: is_behind(pair[0])) :]
        return [(producer_id, first_offset) for first_offset, producer_id in pairs]

    def _read(self, known: _Known) -> None:
        """Reads what is not known yet. Raises StorageError; what was known stays then."""
        of = known.log
        changes = int(of.aborts_noted)
        before = dict(known.by_segment)
        if changes != known.changes and before:
            # Only to the last of them entries were added.
            before.popitem()
        read: dict[Segment, list[Aborted]] = {}
        for segment in of.segments:
            path = f"{of.directory}/{offset_name(segment.base_offset, TRANSACTION_INDEX)}"
            try:
                found = before.get(segment)
                read[segment] = decode_all(self._index(path, segment)) if found is None else found
            except OSError as problem:
                raise storage_error("read", path, problem) from problem
        known.segments, known.by_segment, known.changes = list(read), read, changes
        known.transactions = [one for found in read.values() for one in found]

    def _index(self, path: str, segment: Segment) -> bytes:
        """What is in the index of ``segment``; nothing where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._files.read(path)
        if segment.replaced:
            # Compaction is just putting another segment in its place; what is read is still the old one.
            with contextlib.suppress(FileNotFoundError):
                return self._files.read(path + DELETED)
        return b""
