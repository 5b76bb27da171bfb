"""Compacted logs of transactions, as they were before their cleaning; and what may be removed from them."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from compaction_promise import CompactionPromise
from keyed_messages import is_tombstone, key_of
from promises import Message
from transactions_promise import LogBatch, Record
from uncleaned_logs import UncleanedLogs

TP = ("x", 0)
FIRST = next(Message("a", one) for one in count() if not is_tombstone(("a", one)))
NEWER = next(
    one
    for one in (Message("b", number) for number in count())
    if key_of(one) == key_of(FIRST) and not is_tombstone(one)
)
TOMBSTONE = next(Message("a", one) for one in count() if is_tombstone(("a", one)))


def batch(first: int, producer_id: int, *messages: Message) -> LogBatch:
    """A batch of a transaction."""
    records = tuple(Record(first + at, str(message)) for at, message in enumerate(messages))
    return LogBatch(first, first + 1, producer_id, 0, True, None, -1, records)


def marker(first: int, producer_id: int, *, is_commit: bool) -> LogBatch:
    return LogBatch(first, first, producer_id, 0, True, is_commit, 0, ())


def test_removed_records_and_batches_are_kept() -> None:
    logs = UncleanedLogs()
    whole = [batch(0, 1, FIRST, NEWER), marker(2, 1, is_commit=True)]
    logs.add(TP, whole)
    logs.add(TP, [batch(0, 1, FIRST), batch(3, 2, TOMBSTONE)])
    assert logs.batches(TP) == [*whole, batch(3, 2, TOMBSTONE)]


def test_records_of_aborted_transactions() -> None:
    logs = UncleanedLogs()
    logs.add(TP, [batch(0, 1, FIRST), batch(2, 2, NEWER)])
    assert logs.aborted(TP) == frozenset()
    logs.add(TP, [marker(4, 2, is_commit=False), marker(5, 1, is_commit=True)])
    assert logs.aborted(TP) == {str(NEWER)}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_record_is_replaced_by_a_newer_committed_one(is_commit: bool) -> None:
    logs = UncleanedLogs()
    logs.add(TP, [batch(0, 1, FIRST), batch(2, 2, NEWER)])
    logs.add(TP, [marker(4, 1, is_commit=True), marker(5, 2, is_commit=is_commit)])
    assert logs.may_be_removed(TP, Record(0, str(FIRST))) is is_commit
    assert not logs.may_be_removed(TP, Record(2, str(NEWER)))


def test_the_order_of_commits_does_not_matter() -> None:
    logs = UncleanedLogs()
    logs.add(TP, [batch(0, 1, FIRST), batch(2, 2, NEWER)])
    logs.add(TP, [marker(4, 2, is_commit=True), marker(5, 1, is_commit=True)])
    assert logs.may_be_removed(TP, Record(0, str(FIRST)))


def test_a_tombstone_is_removed_without_a_newer_record() -> None:
    assert UncleanedLogs().may_be_removed(TP, Record(0, str(TOMBSTONE)))


@pytest.mark.parametrize(("aborted", "explained"), [((), {0}), ((NEWER,), set()), ((FIRST, NEWER), {0})])
def test_an_aborted_record_is_removed_and_replaces_nothing(
    aborted: tuple[Message, ...], explained: set[int]
) -> None:
    excuses: list[str] = []
    promises: Any = SimpleNamespace(
        settings_of=lambda topic: SimpleNamespace(compacts=True),
        excused=lambda name: excuses.append(name) or True,
        logs={(*TP, b""): SimpleNamespace(acknowledged={}, read={})},
        partitions={TP: SimpleNamespace(holders=SimpleNamespace(holds=lambda at_s: True))},
        sent={},
    )
    checker = CompactionPromise(promises)
    checker.aborted[TP] = frozenset(map(str, aborted))
    assert checker.explains(TP, b"", {2: NEWER}, {0: FIRST}) == explained
    assert excuses == ([] if not explained else ["aborted-removed" if aborted else "compacted"])
