"""Transactions in every state move with a data directory, and are finished by clients.

They move from Apache Kafka 4.3.1 to Tidemill, and from Tidemill to Apache Kafka 3.9.2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import NewTopic
from kafka_peer import Kafka, ZooKeeper, class_path, free_ports, wait_led
from test_interchange_kafka import kafka_dump, log
from transaction_requests import transaction_version
from transaction_states import (
    BEFORE,
    PARTITIONS,
    STUCK,
    TIMEOUT_S,
    Live,
    begin,
    check_continued,
    create_topic,
    describe,
    finish,
    producer_of,
    values,
    wait_prepared,
    write_expired,
    write_states,
)

from log_start import open_log
from record_builders import build_batch
from tidemill.client import Admin
from tidemill.client.admin_types import TransactionDescription
from tidemill.coordination.coordination_store import Create
from tidemill.coordination.embedded_store import FILE_NAME, EmbeddedStore
from tidemill.coordination.nodes import FEATURE, FeatureNode
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordinator_runtime.coordinator_partition import partition_for
from tidemill.interchange.zookeeper_nodes import read_zookeeper
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition
from tidemill.records.record_reader import iter_stored, read_stored
from tidemill.testing import Broker
from tidemill.transactions import transaction_metadata
from tidemill.transactions.transaction_log import TransactionRecord, decode_record
from tidemill.transactions.transaction_metadata import NO_PRODUCER_ID, STATE_NAMES, TransactionState

START_TIMEOUT_S = 900
BYTES_MAX = 100_000_000
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
NO_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
EXPIRING = {
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}
SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
BARE = "prepared without partitions"
"""With transaction.version 2, a transaction can be aborted before its first partition."""
COUNT = 3
PARTITION_COUNT = {"transaction.state.log.num.partitions": str(COUNT)}
SAFE = {"min.insync.replicas": "2"}

pytestmark = [
    pytest.mark.timeout(START_TIMEOUT_S),
    pytest.mark.xdist_group("kafka-directories"),
    # Of kafka-python: how it reads its own schemas, and the sockets of brokers that stop.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def quiet_client() -> None:
    """Captured log records would keep the sockets of kafka-python until after their test."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)


def properties(settings: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


class Written(NamedTuple):
    """The directory of a killed broker, its transactions, and the producers that continue."""

    data: Path
    port: int
    level: int
    live: Live
    described: dict[str, TransactionDescription]


@pytest.fixture(scope="module", params=[2, 1, 0], ids=lambda level: f"level{level}")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """The directory of Kafka 4.3.1 with transactions in every state.

    Transactions stay prepared because a partition has fewer in-sync replicas than it needs for a marker.
    """
    directory, jars, (port,) = tmp_path_factory.mktemp("kafka"), class_path("4.3.1"), free_ports(1)
    (directory / "2").mkdir()
    kafka = Kafka(jars, directory, directory / "data", port=port, settings=properties(EXPIRING))
    try:
        kafka.start(form=True, features=[f"transaction.version={request.param}"])
        write_expired(kafka.bootstrap)
        kafka.end()
        kafka.settings = properties(NO_TIMEOUTS | SESSIONS)
        kafka.start()
        live = write_states(kafka.bootstrap)
        other = Kafka(
            jars,
            directory / "2",
            directory / "2" / "data",
            node=2,
            voters=kafka.voters,
            settings=properties(SESSIONS),
        )
        try:
            other.start(form=True)
            with Admin(kafka.bootstrap) as admin:
                admin.create_topic(STUCK, assignments={0: [1, 2]}, configs=SAFE)
            wait_led(kafka.bootstrap, [(STUCK, 0)], isr=[1, 2])
            commit = begin(kafka.bootstrap, "prepared commit", STUCK)
            abort = begin(kafka.bootstrap, "prepared abort", STUCK)
        finally:
            other.end(signal.SIGKILL)
        wait_led(kafka.bootstrap, [(STUCK, 0)], isr=[1])
        commit.commit_transaction(TIMEOUT_S)
        abort.abort_transaction(TIMEOUT_S)
        wait_prepared(kafka.bootstrap)
        described = describe(kafka.bootstrap)
    finally:
        kafka.end(signal.SIGKILL)
    yield Written(kafka.data, port, request.param, live, described)
    live.close()


@pytest.mark.clients
def test_transactions_of_kafka_are_finished_here(written: Written, tmp_path: Path) -> None:
    assert {name: one.state for name, one in written.described.items()} == BEFORE
    data = Path(shutil.copytree(written.data, tmp_path / "data"))
    told = json.loads(log("import", data, "--json"))
    assert (told["imported"], told["problems"], told["topics"][TRANSACTION_TOPIC]["partitions"]) == (
        True,
        [],
        2,
    )
    with Broker(QUICK, data_dir=data, port=written.port) as broker:
        assert transaction_version(broker.bootstrap) == written.level
        check_continued(broker.bootstrap, written.described)
        finish(broker.bootstrap, written.live)
        seen, described = values(broker.bootstrap), describe(broker.bootstrap)
        broker.kill()
        broker.start()
        assert values(broker.bootstrap) == seen
        assert describe(broker.bootstrap) == described
        assert "Traceback" not in broker.log
    assert json.loads(log("verify", data, "--json"))["sound"]
    check_decoders(class_path("4.3.1"), data)


@pytest.mark.clients
def test_the_transaction_log_of_kafka_is_shown_as_by_kafka(written: Written) -> None:
    shown = check_decoders(class_path("4.3.1"), written.data)
    expired = '| key: {"type":"0","data":{"transactionalId":"expired"}} payload: '
    assert f"{expired}<DELETE>" in shown
    assert f'{expired}{{"version":"{min(written.level, 1)}","data":{{"producerId":' in shown


def check_decoders(jars: str, data: Path) -> str:
    """``--transaction-log-decoder`` of both tools has the same output; returns it."""
    paths = sorted(data.glob(f"{TRANSACTION_TOPIC}-*/*.log"))
    options = ("--transaction-log-decoder", "--skip-record-metadata")
    theirs = kafka_dump(jars, paths, *options)
    assert log("dump", *options, *paths) == theirs
    return theirs


OLD_LINE = re.compile(
    r"\| key: transaction_metadata::transactionalId=(.*) payload: (?:<DELETE>|producerId:(-?\d+),"
    r"producerEpoch:(-?\d+),state=(\w+),partitions=\[(.*)\],txnLastUpdateTimestamp=(\d+),"
    r"txnTimeoutMs=(\d+))"
)
"""A line of ``kafka-dump-log`` 3.9."""


Shown = tuple[str, tuple[int, int, str, int, int] | None, list[str]]
"""Transactional id; producer id, epoch, state, last update, timeout; partitions."""


def check_old_decoder(jars: str, data: Path) -> None:
    """``kafka-dump-log`` of Kafka 3.9 finds the same values in each record as Tidemill."""
    paths = sorted(data.glob(f"{TRANSACTION_TOPIC}-*/*.log"))
    options = ("--transaction-log-decoder", "--skip-record-metadata")
    theirs = [old_line(line) for line in records_in(kafka_dump(jars, paths, *options))]
    ours = [line_of(line) for line in records_in(log("dump", *options, *paths))]
    assert len(ours) > 2 * len(BEFORE)
    assert theirs == ours


def records_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| key: ")]


def old_line(line: str) -> Shown:
    parsed = OLD_LINE.fullmatch(line)
    assert parsed is not None, line
    name, producer_id, epoch, state, partitions, update_ms, timeout_ms = parsed.groups()
    if producer_id is None:
        return name, None, []
    rest = (int(producer_id), int(epoch), state, int(update_ms), int(timeout_ms))
    return name, rest, sorted(partitions.split(",")) if partitions else []


def line_of(line: str) -> Shown:
    key, _, value = line.removeprefix("| key: ").partition(" payload: ")
    name = json.loads(key)["data"]["transactionalId"]
    if value == "<DELETE>":
        return name, None, []
    one = json.loads(value)["data"]
    state = STATE_NAMES[TransactionState(one["transactionStatus"])]
    times = (one["transactionLastUpdateTimestampMs"], one["transactionTimeoutMs"])
    topics = one["transactionPartitions"] or []
    partitions = [f"{topic['topic']}-{number}" for topic in topics for number in topic["partitionIds"]]
    return name, (one["producerId"], one["producerEpoch"], state, *times), sorted(partitions)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(class_path("3.9.2"), tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.end()


@pytest.fixture(params=[2, 0], ids=lambda level: f"level{level}")
def written_here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    """The directory of Tidemill with transactions in every state."""
    data, (port,), level = tmp_path / "data", free_ports(1), request.param
    with Broker(PARTITION_COUNT | EXPIRING, data_dir=data, port=port) as broker:
        write_expired(broker.bootstrap)
    asyncio.run(set_level(data, level))
    with Broker(PARTITION_COUNT | NO_TIMEOUTS, data_dir=data, port=port) as broker:
        assert transaction_version(broker.bootstrap) == level
        create_topic(broker.bootstrap, NewTopic(STUCK, 1))
        live = write_states(broker.bootstrap)
        for end in ("commit", "abort"):
            begin(broker.bootstrap, f"prepared {end}", STUCK)
        producer_of(broker.bootstrap, BARE)
        described = describe(broker.bootstrap)
        broker.kill()
    prepare(data, "prepared commit", level, is_commit=True)
    prepare(data, "prepared abort", level, is_commit=False)
    prepare(data, BARE, level, is_commit=False)
    yield Written(data, port, level, live, described)
    live.close()


@pytest.mark.slow
def test_transactions_are_finished_after_a_crash(written_here: Written) -> None:
    data, port = written_here.data, written_here.port
    with Broker(QUICK, data_dir=data, port=port) as broker:
        check_continued(broker.bootstrap, written_here.described)
        finish(broker.bootstrap, written_here.live)
        assert "Traceback" not in broker.log


@pytest.mark.clients
def test_transactions_of_tidemill_are_finished_by_kafka(
    written_here: Written, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    data, jars = written_here.data, class_path("3.9.2")
    check_decoders(class_path("4.3.1"), data)
    check_old_decoder(jars, data)
    address = f"{zookeeper.address}/{tmp_path.name}"
    told = json.loads(log("export", data, "--in-place", "--zookeeper", address, "--json"))
    assert (told["exported"], told["topics"][TRANSACTION_TOPIC]["partitions"]) == (True, COUNT)
    settings = properties(told["server_properties"] | QUICK)
    kafka = Kafka(jars, tmp_path, data, zookeeper=address, settings=settings, port=written_here.port)
    try:
        kafka.start()
        wait_led(kafka.bootstrap, [(TRANSACTION_TOPIC, number) for number in range(COUNT)])
        check_continued(kafka.bootstrap, written_here.described)
        finish(kafka.bootstrap, written_here.live)
        seen = values(kafka.bootstrap)
    finally:
        kafka.end()
    assert FeatureNode.decode(read_zookeeper(address)[FEATURE]) == {}
    log("import", data, "--zookeeper", address)
    with Broker(QUICK, data_dir=data) as broker:
        assert transaction_version(broker.bootstrap) == 0
        assert values(broker.bootstrap) == seen


async def set_level(data: Path, level: int) -> None:
    store = EmbeddedStore.open(f"{data}/{FILE_NAME}")
    await store.transact([Create(FEATURE, FeatureNode.encode({"transaction.version": level}))])
    await store.close()


def opened(data: Path, partition: TopicPartition) -> Log:
    directory = str(data / str(partition))
    return open_log(SystemFiles(), directory, partition, LogConfig(), now_ms=1)


def prepare(data: Path, name: str, level: int, *, is_commit: bool) -> None:
    """Decides a transaction, and writes its marker into one partition of several.

    A broker is in this state for some milliseconds only.
    """
    where = TopicPartition(TRANSACTION_TOPIC, partition_for(name, COUNT))
    record = last_record(data, where, name)
    assert record.metadata is not None
    now_ms = int(time.time() * 1000)
    decided = transaction_metadata.prepare_end(
        record.metadata,
        is_commit=is_commit,
        client_version=level,
        next_producer_id=NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    written = record._replace(metadata=decided)
    log = opened(data, where)
    rows = [(now_ms, written.key_bytes(), written.value_bytes(), None)]
    epoch = int(log.leader_epochs.latest)
    log.append_copied(build_batch(rows, base_offset=int(log.end_offset), leader_epoch=epoch), now_ms)
    log.close(now_ms)
    if not decided.partitions:
        return
    log = opened(data, PARTITIONS[0])
    marker = (is_commit, decided.producer_id, decided.producer_epoch, epoch, level >= 2)
    log.append_marker(*marker, int(log.leader_epochs.latest), now_ms)
    log.close(now_ms)


def last_record(data: Path, where: TopicPartition, name: str) -> TransactionRecord:
    found = None
    for path in sorted((data / str(where)).glob("*.log")):
        for batch in iter_stored(path.read_bytes()):
            for record in read_stored(batch, True, BYTES_MAX):
                decoded = decode_record(record.key, record.value)
                found = decoded if decoded is not None and decoded.transactional_id == name else found
    assert found is not None
    return found
