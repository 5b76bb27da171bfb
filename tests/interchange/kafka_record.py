"""Records small data directories of Apache Kafka for tests that run without it.

Run as a program, ``python tests/interchange/kafka_record.py JARS (kraft|zookeeper) DIRECTORY`` with the
jars of Kafka 4.3.1 for ``kraft`` and of 3.9.2 for ``zookeeper``. What is left in DIRECTORY: ``data``, the
data directory of a broker that was stopped in order; ``nodes.json``, its nodes in ZooKeeper; ``seen.json``,
what clients read from it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka_peer import CODECS, Kafka, Seen, ZooKeeper, see

BEGAN_MS = 1_700_000_000_000
SETTINGS = """
offsets.topic.num.partitions=2
transaction.state.log.num.partitions=1
metadata.max.idle.interval.ms=2000
metadata.log.max.snapshot.interval.ms=4000
"""
OLD_SETTINGS = "inter.broker.protocol.version=2.8\n"
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "codecs": (1, {"retention.ms": "-1"}),
    "bought": (1, {"retention.ms": "-1"}),
    "kept": (1, {"cleanup.policy": "compact"}),
    "stamped": (2, {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}),
    "gone": (1, {}),
}
OLD_TOPICS = {
    "old0": (1, {"message.format.version": "0.9.0", "retention.ms": "-1"}),
    "old1": (1, {"message.format.version": "0.10.2", "retention.ms": "-1"}),
}
SNAPSHOT_TIMEOUT_S = 60


def make_topics(admin: AdminClient, topics: dict[str, tuple[int, dict[str, str]]]) -> None:
    """Creates topics, and waits for them."""
    wanted = [NewTopic(name, count, 1, config=config) for name, (count, config) in topics.items()]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def produce(bootstrap: str, topic: str, codec: str, *, headers: bool = True, partitions: int = 1) -> None:
    """Sends eight records: with and without key, value, headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 100})
    keyless = 4 if topic != "kept" else 9
    problems: list[object] = []
    for number in range(8):
        producer.produce(
            topic,
            None if number == 5 else f"{codec} {number} ".encode() * 4,
            key=f"k{number % 3}".encode() if (number + 1) % keyless else None,
            headers=[("trace", f"{number}".encode()), ("empty", None)] if headers and number % 2 else None,
            partition=number % partitions,
            timestamp=BEGAN_MS + number * 1000,
            on_delivery=lambda problem, message: problems.append(problem) if problem else None,
        )
    assert producer.flush(60) == 0
    assert not problems, problems


def buy(bootstrap: str) -> None:
    """Runs a committed transaction, an aborted one, and another committed one."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "till", "linger.ms": 100})
    producer.init_transactions(60)
    for number in range(3):
        producer.begin_transaction()
        for item in range(4):
            producer.produce("bought", f"sale {number} item {item}".encode(), partition=0)
        producer.flush(30)
        if number == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def commit(bootstrap: str, group: str, topic: str, count: int) -> None:
    """Reads ``count`` records as a group, and commits."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while count:
        count -= len(consumer.consume(count, timeout=30))
    consumer.commit(asynchronous=False)
    consumer.close()


def set_config(admin: AdminClient, kind: ResourceType, name: str, key: str, value: str) -> None:
    """Sets one key."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def fill(kafka: Kafka, *, old: bool) -> None:
    """Writes all data that an import has to transfer."""
    bootstrap = kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    make_topics(admin, TOPICS | (OLD_TOPICS if old else {}))
    for codec in CODECS:
        produce(bootstrap, "codecs", codec)
    for topic in OLD_TOPICS if old else ():
        for codec in ("none", "gzip", "snappy", "lz4"):
            produce(bootstrap, topic, codec, headers=False)
    produce(bootstrap, "kept", "none", headers=False)
    produce(bootstrap, "stamped", "lz4", partitions=2)
    produce(bootstrap, "gone", "none")
    buy(bootstrap)
    if not old:
        _wait_for_snapshot(kafka.data)
    admin.delete_topics(["gone"])["gone"].result(30)
    set_config(admin, ResourceType.TOPIC, "codecs", "max.message.bytes", "2000000")
    set_config(admin, ResourceType.BROKER, "1", "message.max.bytes", "3000000")
    commit(bootstrap, "readers", "codecs", 11)
    commit(bootstrap, "others", "stamped", 4)


def _wait_for_snapshot(data: Path) -> None:
    deadline = time.monotonic() + SNAPSHOT_TIMEOUT_S
    while not list(data.glob("__cluster_metadata-0/*.checkpoint")):
        assert time.monotonic() < deadline, "Kafka made no snapshot of its metadata"
        time.sleep(0.5)


def as_json(seen: Seen) -> dict[str, Any]:
    """Converts the content to JSON, bytes as hexadecimal digits."""
    return {
        "records": {
            f"{topic}-{partition}": [
                [offset, *stamp, _hex(key), _hex(value), [[name, _hex(data)] for name, data in headers or []]]
                for offset, stamp, key, value, headers in records
            ]
            for (topic, partition), records in seen.records.items()
        },
        "ends": {f"{topic}-{partition}": ends for (topic, partition), ends in seen.ends.items()},
        "offsets": {f"{group} {topic}-{number}": at for (group, topic, number), at in seen.offsets.items()},
        "configs": seen.configs,
    }


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def record(jars: str, kind: str, directory: Path) -> None:
    """Starts Kafka, fills it, and writes the files for the tests to ``directory``."""
    from tidemill.interchange.zookeeper_nodes import read_zookeeper, write_file

    old = kind == "zookeeper"
    work = Path(tempfile.mkdtemp(prefix="record-"))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    zookeeper = ZooKeeper(jars, work) if old else None
    address = f"{zookeeper.address}/kafka" if zookeeper else ""
    kafka = Kafka(
        jars, work, directory / "data", zookeeper=address, settings=SETTINGS + (OLD_SETTINGS if old else "")
    )
    try:
        kafka.start(form=not old)
        fill(kafka, old=old)
        (directory / "seen.json").write_text(json.dumps(as_json(see(kafka.bootstrap))) + "\n")
        kafka.end()
        if zookeeper:
            write_file(str(directory / "nodes.json"), read_zookeeper(address))
    finally:
        kafka.end()
        if zookeeper:
            zookeeper.end()
        shutil.rmtree(work, ignore_errors=True)
    later = sorted(directory.glob("data/__cluster_metadata-0/*.checkpoint"))[1:]
    for path in [*directory.glob("data/*-delete"), *directory.glob("data/.lock"), *later]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    record(f"{sys.argv[1]}/*", sys.argv[2], Path(sys.argv[3]).absolute())
