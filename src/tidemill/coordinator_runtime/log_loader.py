"""Loads a partition of a coordinator's topic into its state machine, record by record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.model.errors import KafkaError
from tidemill.records.batch import Batch
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_cursor import RecordCursor, open_cursor
from tidemill.records.record_reader import iter_stored

ChangeT = TypeVar("ChangeT")


class LogLoader(Generic[ChangeT]):
    """Replays the log of one partition, from its start.

    An unreadable record is skipped, and logged: it costs its own group or transactional id; a failed load
    would cost all of them.
    """

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        decode: Callable[[Batch | Entry, bytes | None, bytes | None], ChangeT | None],
        apply: Callable[[ChangeT, Now], None],
        unpacked_bytes_max: int,
        logger: logging.Logger,
    ) -> None:
        """``decode`` gets a key and a value, with their batch, and returns None for a record without effect.

        It raises KafkaError for an unreadable record. ``apply`` changes the state machine.
        """
        self.records = 0
        self.offset = -1
        self._name = f"{topic}-{partition}"
        self._decode = decode
        self._apply = apply
        self._unpacked_bytes_max = unpacked_bytes_max
        self._logger = logger

    def replay(self, data: bytes, now: Now) -> Iterator[int]:
        """Replays the batches in ``data``; yields the size of each batch header and record, in bytes."""
        for stored in iter_stored(data):
            self.offset = int(stored.last_offset if isinstance(stored, Entry) else stored.base_offset)
            cursor = self._open(stored)
            yield 0
            while cursor is not None and self._step(cursor):
                self.records += 1
                self.offset = int(cursor.offset)
                key, value = cursor.key, cursor.value
                self._replay_record(stored, key, value, now)
                yield len(key or b"") + len(value or b"")

    def _open(self, stored: Batch | Entry) -> RecordCursor | None:
        end = stored.position + stored.size
        try:
            return open_cursor(stored.data, stored.position, end, True, self._unpacked_bytes_max)
        except KafkaError as problem:
            self._skip(problem)
            return None

    def _step(self, cursor: RecordCursor) -> bool:
        try:
            return cursor.step()
        except KafkaError as problem:
            self._skip(problem)
            return False

    def _replay_record(self, stored: Batch | Entry, key: bytes | None, value: bytes | None, now: Now) -> None:
        try:
            change = self._decode(stored, key, value)
        except KafkaError as problem:
            self._skip(problem)
            return
        if change is not None:
            self._apply(change, now)

    def _skip(self, problem: KafkaError) -> None:
        self._logger.error("%s: the data from offset %d is skipped: %s", self._name, self.offset, problem)
