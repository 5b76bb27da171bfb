"""The example of a loop with transactions: killed again and again, it writes each result once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.client import Consumer, Producer, TopicPartition

EXAMPLE = Path(__file__).parents[2] / "examples" / "consume_transform_produce.py"
LINES = 3_000
KILLS = 6

NewTopic = Callable[..., str]


@contextmanager
def started(
    address: str, source: str, destination: str, group: str, name: str
) -> Iterator[subprocess.Popen[str]]:
    """Runs the example until the end of the block."""
    command = [sys.executable, str(EXAMPLE), address, source, destination, "--group", group, "--name", name]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Results:
    """The committed results."""

    def __init__(self, address: str, topic: str) -> None:
        self.consumer = Consumer(
            address, {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        )
        self.consumer.assign([TopicPartition(topic, number) for number in range(3)])
        self.values: list[bytes] = []

    def read(self, seconds: float) -> None:
        """Reads what is committed within some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.values += [one.value or b"" for one in self.consumer.poll(0.1)]


def test_each_result_is_written_once_although_processes_are_killed(
    broker_address: str, new_topic: NewTopic, group: str
) -> None:
    source, destination = new_topic(), new_topic()
    expected = sorted(b"%d-%d" % (line, word) for line in range(LINES) for word in range(2))
    chance = random.Random(LINES)
    results = Results(broker_address, destination)
    with results.consumer, Producer(broker_address) as producer:
        for kill in range(KILLS):
            for line in range(kill * LINES // KILLS, (kill + 1) * LINES // KILLS):
                producer.send(source, b"%d-0 %d-1" % (line, line))
            with started(broker_address, source, destination, group, group):
                results.read(chance.uniform(0.5, 2))
        expected.append(b"last")
        with started(broker_address, source, destination, group, group) as process:
            producer.send(source, b"last")
            deadline = time.monotonic() + 60
            while len(results.values) < len(expected) and time.monotonic() < deadline:
                results.read(0.2)
            assert process.poll() is None
            results.read(1)
            process.terminate()
            assert process.wait(20) == 128 + 15
    assert sorted(results.values) == sorted(expected)


def test_a_second_process_with_the_same_name_ends_the_first(
    broker_address: str, new_topic: NewTopic, group: str
) -> None:
    source, destination = new_topic(1), new_topic()
    with (
        Producer(broker_address) as producer,
        started(broker_address, source, destination, f"{group}-1", group) as first,
    ):
        results = Results(broker_address, destination)
        with results.consumer:
            producer.send(source, b"first")
            while not results.values:
                results.read(0.1)
            with started(broker_address, source, destination, f"{group}-2", group):
                while len(results.values) < 2:
                    results.read(0.1)
                producer.send(source, b"second")
                _, errors = first.communicate(timeout=30)
                assert first.returncode == 1
                assert "ProducerFenced" in errors
