"""Loads ``__consumer_offsets``, batch by batch, into the state machine of its groups.

Offsets of a transaction take effect at its commit marker, and are dropped at an abort marker: see
:meth:`~tidemill.groups.group_metadata_manager.GroupMetadataManager.transaction_ended`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import OffsetRecord, TransactionalOffset, decode_record
from tidemill.model.errors import CorruptMessage, KafkaError
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import COMMIT, decode_control_record
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_reader import Record, iter_stored, read_stored

logger = logging.getLogger("tidemill.groups")


class OffsetsLoader:
    """Replays the log of one partition, from its start."""

    def __init__(self, state_machine: GroupMetadataManager, partition: int, unpacked_bytes_max: int) -> None:
        self.state_machine = state_machine
        self.partition = partition
        self.unpacked_bytes_max = unpacked_bytes_max
        self.records = 0
        self.offset = -1
        """The offset of the batch or record that was read last; -1 before the first one."""

    def replay(self, data: bytes, now: Now) -> Iterator[None]:
        """Replays the batches in ``data``; yields after each record, so that other tasks can run."""
        for batch in iter_stored(data):
            self.offset = batch.last_offset if isinstance(batch, Entry) else batch.base_offset
            for record in self._read(batch):
                self.records += 1
                self.offset = record.offset
                if isinstance(batch, Entry):
                    self._replay_record(None, record, now)
                elif batch.is_control:
                    self._end_transaction(batch, record, now)
                else:
                    self._replay_record(batch, record, now)
                yield

    def _read(self, batch: Batch | Entry) -> list[Record]:
        try:
            return read_stored(batch, True, self.unpacked_bytes_max)
        except KafkaError as problem:
            self._skip(problem)
            return []

    def _skip(self, problem: KafkaError) -> None:
        # An unreadable record costs its own offsets or group; a failed load would cost all of them.
        logger.error(
            "%s-%d: the data from offset %d is skipped: %s",
            OFFSETS_TOPIC,
            self.partition,
            self.offset,
            problem,
        )

    def _replay_record(self, batch: Batch | None, record: Record, now: Now) -> None:
        try:
            change = decode_record(record.key, record.value)
        except CorruptMessage as problem:
            self._skip(problem)
            return
        if change is None:
            return
        if batch is not None and batch.is_transactional and isinstance(change, OffsetRecord):
            self.state_machine.replay(TransactionalOffset(int(batch.producer_id), change), now)
        else:
            self.state_machine.replay(change, now)

    def _end_transaction(self, batch: Batch, record: Record, now: Now) -> None:
        kind = decode_control_record(record.key, record.value).control_type
        self.state_machine.transaction_ended(int(batch.producer_id), kind == COMMIT, now)
