"""The state of one batch by the records of the control topic: which attempt is valid, which is superseded.

The order of the records decides, and each reader that has read up to the same record decides the same:

- The attempts of a batch are ordered by the first ``begin`` of their tokens. A later one is newer.
- A ``decision`` is valid if its token has begun before it, no newer token has begun before it, and no
  ``abandon`` of its token precedes it. The first valid one decides which transactions form the batch.
- A further decision is valid only if it replaces the valid one before it, and changes only winners that were
  lost before it. The last valid one applies.
- A batch is done after its ``done``, or that of a later batch.
- Of two batches that are not done, the one whose first record comes first is written first, whatever their
  numbers. While it is not done, no transaction of the other one is opened: a commit may therefore abort each
  open transaction of the query that it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.pipeline.exactly_once.control_records import (
    NO_DECISION,
    Abandon,
    Batch,
    Begin,
    Decision,
    Done,
    Lost,
    StoredRecord,
    Token,
    Winner,
)


class ValidDecision(NamedTuple):
    """The decision that applies, and its lost winners."""

    offset: int
    decision: Decision
    lost: frozenset[int]
    """Tasks whose transactions were aborted, and were not replaced yet."""

    @property
    def winners(self) -> tuple[Winner, ...]:
        """The transactions that form the batch."""
        return self.decision.winners


class BatchState:
    """The state of one batch at an offset of the control partition.

    ``stored`` are the records of the query in the order of their offsets. Of other batches they tell which
    are done, and which one is to be completed first.
    """

    def __init__(self, batch: Batch, stored: Iterable[StoredRecord]) -> None:
        self.batch = batch
        self.is_done = False
        self.valid: ValidDecision | None = None
        self.valid_offsets: set[int] = set()
        self.obsolete: list[StoredRecord] = []
        """The records that the ``done`` of this batch makes obsolete."""
        self._begun: set[Token] = set()
        self._newest: Token | None = None
        self._abandoned: set[Token] = set()
        self._unfinished: dict[int, None] = {}
        self._done_number = -1
        for one in stored:
            self._add(one)

    def _add(self, one: StoredRecord) -> None:
        record = one.record
        if record.batch.query != self.batch.query:
            return
        number = record.batch.number
        if number < self.batch.number or (number == self.batch.number and not isinstance(record, Done)):
            self.obsolete.append(one)
        if isinstance(record, Done):
            self._done_number = max(self._done_number, number)
            self.is_done = self._done_number >= self.batch.number
            self._unfinished = {each: None for each in self._unfinished if each > self._done_number}
            return
        if number > self._done_number:
            self._unfinished.setdefault(number)
        if number != self.batch.number:
            return
        if isinstance(record, Begin):
            if record.token not in self._begun:
                self._begun.add(record.token)
                self._newest = record.token
        elif isinstance(record, Abandon):
            self._abandoned.add(record.token)
        elif isinstance(record, Lost):
            self._lose(record)
        elif self._is_valid(record):
            self.valid_offsets.add(one.offset)
            self.valid = ValidDecision(one.offset, record, frozenset())

    def _lose(self, lost: Lost) -> None:
        if self.valid is not None and self.valid.offset == lost.decision:
            self.valid = self.valid._replace(lost=self.valid.lost | lost.tasks)

    def _is_valid(self, decision: Decision) -> bool:
        if self.is_superseded(decision.token) or decision.token in self._abandoned:
            return False
        if self.valid is None:
            return decision.replaces == NO_DECISION
        if decision.replaces != self.valid.offset:
            return False
        before = {one.task: one for one in self.valid.winners}
        after = {one.task: one for one in decision.winners}
        changed = {task for task, one in after.items() if before.get(task) != one}
        return before.keys() == after.keys() and changed <= self.valid.lost

    def has_begun(self, token: Token) -> bool:
        """Whether this attempt has begun."""
        return token in self._begun

    def is_superseded(self, token: Token) -> bool:
        """Whether this is not the newest attempt that has begun."""
        return token != self._newest

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The batches that have begun and are not done, in the order of their first records."""
        return tuple(self._unfinished)

    @property
    def to_complete_first(self) -> int | None:
        """Another batch that has begun before this one and is not done; None without one."""
        first = next(iter(self._unfinished), None)
        return None if first == self.batch.number else first
