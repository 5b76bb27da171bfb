"""Transactions of Apache Kafka 4.3.1: its indexes of aborted transactions are rebuilt from its logs byte by
byte, and readers of committed records stop at the same offset.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka_peer import Kafka, class_path

from log_start import open_log
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.log.transaction_index import ABORTED_ENTRY_BYTES
from tidemill.model import types

START_TIMEOUT_S = 600
PRODUCERS = 4
ROUNDS = 120
SMALL = LogConfig(segment_bytes=1 << 20, index_interval_bytes=1000)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(START_TIMEOUT_S),
    pytest.mark.xdist_group("kafka-directories"),
]


def buy(bootstrap: str) -> None:
    """Runs transactions of several producers at once, over several segments; the last one stays open."""
    random = Random(7)
    producers = []
    for number in range(PRODUCERS):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"till-{number}", "linger.ms": 0}
        producers.append(Producer(settings))
        producers[-1].init_transactions(60)
        producers[-1].begin_transaction()
    for at in range(ROUNDS):
        producer = random.choice(producers[:-1])
        for _ in range(random.randrange(1, 6)):
            producer.produce("bought", random.randbytes(random.randrange(30_000)), partition=0)
        if at == ROUNDS * 2 // 3:
            producers[-1].produce("bought", b"never ended", partition=0)
            assert producers[-1].flush(30) == 0
        assert producer.flush(30) == 0
        if random.random() < 0.6:
            ending: Callable[[float], None] = random.choice(
                (producer.abort_transaction, producer.abort_transaction, producer.commit_transaction)
            )
            ending(60)
            producer.begin_transaction()


def stable_offset(bootstrap: str) -> int:
    """Returns the last stable offset that the broker reports to readers of committed records."""
    asked = {TopicPartition("bought", 0): OffsetSpec.latest()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    told = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(next(iter(told.values())).result(30).offset)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Returns the partition as the killed Kafka left it, and its last stable offset."""
    directory = tmp_path_factory.mktemp("aborted")
    kafka = Kafka(class_path("4.3.1"), directory, directory / "data")
    try:
        kafka.start(form=True)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("bought", 1, 1)])["bought"].result(30)
        buy(kafka.bootstrap)
        stable = stable_offset(kafka.bootstrap)
    finally:
        kafka.end(signal.SIGKILL)
    return directory / "data" / "bought-0", stable


def opened(directory: Path, recovery_point: int = 0) -> Log:
    key = types.TopicPartition("bought", 0)
    return open_log(SystemFiles(), str(directory), key, SMALL, now_ms=1, recovery_point=recovery_point)


def indexes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.txnindex"))}


@pytest.mark.parametrize("damage", ["none", "gone", "cut", "changed"])
def test_kafkas_indexes_of_aborted_transactions_are_rebuilt_from_its_logs(
    written: tuple[Path, int], damage: str, tmp_path: Path
) -> None:
    source, stable = written
    wanted = indexes(source)
    assert len(list(source.glob("*.log"))) > 2
    assert sum(map(len, wanted.values())) > 10 * ABORTED_ENTRY_BYTES
    copy = Path(shutil.copytree(source, tmp_path / "bought-0"))
    for name, data in wanted.items():
        path = copy / name
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[: len(data) * 2 // 3])
        elif damage == "changed":
            path.write_bytes(bytes(byte ^ (at % 17 == 0) for at, byte in enumerate(data)))
    log = opened(copy)
    assert {name: data for name, data in indexes(copy).items() if data} == {
        name: data for name, data in wanted.items() if data
    }
    assert log.last_stable_offset(log.end_offset) == stable < log.end_offset


def test_a_follower_of_kafkas_log_has_its_indexes(written: tuple[Path, int], tmp_path: Path) -> None:
    source, stable = written
    (tmp_path / "bought-0").mkdir()
    log = opened(tmp_path / "bought-0")
    for path in sorted(source.glob("*.log")):
        log.append_copied(path.read_bytes(), 1)
    theirs = b"".join(indexes(source).values())
    assert b"".join(indexes(tmp_path / "bought-0").values()) == theirs
    assert log.last_stable_offset(log.end_offset) == stable


def test_a_damaged_index_before_the_recovery_point_is_rebuilt(
    written: tuple[Path, int], tmp_path: Path
) -> None:
    source, stable = written
    copy = Path(shutil.copytree(source, tmp_path / "bought-0"))
    wanted = indexes(source)
    for name, data in wanted.items():
        (copy / name).write_bytes(data[:-3])
    bases = sorted(int(path.stem) for path in source.glob("*.log"))
    log = opened(copy, recovery_point=bases[-1])
    assert indexes(copy) == wanted
    assert log.last_stable_offset(log.end_offset) == stable
