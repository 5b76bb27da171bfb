"""Polls that Ctrl-C interrupts: no record is committed, or skipped, that was not returned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from default_limits import CompletedFetch
from record_builders import build_batch
from tidemill.client import (
    Consumer,
    TopicPartition,
    completed_fetch,
    consumer,
    fetched_records,
    subscription_state,
)
from tidemill.records.record_reader import read_stored
from tidemill.wire.fetch_layout import FetchedPartition

ITEMS = [TopicPartition("t", 0), TopicPartition("t", 1)]
BATCHES, BATCH_RECORDS = 2, 2
COUNT = len(ITEMS) * BATCHES * BATCH_RECORDS
FILES = {module.__file__ for module in (completed_fetch, consumer, fetched_records, subscription_state)}


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line of the consumer that runs, counted from 0."""

    def __init__(self, lines: int) -> None:
        self.lines = lines

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.lines -= 1
            if self.lines < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


class Reader:
    """A consumer whose fetches are answered at once, and the records that it has returned."""

    def __init__(self) -> None:
        self.consumer = Consumer("unused:1", max_poll_records=3)
        self.consumer.assign(ITEMS)
        for item in ITEMS:
            self.consumer.seek(item, 0)
        self.returned: dict[TopicPartition, list[int]] = {item: [] for item in ITEMS}
        self.consumer._network_client.needs_refresh = lambda: False  # type: ignore[method-assign]
        self.consumer._fetcher.send_fetches = self.answer  # type: ignore[method-assign]
        self.answer()

    def answer(self, ahead: dict[TopicPartition, int] | None = None) -> float:
        fetches = self.consumer._fetcher.completed_fetches
        busy = {fetch.topic_partition for fetch in fetches}
        for item, position in self.consumer._subscriptions.positions.items():
            offset = position.offset if ahead is None else ahead.get(item, position.offset)
            if item in busy or offset is None or offset >= BATCHES * BATCH_RECORDS:
                continue
            data = b"".join(
                build_batch([(1, None, b"v", None)] * BATCH_RECORDS, base_offset=at * BATCH_RECORDS)
                for at in range(BATCHES)
            )
            response = FetchedPartition(b"t", item.partition, data)
            response.end = len(data)
            fetches.append(CompletedFetch(item, response, offset, committed_only=False, check_crcs=True))
        return 0.0

    def poll(self) -> None:
        for record in self.consumer.poll(0.0):
            self.returned[TopicPartition(record.topic, record.partition)].append(record.offset)

    def poll_arrow(self) -> None:
        table = self.consumer.poll_arrow(0.0)
        for row in [] if table is None else table.to_pylist():
            self.returned[TopicPartition(row["topic"], row["partition"])].append(row["offset"])

    def iterate(self) -> None:
        for record in self.consumer:
            self.returned[TopicPartition(record.topic, record.partition)].append(record.offset)
            if self.is_complete():
                return

    def is_complete(self) -> bool:
        return sum(map(len, self.returned.values())) >= COUNT

    def read(self, method: Callable[[Reader], None], lines: int) -> bool:
        """Reads all records in a ``with`` block; returns False if the interrupt ended it."""
        former = sys.gettrace()
        try:
            with self.consumer:
                sys.settrace(Interrupt(lines))
                while not self.is_complete():
                    method(self)
                sys.settrace(None)
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(former)
        return True


@pytest.mark.parametrize("method", [Reader.poll, Reader.poll_arrow, Reader.iterate])
def test_an_interrupted_poll_commits_only_returned_records(method: Callable[[Reader], None]) -> None:
    lines = 0
    while not (reader := Reader()).read(method, lines):
        committed = reader.consumer._subscriptions.all_consumed()
        for item, offsets in reader.returned.items():
            assert committed[item][0] <= len(offsets), f"interrupted before line {lines}"
        lines += 1
    assert lines > 50
    assert reader.returned == {item: list(range(BATCHES * BATCH_RECORDS)) for item in ITEMS}


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.consumer.close()


@pytest.mark.parametrize("problem", [KeyboardInterrupt, TimeoutError], ids=["ctrl-c", "handler"])
def test_a_poll_after_an_interrupted_one_returns_the_batch_that_was_being_decoded(
    reader: Reader, problem: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TimeoutError is what the signal handler of a user may raise."""
    interrupts = [0, 2]

    def read(*arguments: Any) -> Any:
        interrupts[:] = [left - 1 for left in interrupts]
        if -1 in interrupts:
            raise problem
        return read_stored(*arguments)

    monkeypatch.setattr(completed_fetch, "read_stored", read)
    interrupted = 0
    for _ in range(20):
        try:
            reader.poll()
        except problem:
            interrupted += 1
    assert interrupted == 2
    assert reader.returned == {item: list(range(BATCHES * BATCH_RECORDS)) for item in ITEMS}
