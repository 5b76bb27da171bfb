"""Finds the aborted transactions that a fetch response of a read_committed consumer has to list.

The index of each segment is read once. The index of the active segment, and all indexes of a truncated log,
are read again when the log has recorded further aborts.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Final

from tidemill.log.errors import StorageErrors
from tidemill.log.file_names import DELETED
from tidemill.log.log import Log
from tidemill.log.log_segment import LogRange, LogSegment
from tidemill.log.transaction_index import Aborted, decode_all
from tidemill.model.system_interfaces import Files

UNFILTERED_MAX: Final = 50
"""Up to this number, transactions are returned without a check of their first offsets: 16 bytes each."""

_last_offset = attrgetter("last_offset")


class _CachedIndexes:
    """The cached indexes of one log: aborted transactions by segment, and in one list."""

    __slots__ = ("by_segment", "changes", "log", "segments", "transactions", "truncations")

    def __init__(self, of: Log) -> None:
        self.log = of
        self.segments: list[LogSegment] = []
        self.by_segment: dict[LogSegment, list[Aborted]] = {}
        self.transactions: list[Aborted] = []
        self.changes = -1
        self.truncations = int(of.truncations)

    def is_current(self) -> bool:
        """Whether the log has the same segments and has recorded no further aborts."""
        return self.changes == self.log.aborts_recorded and self.segments == self.log.segments


class AbortedTransactions:
    """Returns the aborted transactions for a log, an offset and the range that is read from there."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, _CachedIndexes] = {}

    def __call__(self, of: Log, offset: int, found: LogRange) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that may have records in the range, in
        order.

        Raises StorageError if an index cannot be read: otherwise aborted records would be returned as
        committed.

        Transactions that ended before ``offset`` are omitted: their markers are not read any more.
        Transactions that begin after the range are omitted only if there are many.
        """
        known = self._known.get(of.directory)
        if known is None or known.log is not of or known.truncations != of.truncations:
            self._known = {path: one for path, one in self._known.items() if not one.log.closed}
            known = self._known[of.directory] = _CachedIndexes(of)
        if not known.is_current():
            self._read(known)
        transactions = known.transactions
        if not transactions:
            return []
        with StorageErrors("read the index of", of.directory):
            return self._select(of, transactions, offset, int(found.position + found.size))

    @staticmethod
    def _select(of: Log, transactions: list[Aborted], offset: int, end: int) -> list[tuple[int, int]]:
        """Selects from ``transactions``, which are in the order of their markers; the range ends at byte
        ``end``.
        """
        at = bisect_right(of.segments, offset, key=lambda segment: int(segment.base_offset)) - 1
        segment = of.segments[max(at, 0)]
        following = int(of.segments[at + 1].base_offset) if at + 1 < len(of.segments) else -1

        def is_behind(first: int) -> bool:
            """Whether ``first`` lies after the range, by the offset index."""
            return 0 <= following <= first or (first > offset and segment.index.lookup(first) >= end)

        pairs: list[tuple[int, int]] = []
        for place in range(bisect_left(transactions, offset, key=_last_offset), len(transactions)):
            one = transactions[place]
            # All transactions with later markers began at its last stable offset or later.
            if pairs and len(pairs) % UNFILTERED_MAX == 0 and is_behind(one.last_stable_offset):
                break
            pairs.append((one.first_offset, one.producer_id))
        pairs.sort()
        if len(pairs) > UNFILTERED_MAX:
            del pairs[bisect_right(pairs, False, key=lambda pair: is_behind(pair[0])) :]
        return [(producer_id, first_offset) for first_offset, producer_id in pairs]

    def _read(self, known: _CachedIndexes) -> None:
        """Reads the missing indexes. Raises StorageError, and then keeps the cache."""
        of = known.log
        changes = int(of.aborts_recorded)
        before = dict(known.by_segment)
        if changes != known.changes and before:
            # Entries were added only to the last one.
            before.popitem()
        read: dict[LogSegment, list[Aborted]] = {}
        for segment in of.segments:
            path = segment.transaction_index_path
            with StorageErrors("read", path):
                found = before.get(segment)
                read[segment] = decode_all(self._index(path, segment)) if found is None else found
        known.segments, known.by_segment, known.changes = list(read), read, changes
        known.transactions = [one for found in read.values() for one in found]

    def _index(self, path: str, segment: LogSegment) -> bytes:
        """The content of the index of ``segment``; empty if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._files.read(path)
        if segment.replaced:
            # Compaction is replacing this segment. The range still belongs to the old one.
            with contextlib.suppress(FileNotFoundError):
                return self._files.read(path + DELETED)
        return b""
