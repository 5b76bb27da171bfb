"""Kafka reads the directories of Tidemill, and Tidemill reads those of Kafka.

``TIDEMILL_KAFKA_LIBS`` names a directory with the jars of Apache Kafka. Without it these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_stage import NOW, MakeBatch

from default_limits import DumpOptions, dump_lines, iter_records
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition

LIBS = os.environ.get("TIDEMILL_KAFKA_LIBS", "")
FILES = SystemFiles()

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not LIBS or shutil.which("java") is None, reason="TIDEMILL_KAFKA_LIBS is not set"),
]


def java(*arguments: str) -> list[str]:
    return [
        "java",
        "-Xmx512m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        f"{LIBS}/*",
        *arguments,
    ]


def kafka_dump(paths: list[Path]) -> str:
    """Returns the output of Kafka's tool, whose class moved in Kafka 4."""
    for name in ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"):
        done = subprocess.run(
            java(name, "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, paths))),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if "ClassNotFoundException" not in done.stderr:
            assert done.returncode == 0, done.stderr
            return done.stdout
    raise AssertionError(f"no DumpLogSegments in {LIBS}")


def our_dump(paths: list[Path]) -> str:
    return "".join(
        f"{line}\n" for path in paths for line in dump_lines(FILES, str(path), DumpOptions(contents=True))
    )


def opened(path: Path) -> LogManager:
    manager = LogManager(FILES, [str(path)])
    manager.dirs.lock()
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def test_kafka_and_tidemill_dump_the_same_text(tmp_path: Path, batch: MakeBatch) -> None:
    manager = opened(tmp_path)
    config = LogConfig(segment_bytes=5000, index_interval_bytes=500)
    log = manager.create(TopicPartition("t", 0), bytes(range(16)), config, NOW)
    for number in range(90):
        sequence = {"producer_id": 7, "producer_epoch": 1, "base_sequence": number * 2} if number % 2 else {}
        log.append(
            batch(2, timestamp=NOW + number, step_ms=1, codec=number % 5, **sequence), number // 30, NOW
        )
        if sequence:
            log.append(
                batch(2, producer_id=7, producer_epoch=1, base_sequence=number * 2 + 2), number // 30, NOW
            )
    assert manager.close(NOW, {}) == []
    paths = sorted(path for path in (tmp_path / "t-0").iterdir() if path.name[:20].isdigit())
    assert len(paths) > 7
    theirs = kafka_dump(paths)
    assert theirs == our_dump(paths)
    assert "Mismatches" not in theirs
    assert "isvalid: false" not in theirs


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """A running Kafka on free ports: its address, its data, its process."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    data, settings = tmp_path / "kafka", tmp_path / "server.properties"
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{ports[1]}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={data}\noffsets.topic.num.partitions=4\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\ntransaction.state.log.num.partitions=2\n"
        "log.segment.bytes=1048576\nlog.index.interval.bytes=1000\ngroup.initial.rebalance.delay.ms=0\n"
    )
    form = java("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(settings))
    subprocess.run(form, check=True, capture_output=True, timeout=100)
    with (tmp_path / "kafka.out").open("wb") as out:
        process = subprocess.Popen(
            java("kafka.Kafka", str(settings)),
            stdout=out,
            stderr=out,
        )
    yield f"127.0.0.1:{ports[0]}", data, process
    process.kill()
    process.wait(20)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_logs_written_by_kafka_are_opened(
    kafka: tuple[str, Path, subprocess.Popen[bytes]], stop: signal.Signals, batch: MakeBatch
) -> None:
    from confluent_kafka import Consumer, Producer

    bootstrap, data, process = kafka
    written: dict[str, int] = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True}
        )
        written[f"t-{codec}"] = 3000
        for number in range(3000):
            producer.produce(f"t-{codec}", b"value %d " % number + bytes(600), key=b"k")
            producer.poll(0)
        assert producer.flush(60) == 0
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t-transaction", b"v")
    producer.commit_transaction(60)
    group = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(group)
    consumer.subscribe(["t-none"])
    assert len(consumer.consume(100, timeout=60)) == 100
    consumer.commit(asynchronous=False)
    consumer.close()
    process.send_signal(stop)
    process.wait(60)
    with_offsets_topic_opens(data, written, stop, batch)


def with_offsets_topic_opens(
    data: Path, written: dict[str, int], stop: signal.Signals, batch: MakeBatch
) -> None:
    manager = opened(data)
    (warning,) = manager.dirs.warnings
    assert "__cluster_metadata-0 is ignored" in warning
    assert (manager.recovered_bytes == 0) == (stop == signal.SIGTERM)
    assert manager.dirs.stored_cluster_id() == "AAAAAAAAAAAAAAAAAAAAAA"
    for topic, count in written.items():
        log = manager.logs[TopicPartition(topic, 0)]
        assert (log.start_offset, log.end_offset) == (0, count)
        assert log.topic_id != bytes(16)
        assert len(log.producer_state.entries) == 1
        offset, seen = 0, 0
        while offset < count:
            part = log.read(offset, 1 << 16, count, True)
            assert part is not None
            for record in iter_records(part.read(), offset):
                assert (record.offset, (record.value or b"")[:12].split(b" ")[1]) == (seen, b"%d" % seen)
                seen += 1
            offset = seen
    assert any(key.topic == "__consumer_offsets" and log.end_offset for key, log in manager.logs.items())
    marked = manager.logs[TopicPartition("t-transaction", 0)]
    (entry,) = marked.producers()
    assert (marked.end_offset, entry.coordinator_epoch, entry.transaction_first_offset) == (2, 0, -1)
    marked.append(batch(1), 9, NOW)
    assert manager.close(NOW, {}) == []
    logs = sorted(path for path in data.glob("t-*/*") if path.name[:20].isdigit())
    logs = [path for path in logs if path.suffix != ".txnindex"][:12]
    assert kafka_dump(logs) == our_dump(logs)
