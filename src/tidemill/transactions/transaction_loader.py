"""Loads ``__transaction_state``, batch by batch, into the state machine of its transactional ids."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.model.errors import KafkaError
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_reader import iter_stored, read_stored
from tidemill.transactions.transaction_log import decode_record
from tidemill.transactions.transaction_state_manager import TransactionStateManager

logger = logging.getLogger("tidemill.transactions")


class TransactionLoader:
    """Replays the log of one partition, from its start."""

    def __init__(self, machine: TransactionStateManager, partition: int, unpacked_bytes_max: int) -> None:
        self.machine = machine
        self.partition = partition
        self.unpacked_bytes_max = unpacked_bytes_max
        self.records = 0
        self.offset = -1
        """The offset of the batch or record that was read last; -1 before the first one."""

    def replay(self, data: bytes, now: Now) -> Iterator[None]:
        """Replays the batches in ``data``; yields after each record, so that other tasks can run."""
        for batch in iter_stored(data):
            self.offset = batch.last_offset if isinstance(batch, Entry) else batch.base_offset
            if not isinstance(batch, Entry) and batch.is_control:
                continue
            try:
                records = read_stored(batch, True, self.unpacked_bytes_max)
            except KafkaError as problem:
                self._skip(problem)
                continue
            for record in records:
                self.records += 1
                self.offset = record.offset
                try:
                    change = decode_record(record.key, record.value)
                except KafkaError as problem:
                    self._skip(problem)
                    continue
                if change is not None:
                    self.machine.replay(change, now)
                yield

    def _skip(self, problem: KafkaError) -> None:
        # An unreadable record costs its own transactional id; a failed load would cost all of them.
        logger.error(
            "%s-%d: the data from offset %d is skipped: %s",
            TRANSACTION_TOPIC,
            self.partition,
            self.offset,
            problem,
        )
