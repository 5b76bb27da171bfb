"""Compacted topics on a real broker with its cleaner: the messages that clients read during and after
compaction.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_peers import CODECS, PATIENCE_S
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from group_members import wait_until

from tidemill.testing import Broker

CONFIG = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 0,
    "log.segment.delete.delay.ms": 500,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 20_000,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "60000",
    "min.cleanable.dirty.ratio": "0.01",
}

Row = tuple[int, bytes | None, bytes | None]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as made:
        yield made
        log = made.log
    assert "Traceback" not in log, log
    assert "is uncleanable" not in log, log


def make(broker: Broker, topic: str, **config: str) -> None:
    wanted = NewTopic(topic, 1, 1, config={**COMPACTED, **config})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([wanted])[topic].result(20)


def alter(broker: Broker, topic: str, **values: str) -> None:
    """Changes settings of a topic, or of the broker without a topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    kind = ResourceType.TOPIC if topic else ResourceType.BROKER
    name = topic or str(next(iter(admin.list_topics(timeout=20).brokers)))
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)


class Writer:
    """Writes updates of a few keys with every codec; records the acknowledged messages."""

    def __init__(self, broker: Broker, topic: str, keys: int = 40) -> None:
        self.broker = broker
        self.topic = topic
        self.keys = keys
        self.chance = random.Random(1)
        self.number = 0
        self.acknowledged: dict[int, tuple[bytes, bytes | None]] = {}

    def write(self, count: int) -> None:
        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": self.broker.bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "log_level": 0,
                }
            )
            for _ in range(count // len(CODECS)):
                self.number += 1
                key = b"key-%d" % self.chance.randrange(self.keys)
                value = None if self.chance.random() < 0.1 else b"%d " % self.number + bytes(300)
                producer.produce(self.topic, value, key=key, partition=0, on_delivery=self.delivered)
                if self.number % 50 == 0:
                    producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0

    def delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged[message.offset()] = (message.key(), message.value())

    @property
    def latest(self) -> dict[bytes, int]:
        """Returns the offset of the last record of every key."""
        return {key: offset for offset, (key, _) in sorted(self.acknowledged.items())}

    def check(self, rows: list[Row]) -> None:
        """Checks that a read from the start has the last record of every key, at its offset."""
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(set(offsets))
        for offset, key, value in rows:
            assert self.acknowledged[offset] == (key, value)
        seen = {key: offset for offset, key, _ in rows}
        for key, offset in self.latest.items():
            assert seen[key] == offset


def read(broker: Broker, topic: str) -> list[Row]:
    """Reads from the start to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "read",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    rows: list[Row] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in consumer.consume(500, timeout=0.1):
            if message.error() is None:
                rows.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return rows
    raise AssertionError(f"no end of {topic} after {len(rows)} records")


def clean_end(broker: Broker, topic: str) -> int:
    """Returns the offset up to which the broker reports the log as compacted."""
    path = Path(broker.data_dir, "cleaner-offset-checkpoint")
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    found = {name: int(offset) for name, _, offset in (line.rsplit(" ", 2) for line in lines)}
    return found.get(topic, -1)


def active_base(broker: Broker, topic: str) -> int:
    return max(int(path.stem) for path in Path(broker.data_dir, f"{topic}-0").glob("*.log"))


def wait_compacted(broker: Broker, topic: str) -> None:
    wait_until(lambda: clean_end(broker, topic) >= active_base(broker, topic), f"{topic} compacted")


def test_concurrent_readers_and_writers_lose_no_messages(broker: Broker) -> None:
    make(broker, "kept")
    writer = Writer(broker, "kept")
    found: list[list[Row]] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            found.append(read(broker, "kept"))

    reader = threading.Thread(target=follow)
    reader.start()
    for _ in range(4):
        writer.write(1000)
    done.set()
    reader.join(PATIENCE_S)
    wait_compacted(broker, "kept")
    rows = read(broker, "kept")
    writer.check(rows)
    assert clean_end(broker, "kept") > 2000
    assert len(rows) < 1000
    for one in found:
        offsets = [offset for offset, _, _ in one]
        assert offsets == sorted(set(offsets))
        assert all(writer.acknowledged[offset] == (key, value) for offset, key, value in one)


def test_a_repeatedly_killed_broker_keeps_the_last_value_of_every_key(broker: Broker) -> None:
    make(broker, "kept")
    writer = Writer(broker, "kept")
    chance = random.Random(2)
    for _ in range(4):
        writer.write(600)
        time.sleep(chance.random() / 4)
        broker.kill()
        broker.start()
        writer.check(read(broker, "kept"))
    wait_compacted(broker, "kept")
    writer.check(read(broker, "kept"))


def test_tombstones_are_removed_after_their_retention(broker: Broker) -> None:
    make(broker, "kept", **{"delete.retention.ms": "0"})
    writer = Writer(broker, "kept")
    writer.write(1000)
    wait_compacted(broker, "kept")
    writer.write(1000)
    wait_compacted(broker, "kept")
    end = active_base(broker, "kept")
    gone = {key for key, offset in writer.latest.items() if writer.acknowledged[offset][1] is None}
    early = {key for key in gone if writer.latest[key] < end // 3}
    rows = read(broker, "kept")
    assert not early & {key for _, key, _ in rows}
    assert {key for _, key, value in rows if value is not None} >= set(writer.latest) - gone


def test_a_record_without_a_key_is_refused_with_the_reason(broker: Broker) -> None:
    make(broker, "kept")
    told: list[tuple[bytes, str | None]] = []

    def delivered(error: Any, message: Any) -> None:
        told.append((message.value(), None if error is None else str(error.name())))

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 200, "log_level": 0})
    producer.produce("kept", b"with", key=b"k", partition=0, on_delivery=delivered)
    producer.produce("kept", b"without", partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert dict(told)[b"without"] == "INVALID_RECORD"
    assert dict(told)[b"with"] in ("INVALID_RECORD", "_INVALID_DIFFERENT_RECORD")
    producer.produce("kept", b"again", key=b"k", partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert told[-1] == (b"again", None)


def test_settings_of_the_running_cleaner_can_change(broker: Broker) -> None:
    alter(broker, "", log_cleaner_io_max_bytes_per_second="20000")
    make(broker, "kept", **{"min.cleanable.dirty.ratio": "1.0"})
    writer = Writer(broker, "kept")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 20_000, "log_level": 0})
    for number in range(2000):
        producer.produce(
            "kept", bytes(1000), key=b"key-%d" % (number % 9), partition=0, on_delivery=writer.delivered
        )
    assert producer.flush(PATIENCE_S) == 0
    alter(broker, "kept", min_cleanable_dirty_ratio="0.1")
    wait_until(lambda: bool(cleaners(broker)), "a cleaner at work")
    # Compaction would take minutes at this rate.
    assert clean_end(broker, "kept") < 0
    alter(broker, "", log_cleaner_io_max_bytes_per_second="1e12")
    wait_compacted(broker, "kept")
    writer.check(read(broker, "kept"))
    alter(broker, "", log_cleaner_backoff_ms="600000")
    wait_until(lambda: not cleaners(broker), "the cleaner gone")


def cleaners(broker: Broker) -> list[int]:
    """Returns the cleaner processes of the broker."""
    found: list[int] = []
    for path in Path(f"/proc/{broker.pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def test_a_topic_may_be_compacted_and_lose_its_oldest_records(broker: Broker) -> None:
    make(broker, "kept", **{"cleanup.policy": "compact,delete", "retention.ms": "60000"})
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 20_000, "log_level": 0})
    for number in range(2000):
        # The first half is already older than the retention time.
        stamp = now_ms - (3_600_000 if number < 1000 else 0)
        producer.produce("kept", bytes(300), key=b"key-%d" % number, partition=0, timestamp=stamp)
        producer.produce("kept", bytes(300), key=b"often", partition=0, timestamp=stamp)
    assert producer.flush(PATIENCE_S) == 0

    def is_done() -> bool:
        rows = read(broker, "kept")
        often = [offset for offset, key, _ in rows if key == b"often"]
        return bool(rows) and rows[0][0] >= 1700 and len(often) < 500

    wait_until(is_done, "old records gone and others compacted")
    keys = {key for _, key, _ in read(broker, "kept")}
    assert {b"key-%d" % number for number in range(1000, 2000)} <= keys
    assert b"key-0" not in keys


def stored_bytes(directory: Path) -> int:
    """Returns the size of the segments in a directory, without those that are being replaced."""
    total = 0
    for path in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_committed_offsets_survive_compaction(broker: Broker) -> None:
    make(broker, "read")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    for number in range(1500):
        consumer.commit(offsets=[TopicPartition("read", 0, number)], asynchronous=False)
    directory = Path(broker.data_dir, "__consumer_offsets-0")
    wait_until(lambda: stored_bytes(directory) < 45_000, "compacted")
    # The segments are replaced before the checkpoint is written.
    wait_until(lambda: clean_end(broker, "__consumer_offsets") > 500, "checkpointed")
    for again in (broker.restart, broker.kill):
        again()
        broker.start()
        assert consumer.committed([TopicPartition("read", 0)], PATIENCE_S)[0].offset == 1499
    consumer.close()


def test_a_damaged_log_is_excluded_with_its_reason_and_others_are_compacted() -> None:
    with Broker(CONFIG) as broker:
        for topic in ("bad", "good"):
            make(broker, topic, **{"min.cleanable.dirty.ratio": "1.0"})
            Writer(broker, topic).write(1000)
        broker.stop()
        path = min(Path(broker.data_dir, "bad-0").glob("*.log"))
        data = bytearray(path.read_bytes())
        data[-2] ^= 1
        path.write_bytes(data)
        broker.start()
        for topic in ("bad", "good"):
            alter(broker, topic, min_cleanable_dirty_ratio="0.01")
        wait_compacted(broker, "good")
        wait_until(lambda: "bad-0 is uncleanable" in broker.log, "bad uncleanable")
        assert "has checksum" in broker.log
        assert path.read_bytes() == data
        assert clean_end(broker, "bad") < 0
