"""A batch that is too large for the broker is split into two parts."""

from __future__ import annotations

from typing import Any

import pytest

from default_limits import iter_records
from tidemill.client.batch_splitting import split
from tidemill.client.record_accumulator import ProducerBatch, RecordAccumulator, TopicQueues


def batch_of(count: int, callback: Any = None) -> ProducerBatch:
    accumulator, topic = (
        RecordAccumulator(100_000, 100_000, 50_000, 0, None, 3, None, lambda: None),
        TopicQueues("t", 1),
    )
    accumulator.topics["t"] = topic
    for at in range(count):
        accumulator.append(topic, 0, 1000 + at, b"k%d" % at, b"v", [("h", b"%d" % at)], callback, 0.0)
    (batch,) = topic.queues[0].waiting
    return batch


@pytest.mark.parametrize(("count", "first"), [(2, 1), (3, 2), (7, 4), (8, 4)])
def test_the_parts_have_the_messages_in_order(count: int, first: int) -> None:
    batch = batch_of(count)
    batch.producer_id, batch.producer_epoch, batch.sequence = 7, 2, 2**31 - 2
    batch.attempts = 3
    size, number, span = batch.bytes, batch.number, batch.span
    parts = split(batch)
    assert [int(part.builder.count) for part in parts] == [first, count - first]
    found = [record for part in parts for record in iter_records(part.builder.build())]
    assert [(one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (1000 + at, b"k%d" % at, b"v", [("h", b"%d" % at)]) for at in range(count)
    ]
    assert sum(part.bytes for part in parts) == size
    assert all(part.bytes in (size // 2, size - size // 2) for part in parts)
    assert [part.sequence for part in parts] == [2**31 - 2, (2**31 - 2 + first) % 2**31]
    assert {(part.producer_id, part.producer_epoch, part.attempts) for part in parts} == {(7, 2, 3)}
    assert (parts[0].number, parts[1].number) == (number, number + span // 2)
    assert all(part.full and part.urgent for part in parts)
    assert (batch.done, batch.parts, batch.part_starts) == (True, parts, [0, first])


def test_a_callback_stays_with_its_message() -> None:
    def callback(metadata: object, problem: object) -> None:
        """Is not called by this test."""

    batch = batch_of(5, callback)
    parts = split(batch)
    assert batch.callbacks is None
    assert [[index for index, _, _ in part.callbacks or ()] for part in parts] == [[0, 1, 2], [0, 1]]
    assert all(one is callback for part in parts for _, _, one in part.callbacks or ())


def test_parts_of_a_batch_that_was_never_sent_have_no_sequence() -> None:
    assert [part.sequence for part in split(batch_of(4))] == [-1, -1]
