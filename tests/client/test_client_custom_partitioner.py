"""A partitioner of the user: it runs in the thread that sends, without a lock of the producer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tidemill.client.partitioners import CUSTOM
from tidemill.client.record_accumulator import Delivery, RecordAccumulator, TopicQueues

Partitioner = Callable[[str, bytes | None, int], int]


def accumulator(partitioner: Partitioner) -> tuple[RecordAccumulator, TopicQueues]:
    found = RecordAccumulator(1000, 10_000, 5000, 0, None, CUSTOM, partitioner, lambda: None)
    found.topics["t"] = topic = TopicQueues("t", 4)
    return found, topic


def counts(topic: TopicQueues) -> list[int]:
    return [sum(int(batch.builder.count) for batch in queue.waiting) for queue in topic.queues]


def ends(call: Callable[[], object]) -> bool:
    """Calls ``call`` in a thread; returns whether it ended."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def test_a_partitioner_may_use_its_producer() -> None:
    def choose(name: str, key: bytes | None, count: int) -> int:
        found.append(topic, 1, 1, None, b"audit", None, None, 0.0)
        found.mark_all_urgent()
        return 3

    found, topic = accumulator(choose)
    assert ends(lambda: found.append(topic, -1, 1, b"k", b"v", None, None, 0.0))
    assert counts(topic) == [0, 1, 0, 1]


def test_a_slow_partitioner_does_not_delay_other_messages() -> None:
    running, may_end = threading.Event(), threading.Event()

    def choose(name: str, key: bytes | None, count: int) -> int:
        running.set()
        assert may_end.wait(30)
        return 2

    found, topic = accumulator(choose)
    deliveries: list[Delivery] = []
    slow = threading.Thread(
        target=lambda: deliveries.append(found.append(topic, -1, 1, b"k", b"v", None, None, 0.0)), daemon=True
    )
    slow.start()
    assert running.wait(5)
    assert ends(lambda: found.append(topic, 0, 1, None, b"v", None, None, 0.0))
    may_end.set()
    slow.join(5)
    assert len(deliveries) == 1
    assert counts(topic) == [1, 0, 1, 0]


def test_a_partitioner_gets_the_topic_the_key_and_the_number_of_partitions() -> None:
    calls: list[tuple[str, bytes | None, int]] = []

    def choose(name: str, key: bytes | None, count: int) -> int:
        calls.append((name, key, count))
        return 0

    found, topic = accumulator(choose)
    found.append_many(topic, None, None, 1, [b"k", None], [b"v", b"w"], None, 0.0)
    found.append(topic, 1, 1, b"k", b"v", None, None, 0.0)  # A message with a partition needs no choice.
    assert calls == [("t", b"k", 4), ("t", None, 4)]


@pytest.mark.parametrize("chosen", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(chosen: int) -> None:
    found, topic = accumulator(lambda name, key, count: chosen)
    with pytest.raises(ValueError, match=rf"the partitioner chose {chosen} of 4 partitions of 't'"):
        found.append(topic, -1, 1, b"k", b"v", None, None, 0.0)
    assert (found.used_bytes, counts(topic)) == (0, [0, 0, 0, 0])


def test_an_error_of_the_partitioner_is_raised_and_leaves_nothing() -> None:
    def choose(name: str, key: bytes | None, count: int) -> int:
        raise KeyError(name)

    found, topic = accumulator(choose)
    with pytest.raises(KeyError):
        found.append(topic, -1, 1, b"k", b"v", None, None, 0.0)
    assert (found.used_bytes, counts(topic)) == (0, [0, 0, 0, 0])
