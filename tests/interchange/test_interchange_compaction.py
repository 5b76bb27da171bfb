"""Apache Kafka compacts a partition, and Tidemill compacts a copy: both results are equal byte for byte."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic, ResourceType
from kafka_peer import CODECS, Kafka, ZooKeeper, class_path, java, read_all, wait_led
from kafka_record import set_config

from default_limits import read_stored
from log_start import open_log
from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.cleaner import Cleaner
from tidemill.log.log_cleaner_manager import CleanerSettings, candidate, job_for
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.record_reader import iter_stored

TIMEOUT_S = 600
CLEANED_S = 60
SEGMENT_BYTES = 1 << 20
KEPT = TopicPartition("kept", 0)
NEVER, AT_ONCE = "1.0", "0.001"
FILES = SystemFiles()

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.xdist_group("kafka-directories"),
]


class Server(NamedTuple):
    """An Apache Kafka broker, and its message format."""

    kafka: Kafka
    magic: int


@pytest.fixture(params=[2, 1, 0], ids=["v2", "v1", "v0"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": NEVER,
        "segment.bytes": str(SEGMENT_BYTES),
        "delete.retention.ms": "1",
    }
    zookeeper = None
    if request.param == 2:
        kafka = Kafka(class_path("4.3.1"), tmp_path, tmp_path / "data")
        kafka.start(form=True)
    else:
        zookeeper = ZooKeeper(class_path("3.9.2"), tmp_path)
        kafka = Kafka(
            class_path("3.9.2"),
            tmp_path,
            tmp_path / "data",
            zookeeper=zookeeper.address,
            settings="inter.broker.protocol.version=2.8\n",
        )
        kafka.start()
        config["message.format.version"] = "0.10.2" if request.param else "0.9.0"
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(KEPT.topic, 1, 1, config=config)])[KEPT.topic].result(30)
        yield Server(kafka, request.param)
    finally:
        kafka.end(signal.SIGKILL)
        if zookeeper is not None:
            zookeeper.end()


def write(server: Server, chance: Random) -> None:
    """Writes batches of every size and codec; in v2 also idempotent batches and transactions, half of them
    aborted.
    """
    codecs = CODECS if server.magic == 2 else CODECS[:4]
    for number in range(24):
        settings: dict[str, Any] = {
            "bootstrap.servers": server.kafka.bootstrap,
            "compression.type": codecs[number % len(codecs)],
            "linger.ms": 100,
            "enable.idempotence": server.magic == 2 and number % 2 == 0,
        }
        transactional = server.magic == 2 and number % 4 == 0
        if transactional:
            settings["transactional.id"] = f"till-{number % 3}"
        producer = Producer(settings)
        if transactional:
            producer.init_transactions(60)
            producer.begin_transaction()
        for _ in range(chance.choice([1, 3, 400, 700])):
            key = b"key-%d" % chance.randrange(500)
            value = chance.choice([None, b"", chance.randbytes(chance.randrange(2500)), b"x" * 900])
            headers = [("trace", b"1")] if server.magic == 2 and chance.random() < 0.3 else None
            producer.produce(KEPT.topic, value, key=key, headers=headers, partition=0)
            if chance.random() < 0.02:
                assert producer.flush(60) == 0
        if transactional and number % 8 == 0:
            producer.flush(60)
            producer.abort_transaction(60)
        elif transactional:
            producer.commit_transaction(60)
        assert producer.flush(60) == 0


def start(kafka: Kafka) -> None:
    kafka.start()
    wait_led(kafka.bootstrap, [tuple(KEPT)])


def active_base(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))


def compact_by_kafka(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    set_config(admin, ResourceType.TOPIC, KEPT.topic, "min.cleanable.dirty.ratio", AT_ONCE)
    checkpoint = str(kafka.data / "cleaner-offset-checkpoint")
    wanted = active_base(kafka.data / "kept-0")
    deadline = time.monotonic() + CLEANED_S
    while read_offsets(FILES, checkpoint).get(KEPT, -1) < wanted:
        assert time.monotonic() < deadline, f"not compacted up to {wanted}: {kafka.output[-3000:]}"
        time.sleep(0.2)
    set_config(admin, ResourceType.TOPIC, KEPT.topic, "min.cleanable.dirty.ratio", NEVER)


def compact_here(directory: Path, clean_end: int) -> None:
    """Compacts as the broker and its cleaner process do together."""
    now_ms = int(time.time() * 1000)
    settings = LogConfig(cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES, delete_retention_ms=1)
    # A rebuilt index of aborted transactions does not have batches that the cleaner removed.
    point = active_base(directory)
    log = open_log(FILES, str(directory), KEPT, settings, now_ms=now_ms, recovery_point=point)
    log.clean_end = clean_end
    log.flush(now_ms)
    job = job_for(candidate(log, int(log.end_offset), now_ms), CleanerSettings(), now_ms)
    cleaner = Cleaner(FILES, job, lambda count: None)
    with closing(cleaner.run()) as run:
        for group in run:
            swap = log.begin_swap(list(group.old), group.size)
            assert swap is not None
            assert swap.run()
            assert log.finish_swap(swap, now_ms)
    assert cleaner.counts.end_offset == log.active.base_offset
    log.close(now_ms)


def stored(directory: Path) -> list[tuple[Any, ...]]:
    """Returns the relevant content of each batch or entry; of uncompressed ones, every byte."""
    found: list[tuple[Any, ...]] = []
    for path in sorted(directory.glob("*.log")):
        found.append((path.name,))
        for one in iter_stored(path.read_bytes()):
            records = [
                (
                    record.offset,
                    record.timestamp,
                    record.timestamp_type,
                    record.key,
                    record.value,
                    record.headers,
                )
                for record in read_stored(one)
            ]
            if isinstance(one, Batch):
                header = (
                    one.base_offset,
                    one.last_offset,
                    one.leader_epoch,
                    one.attributes,
                    one.max_timestamp,
                )
                producer = (one.producer_id, one.producer_epoch, one.base_sequence)
                # The horizon of tombstones is the time of the compaction.
                base_timestamp = None if one.has_delete_horizon else one.base_timestamp
                data = b"" if one.codec or one.has_delete_horizon else one.to_bytes()
                found.append((*header, *producer, base_timestamp, data, records))
            else:
                data = b"" if one.codec else one.data[one.position : one.position + one.size]
                found.append((one.offset, one.magic, one.attributes, one.timestamp, data, records))
    return found


def aborted(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*.txnindex")) if path.stat().st_size]


def kafka_complains(jars: str, directory: Path) -> str:
    """Returns the complaints of kafka-dump-log about the files; empty if there are none."""
    names = ",".join(str(path) for path in sorted(directory.iterdir()) if path.name[:20].isdigit())
    text = ""
    for check in (["--deep-iteration"], ["--index-sanity-check"]):
        done = subprocess.run(
            java(jars, "org.apache.kafka.tools.DumpLogSegments", *check, "--files", names),
            capture_output=True,
            text=True,
            timeout=100,
        )
        if "ClassNotFoundException" in done.stderr:
            done = subprocess.run(
                java(jars, "kafka.tools.DumpLogSegments", *check, "--files", names),
                capture_output=True,
                text=True,
                timeout=100,
            )
        assert done.returncode == 0, done.stderr
        bad = ("isvalid: false", "Mismatch", "not found", "out of order", "corrupt", "Exception")
        text += "".join(line + "\n" for line in done.stdout.splitlines() if any(word in line for word in bad))
    return text


def test_kafkas_cleaner_and_tidemills_keep_the_same_records(server: Server, tmp_path: Path) -> None:
    kafka, chance = server.kafka, Random(server.magic)
    theirs, ours = kafka.data / "kept-0", tmp_path / "kept-0"
    for turn in range(3):
        write(server, chance)
        kafka.end()
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns("*.deleted"))
        clean_end = read_offsets(FILES, str(kafka.data / "cleaner-offset-checkpoint")).get(KEPT, -1)
        assert (clean_end > 0) == (turn > 0)
        before = stored(ours)
        start(kafka)
        compact_by_kafka(kafka)
        compact_here(ours, clean_end)
        kafka.end()
        assert stored(ours) == stored(theirs)
        assert stored(ours) != before
        assert aborted(ours) == aborted(theirs)
        assert kafka_complains(kafka.jars, ours) == ""
        start(kafka)
    # Kafka serves Tidemill's compacted log like its own.
    expected = read_all(kafka.bootstrap, [tuple(KEPT)], "read_committed")
    kafka.end()
    shutil.rmtree(theirs)
    shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("*.deleted"))
    start(kafka)
    assert read_all(kafka.bootstrap, [tuple(KEPT)], "read_committed") == expected
