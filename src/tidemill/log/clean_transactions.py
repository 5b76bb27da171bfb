"""Which transactions' records and markers may go while a log is cleaned.

Records of an aborted transaction go at once. A marker stays until none of its transaction's batches are met
before it any more; then it gets a delete horizon, as a tombstone does. The index of aborted transactions is
made anew from the markers that stay.

Source: Apache Kafka, ``LogCleaner.scala`` (``CleanedTransactionMetadata``); KIP-98, KIP-534.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tidemill.log.transaction_index import Aborted
from tidemill.records.batch import Batch
from tidemill.records.builder import ABORT_MARKER, COMMIT_MARKER
from tidemill.records.reader import read_records

MARKER_KEY_BYTES = 4


class CleanedTransactions:
    """Walks along a log with the cleaner; :attr:`kept` are the aborted transactions whose markers stay."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self.kept: list[Aborted] = []
        self._coming = [(one.first_offset, one.producer_id, one) for one in aborted]
        heapq.heapify(self._coming)
        self._aborted: dict[int, Aborted] = {}
        self._with_batches: set[int] = set()
        self._committed: set[int] = set()

    def is_aborted(self, batch: Batch) -> bool:
        """Takes in a data batch; whether it is of an aborted transaction."""
        self._begin_up_to(int(batch.last_offset))
        if not batch.is_transactional:
            return False
        producer_id = int(batch.producer_id)
        if producer_id in self._aborted:
            self._with_batches.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def marker_may_go(self, batch: Batch) -> bool:
        """Takes in a control batch; whether no batch of its transaction is left before it."""
        self._begin_up_to(int(batch.last_offset))
        records = read_records(batch)
        if not records:
            return True
        key = records[0].key or b""
        kind = int.from_bytes(key[2:4], "big") if len(key) >= MARKER_KEY_BYTES else -1
        producer_id = int(batch.producer_id)
        if kind == ABORT_MARKER:
            one = self._aborted.pop(producer_id, None)
            if one is None or producer_id not in self._with_batches:
                return True
            self._with_batches.discard(producer_id)
            self.kept.append(one)
            return False
        if kind == COMMIT_MARKER:
            found = producer_id in self._committed
            self._committed.discard(producer_id)
            return not found
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            one = heapq.heappop(self._coming)[2]
            self._aborted.setdefault(one.producer_id, one)
