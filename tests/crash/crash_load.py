"""Load of real clients on a broker that stops and restarts, and the checks of their messages and commits."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing import Broker

QUIET = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "socket.connection.setup.timeout.ms": 2000,
}
"""Settings of clients that reconnect soon and log nothing."""

PATIENCE_S = 30.0
UNDERWAY_MAX = 1000
"""The maximum of unacknowledged messages of a writer."""


class Style(NamedTuple):
    """The configuration of a writer."""

    name: str
    config: dict[str, Any]
    idempotent: bool = False


STYLES = (
    Style("idempotent-zstd", {"enable.idempotence": True, "compression.type": "zstd"}, True),
    Style("idempotent-none", {"enable.idempotence": True, "linger.ms": 2}, True),
    Style("all-lz4", {"acks": "all", "compression.type": "lz4", "max.in.flight": 1}),
    Style("one-gzip", {"acks": 1, "compression.type": "gzip", "max.in.flight": 1}),
    Style("one-snappy", {"acks": 1, "compression.type": "snappy", "max.in.flight": 1}),
)


class Writer(threading.Thread):
    """Writes numbered messages to all partitions in turn, and records the acknowledged ones."""

    def __init__(self, broker: Broker, topic: str, partitions: int, style: Style) -> None:
        super().__init__(name=style.name, daemon=True)
        self.style = style
        self.topic = topic
        self.partitions = partitions
        self.written = [0] * partitions
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self.failures: list[str] = []
        self.ending = threading.Event()
        config = {
            "bootstrap.servers": broker.bootstrap,
            "message.timeout.ms": 300_000,
            **QUIET,
            **style.config,
        }
        self.producer = Producer({"linger.ms": 5, **config, "error_cb": lambda error: None})

    def run(self) -> None:
        while not self.ending.is_set():
            if len(self.producer) < UNDERWAY_MAX:
                for partition in range(self.partitions):
                    self.write(partition)
            self.producer.poll(0.002)
        left = self.producer.flush(PATIENCE_S)
        if left:
            self.failures.append(f"{left} messages were not delivered in {PATIENCE_S:g} s")

    def write(self, partition: int) -> None:
        """Sends one message."""
        number = self.written[partition]
        value = f"{self.style.name} {number} ".encode().ljust(300, b".")

        def delivered(error: Any, _: Any) -> None:
            if error is None:
                self.acknowledged[partition].add(number)
            else:
                self.failures.append(f"message {number} of partition {partition}: {error}")

        try:
            self.producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
        except BufferError:
            self.producer.poll(0.02)
        else:
            self.written[partition] += 1

    @property
    def count(self) -> int:
        """Returns the number of acknowledged messages."""
        return sum(map(len, self.acknowledged))

    def end(self) -> None:
        """Stops writing, and waits until all messages are acknowledged."""
        self.ending.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive()
        assert not self.failures, self.failures[:5]


def wait_for_progress(writers: list[Writer]) -> None:
    """Waits until each writer has a further acknowledgement."""
    deadline = time.monotonic() + PATIENCE_S
    before = [writer.count for writer in writers]
    while any(writer.count == count for writer, count in zip(writers, before, strict=True)):
        assert time.monotonic() < deadline, [writer.style.name for writer in writers]
        time.sleep(0.01)


class Committer(threading.Thread):
    """Commits increasing offsets of a group, and records the last acknowledged one."""

    def __init__(self, broker: Broker, topic: str, partitions: int, group: str) -> None:
        super().__init__(name="committer", daemon=True)
        self.topic = topic
        self.partitions = partitions
        self.tried = 0
        self.committed = 0
        self.ending = threading.Event()
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "error_cb": lambda error: None,
                **QUIET,
            }
        )

    def run(self) -> None:
        while not self.ending.is_set():
            self.tried += 1
            try:
                results = self.consumer.commit(offsets=self.partitions_at(self.tried), asynchronous=False)
            except Exception:  # noqa: BLE001 - the broker may be gone: what counts is what was acknowledged
                time.sleep(0.02)
                continue
            if all(result.error is None for result in results):
                self.committed = self.tried
            time.sleep(0.005)

    def partitions_at(self, offset: int) -> list[TopicPartition]:
        """Returns the partitions of the group, all at one offset."""
        return [TopicPartition(self.topic, partition, offset) for partition in range(self.partitions)]

    def check(self) -> None:
        """Fails if an acknowledged commit is lost."""
        acknowledged = self.committed
        found = self.consumer.committed(self.partitions_at(-1), timeout=PATIENCE_S)
        for one in found:
            assert one.error is None, one.error
            assert acknowledged <= one.offset <= self.tried, (one, acknowledged, self.tried)

    def end(self) -> None:
        """Stops, and checks the commits a last time."""
        self.ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        self.check()
        self.consumer.close()


def make_topic(broker: Broker, name: str, partitions: int, **config: str) -> None:
    """Creates a topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(PATIENCE_S)


def read_all(broker: Broker, topic: str, partitions: int) -> list[list[tuple[int, bytes]]]:
    """Returns offset and value of every message, by partition, and checks the checksums."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "check", "check.crcs": True}
    consumer = Consumer({**config, "enable.auto.commit": False, "error_cb": lambda error: None, **QUIET})
    ends = []
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        assert low == 0
        ends.append(high)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
    deadline = time.monotonic() + PATIENCE_S
    while any(len(found[partition]) < ends[partition] for partition in range(partitions)):
        assert time.monotonic() < deadline, f"{[len(one) for one in found]} of {ends} messages came"
        for message in consumer.consume(5000, 0.2):
            assert message.error() is None, message.error()
            found[message.partition()].append((message.offset(), message.value()))
    consumer.close()
    return found


def check_accounts(stored: list[list[tuple[int, bytes]]], writers: list[Writer]) -> int:
    """Fails if an acknowledged message is missing, an idempotent one is repeated, or the order is wrong.

    Returns the number of repeated messages of writers without idempotence.
    """
    twice = 0
    by_name = {writer.style.name: writer for writer in writers}
    for partition, messages in enumerate(stored):
        assert [offset for offset, _ in messages] == list(range(len(messages)))
        numbers: dict[str, list[int]] = defaultdict(list)
        for _, value in messages:
            name, number, _ = value.split(b" ", 2)
            numbers[name.decode()].append(int(number))
        for name, writer in by_name.items():
            seen = numbers[name]
            lost = writer.acknowledged[partition] - set(seen)
            assert not lost, f"{name} lost {len(lost)} acknowledged messages, for instance {min(lost)}"
            first_seen = list(dict.fromkeys(seen))
            assert first_seen == sorted(first_seen), f"{name} is out of order in partition {partition}"
            if writer.style.idempotent:
                assert seen == list(range(writer.written[partition])), f"{name} in partition {partition}"
            twice += len(seen) - len(first_seen)
    return twice
