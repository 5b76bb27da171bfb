"""Determines which records and markers of transactions may be removed while a log is cleaned.

Records of an aborted transaction are removed at once. A marker is kept until no batch of its transaction
precedes it any more; then it gets a delete horizon, like a tombstone. The index of aborted transactions is
rebuilt from the remaining markers.

Source: Apache Kafka, ``LogCleaner.scala`` (``CleanedTransactionMetadata``); KIP-98, KIP-534.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tidemill.log.transaction_index import Aborted
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import ABORT, COMMIT, read_control_record


class CleanedTransactions:
    """Follows the cleaner through a log; :attr:`kept` are the aborted transactions whose markers remain."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self.kept: list[Aborted] = []
        self._coming = [(one.first_offset, one.producer_id, one) for one in aborted]
        heapq.heapify(self._coming)
        self._aborted: dict[int, Aborted] = {}
        self._with_batches: set[int] = set()
        self._committed: set[int] = set()

    def is_aborted(self, batch: Batch) -> bool:
        """Processes a data batch. Returns whether it belongs to an aborted transaction."""
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
        """Processes a control batch. Returns whether no batch of its transaction precedes it any more.

        Raises CorruptMessage for a malformed batch.
        """
        self._begin_up_to(int(batch.last_offset))
        record = read_control_record(batch)
        if record is None:
            return True
        producer_id = int(batch.producer_id)
        if record.control_type == ABORT:
            one = self._aborted.pop(producer_id, None)
            if one is None or producer_id not in self._with_batches:
                return True
            self._with_batches.discard(producer_id)
            self.kept.append(one)
            return False
        if record.control_type == COMMIT:
            found = producer_id in self._committed
            self._committed.discard(producer_id)
            return not found
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            one = heapq.heappop(self._coming)[2]
            self._aborted.setdefault(one.producer_id, one)
