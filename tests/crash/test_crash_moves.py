"""Moves of partitions between data directories under load, with kills and failing disks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from crash_load import QUIET, make_topic, read_all
from crash_machine import Client, NewMachine, batch_of
from faulty_files import FaultyFiles

from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

# How kafka-python reads its own schemas, and what it leaves open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

VALUE = bytes(range(256)) * 4
MEGABYTES = 8
PATIENCE_S = 60.0


class ReplicaDirs(NamedTuple):
    """The directory of ``t-0``, and the directory and lag of its future log, by DescribeLogDirs."""

    current: str
    future: str
    lag: int


class Site:
    """A broker with two data directories, and the operations of a client."""

    def __init__(self, broker: Broker, paths: list[Path]) -> None:
        self.broker = broker
        self.paths = paths
        self.acknowledged: list[bytes] = []

    def describe(self) -> ReplicaDirs:
        (answer,) = self.admin(lambda admin: admin.describe_log_dirs({"t": [0]}))
        current, future, lag = "", "", 0
        for directory in answer["log_dirs"]:
            for part in [part for topic in directory["topics"] for part in topic["partitions"]]:
                if part["is_future_key"]:
                    future, lag = directory["log_dir"], part["offset_lag"]
                else:
                    current = directory["log_dir"]
        return ReplicaDirs(current, future, lag)

    def admin(self, do: Any) -> Any:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        try:
            return do(admin)
        finally:
            admin.close()

    def move(self, path: Path) -> None:
        from kafka import TopicPartitionReplica

        replica = TopicPartitionReplica("t", 0, 1)
        (code,) = self.admin(lambda admin: admin.alter_replica_log_dirs({replica: str(path)})).values()
        assert code is None or code.errno == 0, code

    def write(self, count: int) -> None:
        """Writes numbered messages, and retries each until it is acknowledged."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUIET}
        )
        first = len(self.acknowledged)
        taken: dict[int, bytes] = {}

        def done(number: int, value: bytes) -> Any:
            def on_delivery(error: Any, _: Any) -> None:
                assert error is None, error
                taken[number] = value

            return on_delivery

        for number in range(count):
            value = b"%08d" % (first + number) + VALUE
            producer.produce("t", value, partition=0, on_delivery=done(number, value))
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        self.acknowledged += [taken[number] for number in range(count)]

    def stored(self) -> list[bytes]:
        return [value for _, value in read_all(self.broker, "t", 1)[0]]

    def wait_until_moved(self, path: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.describe()) != ReplicaDirs(str(path), "", 0):
            assert time.monotonic() < deadline, found
            self.write(20)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    paths = [tmp_path / "a", tmp_path / "b"]
    config = {
        "log.dirs": ",".join(map(str, paths)),
        "log.segment.bytes": 1_000_000,
        "replica.alter.log.dirs.io.max.bytes.per.second": 4_000_000,
    }
    with Broker(config, data_dir=paths[0]) as broker:
        make_topic(broker, "t", 1)
        yield Site(broker, paths)


def elsewhere(site: Site) -> Path:
    return next(path for path in site.paths if str(path) != site.describe().current)


@pytest.mark.slow
def test_a_move_is_reported_survives_kills_and_loses_no_record(site: Site) -> None:
    site.write(MEGABYTES * 1000)
    target = elsewhere(site)
    site.move(target)
    found = site.describe()
    assert found.future == str(target), found
    assert found.lag > 0
    site.write(100)
    for _ in range(3):
        site.broker.kill()
        site.broker.start()
        site.write(100)
    site.wait_until_moved(target)
    assert site.stored() == site.acknowledged
    site.broker.kill()
    site.broker.start()
    assert site.describe().current == str(target)
    assert site.stored() == site.acknowledged
    assert "Traceback" not in site.broker.log, site.broker.log
    assert not list(target.glob("t-0/moved-to"))


@pytest.mark.parametrize("operation", ["append", "open", "sync"])
def test_a_failed_disk_takes_only_its_partitions_offline(
    tmp_path: Path, new_machine: NewMachine, operation: str
) -> None:
    files = FaultyFiles()
    paths = [str(tmp_path / "data"), str(tmp_path / "more")]
    machine = new_machine(files, log_dirs=",".join(paths)).start()
    client = machine.client()
    flush = {"flush_messages": "1"} if operation == "sync" else {}
    assert client.make_topic("t", 4, **flush) == 0
    for partition in range(4):
        client.produce("t", partition, batch_of(b"before"))
        assert client.produced() == (0, 0)
    broken = {partition for partition in range(4) if files.exists(f"{paths[1]}/t-{partition}")}
    assert len(broken) == 2
    assert described(client) == {paths[0]: 0, paths[1]: 0}
    first = min(broken)
    machine.inside(lambda: files.fail(operation, f"{paths[1]}/t-{first}/", times=1))
    machine.inside(lambda: machine.server.broker.replica_manager.find("t", first).log.close_handlers())
    if operation == "open":
        assert fetched(client, first) == ErrorCode.KAFKA_STORAGE_ERROR
    else:
        client.produce("t", first, batch_of(b"lost"))
        assert client.produced() == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    for partition in range(4):
        client.produce("t", partition, batch_of(b"after"))
        code = client.produced()[0]
        assert code == (ErrorCode.KAFKA_STORAGE_ERROR if partition in broken else 0)
        assert fetched(client, partition) == code
    assert described(client) == {paths[0]: 0, paths[1]: int(ErrorCode.KAFKA_STORAGE_ERROR)}
    machine.power_cut(None)
    machine.start()
    assert described(machine.client()) == {paths[0]: 0, paths[1]: 0}
    machine.stop()


def fetched(client: Client, partition: int) -> int:
    """Returns the error of a fetch from the first offset."""
    part = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[part])]
    request = FetchRequest(session_epoch=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=topics)
    return int(client.ask(ApiKey.FETCH, 11, request).responses[0].partitions[0].error_code)


def described(client: Client) -> dict[str, int]:
    """Returns the error of each data directory, by DescribeLogDirs."""
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 2, DescribeLogDirsRequest(topics=None))
    return {one.log_dir: int(one.error_code) for one in answer.results}
