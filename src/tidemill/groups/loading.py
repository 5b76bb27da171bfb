"""Reads ``__consumer_offsets`` back, batch by batch, into a coordinator.

Offsets that were committed in a transaction count once its marker says so, and not at all when it was
aborted; those of a transaction that is still open wait in :attr:`Loader.open_transactions`. Of two offsets of
a partition that count the one holds whose record comes later, wherever the markers are.

Source: Apache Kafka, ``GroupMetadataManager.scala`` (``CommitRecordMetadataAndOffset.olderThan``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidemill.groups.coordinator import Coordinator
from tidemill.groups.effects import Now
from tidemill.groups.offsets import OffsetRecord, OffsetsRecord, decode_record
from tidemill.groups.ports import OFFSETS_TOPIC
from tidemill.model.errors import CorruptMessage, KafkaError
from tidemill.records.batch import Batch
from tidemill.records.builder import COMMIT_MARKER
from tidemill.records.legacy import Entry
from tidemill.records.reader import Record, iter_stored, read_stored

log = logging.getLogger("tidemill.groups")

MARKER_KEY_BYTES = 4
"""Of a control record's key: version INT16, type INT16."""


class Loader:
    """Replays one partition's log, from its start."""

    def __init__(self, coordinator: Coordinator, partition: int) -> None:
        self.coordinator = coordinator
        self.partition = partition
        self.open_transactions: dict[int, dict[tuple[str, str, int], tuple[int, OffsetRecord]]] = {}
        """By producer id and partition of a group: the offset of the last record, and the record."""
        self.records = 0
        self.skipped = 0

    def replay(self, data: bytes, now: Now) -> Iterator[None]:
        """Replays the batches in ``data``; pauses after each record, for the caller to share the loop."""
        for batch in iter_stored(data):
            for record in self._read(batch):
                self.records += 1
                if isinstance(batch, Entry):
                    self._replay_record(None, record, now)
                elif batch.is_control:
                    self._end_transaction(batch, record, now)
                else:
                    self._replay_record(batch, record, now)
                yield

    def _read(self, batch: Batch | Entry) -> list[Record]:
        try:
            return read_stored(batch)
        except KafkaError as problem:
            self._skip(batch.last_offset if isinstance(batch, Entry) else batch.base_offset, problem)
            return []

    def _skip(self, offset: int, problem: KafkaError) -> None:
        # What cannot be read costs its own offsets or group; refusing to load would cost all of them.
        self.skipped += 1
        log.error(
            "%s-%d: what begins at offset %d is skipped: %s", OFFSETS_TOPIC, self.partition, offset, problem
        )

    def _replay_record(self, batch: Batch | None, record: Record, now: Now) -> None:
        try:
            change = decode_record(record.key, record.value)
        except CorruptMessage as problem:
            self._skip(record.offset, problem)
            return
        if change is None:
            return
        if batch is not None and batch.is_transactional and isinstance(change, OffsetRecord):
            waiting = self.open_transactions.setdefault(batch.producer_id, {})
            waiting[change.group, change.topic, change.partition] = record.offset, change
        else:
            self._take(record.offset, change, now)

    def _take(self, offset: int, change: OffsetsRecord, now: Now) -> None:
        """Replays the record at ``offset``; what waits and is older will not count any more."""
        if isinstance(change, OffsetRecord) and change.value is not None:
            key = (change.group, change.topic, change.partition)
            for waiting in self.open_transactions.values():
                if key in waiting and waiting[key][0] < offset:
                    del waiting[key]
        self.coordinator.replay(change, now)

    def _end_transaction(self, batch: Batch, record: Record, now: Now) -> None:
        changes = self.open_transactions.pop(batch.producer_id, {})
        key = record.key or b""
        if len(key) < MARKER_KEY_BYTES or int.from_bytes(key[2:4], "big") != COMMIT_MARKER:
            return
        for offset, change in changes.values():
            self._take(offset, change, now)
