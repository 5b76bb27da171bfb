"""The batches of compacted partitions, with the records and markers that compaction has removed.

Checkers of transactions compare what clients did with whole logs. Compaction removes records that were
replaced, records of aborted transactions, and later the markers: they are taken from each log before its
cleaning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from keyed_messages import is_tombstone, key_of
from transactions_promise import LogBatch, PartitionKey, Record, ended_transactions


class UncleanedLogs:
    """The committed batches of logs, as they were before any cleaning."""

    def __init__(self) -> None:
        self._batches: defaultdict[PartitionKey, dict[int, LogBatch]] = defaultdict(dict)
        self._newest: dict[PartitionKey, dict[bytes, int]] = {}

    def add(self, tp: PartitionKey, batches: Iterable[LogBatch]) -> None:
        """Adds batches of one replica, from which records may be missing."""
        known = self._batches[tp]
        for batch in batches:
            records = {record.offset: record for record in batch.records}
            before = known.get(batch.first)
            if before is not None:
                records |= {record.offset: record for record in before.records}
            known[batch.first] = batch._replace(records=tuple(records[at] for at in sorted(records)))
        self._newest.pop(tp, None)

    def batches(self, tp: PartitionKey) -> list[LogBatch]:
        """Returns the batches of a partition."""
        known = self._batches[tp]
        return [known[first] for first in sorted(known)]

    def aborted(self, tp: PartitionKey) -> frozenset[str]:
        """Returns the messages of aborted transactions."""
        ended = ended_transactions(tp, self.batches(tp))
        return frozenset(record.message for one in ended if not one.is_commit for record in one.records)

    def may_be_removed(self, tp: PartitionKey, record: Record) -> bool:
        """Whether compaction may have removed a committed record: a tombstone, or a newer committed record of
        the key exists. The age of removed tombstones is checked when they are removed.
        """
        newest = self._newest.get(tp)
        if newest is None:
            newest = self._newest[tp] = {}
            for one in ended_transactions(tp, self.batches(tp)):
                for each in one.records if one.is_commit else ():
                    key = key_of(_parsed(each.message))
                    newest[key] = max(newest.get(key, -1), each.offset)
        message = _parsed(record.message)
        return is_tombstone(message) or newest.get(key_of(message), -1) > record.offset


def _parsed(message: str) -> tuple[str, int]:
    producer, _, number = message.rpartition(":")
    return producer, int(number)
