"""``tidemill log import``: directories of Apache Kafka that are served afterwards, and the errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from kafka_peer import see
from kafka_record import as_json
from transaction_requests import end_transaction, transaction_version

from log_start import open_log
from record_builders import build_batch
from tidemill.cli.main import command, run
from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.client import Producer as ClientProducer
from tidemill.coordination.coordination_store import SetData, subtree
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import FEATURE, FeatureNode
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.interchange import zookeeper_nodes
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import LAST_EPOCH, TransactionMetadata, TransactionState

RECORDED = Path(__file__).parent / "recorded"
KINDS = ("kraft", "zookeeper")
CONFIG = {"offsets.retention.minutes": "99999999"}
INDEX_BYTES = 10 * 1024 * 1024
STORE = "coordination.db"


def copied(kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED / kind / "data", tmp_path / "data"))


def source(kind: str) -> list[str]:
    return [] if kind == "kraft" else ["--nodes", str(RECORDED / "zookeeper" / "nodes.json")]


def called(*arguments: object) -> Any:
    every = ["log", "import", *map(str, arguments), "--json"]
    result = CliRunner().invoke(command, every, prog_name="tidemill", standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout) | {"exit": result.return_value or 0}


def failed(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    assert run(["log", "import", *map(str, arguments)]) == code
    return capsys.readouterr().err


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def as_if_killed(data: Path) -> None:
    """Imitates kill -9: no clean shutdown file, and indexes of full size with zeros at their ends."""
    (data / ".kafka_cleanshutdown").unlink()
    for path in [*data.glob("*/*.index"), *data.glob("*/*.timeindex")]:
        os.truncate(path, INDEX_BYTES // 12 * 12)
    for path in data.glob("[a-z]*/*.snapshot"):
        path.unlink()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_clients_read_the_same_as_on_kafka(kind: str, killed: bool, tmp_path: Path) -> None:
    data = copied(kind, tmp_path)
    if killed:
        as_if_killed(data)
    told = called(data, *source(kind))
    assert (told["exit"], told["imported"], told["clean_shutdown"]) == (0, True, not killed)
    with Broker(CONFIG, data_dir=data) as broker:
        assert as_json(see(broker.bootstrap)) == as_lists(kind)
        continued(broker.bootstrap)
        broker.restart()
        again = see(broker.bootstrap)
    assert len(again.records["codecs", 0]) == 41
    assert again.offsets["readers", "codecs", 0] == 41


def as_lists(kind: str) -> Any:
    seen = json.loads((RECORDED / kind / "seen.json").read_text())
    for records in seen["records"].values():
        for record in records:
            record[5] = [list(header) for header in record[5]]
    seen["ends"] = {key: tuple(ends) for key, ends in seen["ends"].items()}
    return seen


def continued(bootstrap: str) -> None:
    """Writes another record, and continues reading as the group at its offset from Kafka."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("codecs", b"later", partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "error"})
    consumer.subscribe(["codecs"])
    found = []
    while len(found) < 30:
        found += consumer.consume(30 - len(found), timeout=30)
    assert [message.offset() for message in found] == list(range(11, 41))
    assert found[-1].value() == b"later"
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_directories_are_unchanged(kind: str, tmp_path: Path) -> None:
    data = copied(kind, tmp_path)
    before = contents(data)
    assert called(data, *source(kind), "--dry-run")["imported"] is False
    assert contents(data) == before
    assert called(data, *source(kind))["imported"] is True
    after = contents(data)
    assert after.pop(STORE)
    assert after.pop(f"{STORE}-last-id")
    assert after == before


def test_the_import_prints_its_result_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copied("kraft", tmp_path)
    assert run(["log", "import", str(data)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "broker 1 of cluster 4L6g3nShT-eMCtK--X86sw, from KRaft's metadata in "
        f"{data}/__cluster_metadata-0: 6 topics, 8 partitions, 5.5 kB",
        f"imported; now: tidemill serve --data {data}",
    ]


def served(data: Path) -> str:
    """Returns the output of a broker that refuses to serve a directory."""
    # A separate process: a broker configures the logging of the whole process.
    arguments = [sys.executable, "-m", "tidemill", "serve", "--data", str(data), "--port", "0"]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 1
    return process.stderr


def test_serve_refuses_a_directory_of_kafka_with_the_next_step(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    before = contents(data)
    said = served(data)
    assert f"'tidemill log import {data}'" in said
    assert said.count("\n") == 1
    assert contents(data) == before


def test_a_directory_that_was_imported_is_not_imported_again(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    called(data)
    told = called(data)
    assert told["exit"] == 1
    assert "already holds the state of a Tidemill cluster" in told["problems"][0]


def test_a_directory_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes-1").mkdir()
    said = failed(capsys, 1, tmp_path)
    assert f"{tmp_path} is not a data directory of a broker" in said
    assert "name the log.dirs of the broker" in said


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_directory_in_use_is_refused(
    dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copied("kraft", tmp_path)
    called(data)
    with Broker(CONFIG, data_dir=data):
        assert f"{data} is in use by a broker" in failed(capsys, 1, data, *dry)


def test_missing_metadata_is_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = copied("zookeeper", tmp_path)
    said = failed(capsys, 2, data)
    assert "--zookeeper HOST:PORT/CHROOT" in said
    assert "--without-settings" in said


@pytest.mark.parametrize(
    ("address", "text"),
    [("127.0.0.1:1/kafka", "ZooKeeper at 127.0.0.1:1 does not answer"), ("zk:port", "zk:port is not an")],
)
def test_an_unreachable_zookeeper_is_reported_by_the_import(
    address: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(zookeeper_nodes, "CONNECT_S", 0.5)
    data = copied("zookeeper", tmp_path)
    assert run(["log", "import", str(data), "--zookeeper", address]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"tidemill: {text}")
    assert not (data / STORE).exists()


def test_two_sources_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = copied("zookeeper", tmp_path)
    said = failed(capsys, 2, data, *source("zookeeper"), "--without-settings")
    assert "--nodes and --without-settings cannot be combined" in said


def test_without_settings_topics_are_kept_for_ever(tmp_path: Path) -> None:
    data = copied("zookeeper", tmp_path)
    told = called(data, "--without-settings")
    assert told["topics"]["old0"]["config"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert told["topics"]["__consumer_offsets"]["config"]["cleanup.policy"] == "compact"
    with Broker(CONFIG, data_dir=data) as broker:
        seen = as_json(see(broker.bootstrap))
    assert seen["records"] == as_lists("zookeeper")["records"]
    assert seen["offsets"] == as_lists("zookeeper")["offsets"]


def test_nodes_of_another_cluster_are_refused(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    told = called(data, *source("zookeeper"))
    assert (told["exit"], told["imported"]) == (1, False)
    assert "belongs to cluster 4L6g3nShT-eMCtK--X86sw" in told["problems"][0]
    assert not (data / STORE).exists()


def test_a_missing_partition_is_refused_or_created_empty(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    shutil.rmtree(data / "stamped-1")
    told = called(data)
    assert told["problems"] == [
        "topic stamped: partition 1 is in none of the directories: name every directory of log.dirs, or "
        "create empty ones with --missing-as-empty"
    ]
    assert called(data, "--missing-as-empty")["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker:
        seen = see(broker.bootstrap)
    assert seen.records["stamped", 1] == []
    assert len(seen.records["stamped", 0]) == 4


def test_a_damaged_snapshot_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = copied("kraft", tmp_path)
    (snapshot,) = data.glob("__cluster_metadata-0/*.checkpoint")
    snapshot.chmod(0o600)
    snapshot.write_bytes(snapshot.read_bytes()[:-30])
    said = failed(capsys, 1, data)
    assert "is damaged" in said
    assert "name the metadata directory of another controller" in said
    assert not (data / STORE).exists()


def test_a_snapshot_without_its_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = copied("kraft", tmp_path)
    (snapshot,) = data.glob("__cluster_metadata-0/*.checkpoint")
    (data / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    said = failed(capsys, 1, data)
    assert said.startswith(f"tidemill: {snapshot} is the metadata as of offset 41, and there is no log")
    assert "--without-settings" in said
    assert not (data / STORE).exists()
    assert called(data, "--without-settings")["exit"] == 0


def test_metadata_without_the_existing_offsets_topic_is_refused(tmp_path: Path) -> None:
    nodes = json.loads((RECORDED / "zookeeper" / "nodes.json").read_text())
    kept = {path: data for path, data in nodes.items() if "__consumer_offsets" not in path}
    older = tmp_path / "older.json"
    older.write_text(json.dumps(kept))
    data = copied("zookeeper", tmp_path)
    (problem,) = called(data, "--nodes", older)["problems"]
    assert problem.startswith(f"{data}/__consumer_offsets-0 holds committed offsets, and {older} has no")


def stored(data: Path) -> dict[str, str]:
    """Returns the nodes of the store below /consumers."""

    async def story() -> dict[str, str]:
        store = EmbeddedStore.open(str(data / STORE))
        try:
            paths = await subtree(store, "/consumers")
            return {
                path: node.data.decode()
                for path, node in zip(paths, await store.get_many(paths), strict=True)
                if node is not None and node.data
            }
        finally:
            await store.close()

    return asyncio.run(story())


KEPT = {"/consumers/old/offsets/codecs/0": "7", "/consumers/an old one/offsets/codecs/0": "11"}
NOT_KEPT = {
    "/consumers/old/offsets/codecs/99": "1",
    "/consumers/old/offsets/gone/0": "2",
    "/consumers/old/offsets/stamped/0": "many",
    "/consumers/old/ids/old_host-1": '{"version":1}',
    "/consumers/old/owners/codecs/0": "old_host-1-0",
}


def test_offsets_in_zookeeper_are_imported(tmp_path: Path) -> None:
    nodes = json.loads((RECORDED / "zookeeper" / "nodes.json").read_text())
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(nodes | KEPT | NOT_KEPT))
    data = copied("zookeeper", tmp_path)
    told = called(data, "--nodes", path)
    assert (told["exit"], told["problems"], told["group_offsets"]) == (0, [], 2)
    assert stored(data) == KEPT
    assert any("2 offsets that groups kept in ZooKeeper" in note for note in told["notes"])
    assert any(note.endswith("are omitted: codecs of group old, gone of group old") for note in told["notes"])
    assert any("/consumers/old/offsets/stamped/0 holds 'many'" in note for note in told["notes"])
    with Broker(CONFIG, data_dir=data):
        pass  # A start of the broker does not remove them.
    assert stored(data) == KEPT


def test_offsets_of_groups_are_imported_from_and_exported_to_zookeeper(
    zookeeper: Callable[..., ZooKeeperSettings], tmp_path: Path
) -> None:
    """With running consumers, and with groups without offsets."""
    settings = zookeeper()
    address = f"{settings.hosts}{settings.chroot}"
    nodes = zookeeper_nodes.read_file(str(RECORDED / "zookeeper" / "nodes.json"))
    nodes |= {path: text.encode() for path, text in KEPT.items()}
    written = zookeeper_nodes.to_nodes(zookeeper_nodes.from_nodes(nodes, "nodes"))
    written |= {"/consumers/idle": b"", "/consumers/idle/ids": b"", "/consumers/idle/ids/idle_host-1": b"{}"}
    zookeeper_nodes.write_zookeeper(address, written)
    data, there = copied("zookeeper", tmp_path), f"{address}/there"
    assert called(data, "--zookeeper", address)["group_offsets"] == 2
    result = CliRunner().invoke(
        command, ["log", "export", str(data), "--in-place", "--zookeeper", there], prog_name="tidemill"
    )
    assert result.exit_code == 0, result.output
    again = zookeeper_nodes.read_zookeeper(there)
    assert {
        node: again[node].decode() for node in again if node.startswith("/consumers") and again[node]
    } == KEPT


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_an_unrelated_broken_link_is_reported_and_ignored(dry: list[str], tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    (data / "backup-1").symlink_to("/gone/backup")
    (data / "notes").symlink_to("/gone/notes")
    told = called(data, *dry)
    assert (told["exit"], told["problems"]) == (0, [])
    assert told["notes"] == [f"{data}/backup-1 is a link to a missing file: it is ignored"]


@pytest.mark.parametrize("way", [[], ["--without-settings"], ["--missing-as-empty"]])
def test_a_partition_behind_a_broken_link_is_named(way: list[str], tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    (data / "stamped-1").rename(tmp_path / "elsewhere")
    (data / "stamped-1").symlink_to(tmp_path / "gone")
    told = called(data, *way)
    assert (told["exit"], told["imported"]) == (1, False)
    assert (
        f"{data}/stamped-1 is a link to a missing file, and stamped-1 was in it: restore the target of "
        "the link, or remove the link if the target is permanently lost"
    ) in told["problems"]


def test_metadata_is_read_from_another_directory(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    elsewhere = tmp_path / "metadata"
    elsewhere.mkdir()
    (data / "__cluster_metadata-0").rename(elsewhere / "__cluster_metadata-0")
    assert called(data, "--metadata", elsewhere, "--dry-run")["exit"] == 0
    assert called(data, "--metadata", elsewhere / "__cluster_metadata-0")["exit"] == 0


def test_several_directories_of_one_broker(tmp_path: Path) -> None:
    first = copied("kraft", tmp_path)
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(first / "meta.properties", second)
    for name in ("codecs-0", "stamped-1"):
        (first / name).rename(second / name)
    assert called(first)["exit"] == 1
    told = called(first, second)
    assert (told["exit"], told["directories"]) == (0, [str(first), str(second)])
    with Broker(CONFIG | {"log.dirs": f"{first},{second}"}, data_dir=first) as broker:
        assert as_json(see(broker.bootstrap))["records"] == as_lists("kraft")["records"]


def test_directories_of_two_brokers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = copied("kraft", tmp_path)
    second = shutil.copytree(RECORDED / "zookeeper" / "data", tmp_path / "second")
    for path in second.glob("*-[0-9]"):
        shutil.rmtree(path)
    assert "these are not the directories of one broker" in failed(capsys, 1, first, second)


def test_a_duplicate_partition_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = copied("kraft", tmp_path)
    second = shutil.copytree(first, tmp_path / "second")
    assert "partition __consumer_offsets-0 is in" in failed(capsys, 1, first, second)


def edited_nodes(tmp_path: Path, path: str, **values: Any) -> Path:
    nodes = json.loads((RECORDED / "zookeeper" / "nodes.json").read_text())
    nodes[path] = json.dumps(json.loads(nodes.get(path, "{}")) | values)
    target = tmp_path / "nodes.json"
    target.write_text(json.dumps(nodes))
    return target


def test_a_directory_of_an_earlier_topic_is_refused(tmp_path: Path) -> None:
    nodes = edited_nodes(tmp_path, "/brokers/topics/kept", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    (problem,) = called(copied("zookeeper", tmp_path), "--nodes", nodes)["problems"]
    assert "the cluster's kept has id AAAAAAAAAAAAAAAAAAAAAQ" in problem
    assert "move it away" in problem


def test_a_replica_that_was_behind_is_refused(tmp_path: Path) -> None:
    nodes = edited_nodes(tmp_path, "/brokers/topics/kept/partitions/0/state", isr=[3, 2], leader=3)
    (problem,) = called(copied("zookeeper", tmp_path), "--nodes", nodes)["problems"]
    assert "partition kept-0 was not in sync on broker 1: import the directories of broker 3" in problem


def test_a_topic_with_partitions_on_other_brokers_is_refused_or_omitted(tmp_path: Path) -> None:
    data = copied("zookeeper", tmp_path)
    nodes = edited_nodes(tmp_path, "/brokers/topics/kept", partitions={"0": [1], "1": [2], "2": [3]})
    (problem,) = called(data, "--nodes", nodes)["problems"]
    assert "topic kept: partitions 1, 2 are on other brokers than 1" in problem
    told = called(data, "--nodes", nodes, "--only-whole")
    assert told["exit"] == 0
    assert "kept" not in told["topics"]
    assert told["left_alone"] == [f"{data}/kept-0"]


def test_the_loss_of_group_offsets_is_reported(tmp_path: Path) -> None:
    path = "/brokers/topics/__consumer_offsets"
    nodes = edited_nodes(tmp_path, path, partitions={"0": [1], "1": [2]})
    told = called(copied("zookeeper", tmp_path), "--nodes", nodes, "--only-whole")
    assert told["notes"] == [
        "topic __consumer_offsets is omitted: partition 1 is on other brokers",
        "the committed offsets of all groups are omitted with it: the groups start without offsets",
    ]


def test_producers_get_no_ids_of_the_logs_after_the_loss_of_the_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(CONFIG, data_dir=data) as broker:
        one_word(broker.bootstrap, b"before")
    for path in data.glob(f"{STORE}*"):
        path.unlink()
    assert called(data, "--without-settings")["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker:
        one_word(broker.bootstrap, b"after")  # The log would treat it as a duplicate of the first word.
        seen = see(broker.bootstrap)
    assert [record[3] for record in seen.records["words", 0]] == [b"before", b"after"]


def one_word(bootstrap: str, word: bytes, topic: str = "words") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, word, partition=0)
    assert producer.flush(30) == 0


def opened(data: Path, topic: str) -> Log:
    """Opens the log of partition 0 of a topic as Kafka left it."""
    key = TopicPartition(topic, 0)
    return open_log(SystemFiles(), str(data / f"{topic}-0"), key, LogConfig(), now_ms=1, clean=True)


def append(data: Path, topic: str, key: bytes | None, value: bytes, **options: Any) -> None:
    """Appends a record to partition 0 of a topic."""
    log = opened(data, topic)
    rows = [(int(time.time() * 1000), key, value, None)]
    log.append_copied(build_batch(rows, base_offset=int(log.end_offset), leader_epoch=0, **options), 1)
    log.close(1)


def write_open(data: Path, value: bytes, producer_id: int = 90, epoch: int = 2) -> None:
    """Appends the first record of a transaction."""
    options: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": 0}
    append(data, "bought", None, value, transactional=True, **options)


def write_state(data: Path, name: str, state: TransactionState, producer_id: int = 90, **fields: Any) -> None:
    """Appends a record of the transaction coordinator to its recorded log."""
    metadata = TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=2,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset({TopicPartition("bought", 0)}),
        update_ms=int(time.time() * 1000),
        start_ms=int(time.time() * 1000),
    )
    record = TransactionRecord(name, metadata._replace(**fields))
    value = record.value_bytes()
    assert value is not None
    append(data, TRANSACTION_TOPIC, record.key_bytes(), value)


def until_described(admin: Admin, name: str, state: str) -> None:
    """Waits until a transactional id has a state."""
    for _ in until_found():
        if admin.describe_transaction(name).state == state:
            return


def until_found() -> Iterator[None]:
    """Yields up to a deadline, with pauses."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
    raise AssertionError("it did not come in 30 s")


def bought(bootstrap: str, isolation: str = "read_committed") -> list[bytes]:
    """Returns the values of ``bought`` that Kafka has not written."""
    records = see(bootstrap, isolation=isolation).records["bought", 0]
    return [record[3] for record in records if not record[3].startswith(b"sale")]


@pytest.mark.parametrize(
    ("state", "ended", "values"),
    [
        (TransactionState.PREPARE_COMMIT, "CompleteCommit", [b"perhaps", b"later"]),
        (TransactionState.PREPARE_ABORT, "CompleteAbort", [b"later"]),
    ],
)
def test_a_decided_transaction_of_kafka_gets_its_markers(
    state: TransactionState, ended: str, values: list[bytes], tmp_path: Path
) -> None:
    data = copied("kraft", tmp_path)
    write_open(data, b"perhaps")
    write_state(data, "buyer", state)
    append(data, "bought", None, b"later")
    told = called(data)
    assert (told["exit"], told["problems"], told["notes"]) == (0, [], [])
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        until_described(admin, "buyer", ended)
        assert admin.describe_transaction("till").state == "CompleteCommit"
        assert bought(broker.bootstrap) == values
        broker.restart()
        assert admin.describe_transaction("buyer").state == ended
        assert bought(broker.bootstrap) == values
        assert bought(broker.bootstrap, "read_uncommitted") == [b"perhaps", b"later"]


def test_transactions_of_kafka_without_partitions_end(tmp_path: Path) -> None:
    data, bare = copied("kraft", tmp_path), {"partitions": frozenset[TopicPartition]()}
    write_state(data, "decided", TransactionState.PREPARE_ABORT, 90, **bare)
    write_state(data, "open", TransactionState.ONGOING, 91, **bare)
    assert called(data)["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        until_described(admin, "decided", "CompleteAbort")
        assert admin.describe_transaction("open").state == "Ongoing"
        ended = end_transaction(broker.bootstrap, "open", 91, 2, is_commit=True, version=4)
        assert ended.error_code == 0
        until_described(admin, "open", "CompleteCommit")


def test_a_decided_transaction_of_kafka_ends_with_the_next_producer_id(tmp_path: Path) -> None:
    """The epochs of producer id 90 are used up: Kafka has assigned the next id with the decision."""
    data = copied("kraft", tmp_path)
    write_open(data, b"perhaps", epoch=LAST_EPOCH)
    fields = {"producer_epoch": LAST_EPOCH + 1, "previous_producer_id": 90, "next_producer_id": 95}
    write_state(data, "buyer", TransactionState.PREPARE_COMMIT, client_version=2, **fields)
    assert called(data)["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        until_described(admin, "buyer", "CompleteCommit")
        found = admin.describe_transaction("buyer")
        assert (found.producer_id, found.producer_epoch) == (95, 0)
        assert bought(broker.bootstrap) == [b"perhaps"]
        repeated = end_transaction(broker.bootstrap, "buyer", 90, LAST_EPOCH, is_commit=True, version=5)
        assert (repeated.error_code, repeated.producer_id, repeated.producer_epoch) == (0, 95, 0)


def test_an_open_transaction_of_kafka_is_continued_by_its_producer(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    write_open(data, b"perhaps")
    write_state(data, "buyer", TransactionState.ONGOING, client_version=2)
    assert called(data)["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        found = admin.describe_transaction("buyer")
        assert (found.state, found.producer_id, found.producer_epoch) == ("Ongoing", 90, 2)
        assert bought(broker.bootstrap) == []
        ended = end_transaction(broker.bootstrap, "buyer", 90, 2, is_commit=True, version=5)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, 90, 3)
        until_described(admin, "buyer", "CompleteCommit")
        assert bought(broker.bootstrap) == [b"perhaps"]


def test_open_transactions_of_kafka_are_aborted_by_the_next_producer_or_their_timeout(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    write_open(data, b"left", 90)
    write_open(data, b"slow", 91)
    write_state(data, "left", TransactionState.ONGOING, 90)
    write_state(data, "slow", TransactionState.ONGOING, 91, timeout_ms=1000)
    assert called(data)["exit"] == 0
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with Broker(CONFIG | interval, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        until_described(admin, "slow", "CompleteAbort")
        assert admin.describe_transaction("left").state == "Ongoing"
        config = {"transactional.id": "left"}
        with ClientProducer(broker.bootstrap, config) as producer, producer.transaction():
            producer.send("bought", b"again")
        until_described(admin, "left", "CompleteCommit")
        assert bought(broker.bootstrap) == [b"again"]
        assert bought(broker.bootstrap, "read_uncommitted") == [b"left", b"slow", b"again"]


def test_a_transaction_without_coordinator_is_found_and_aborted(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    write_open(data, b"perhaps")
    offset = int(opened(data, "bought").end_offset) - 1
    shutil.rmtree(data / f"{TRANSACTION_TOPIC}-0")
    assert called(data, "--without-settings")["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker:
        assert bought(broker.bootstrap) == []
        target = ["--bootstrap-server", broker.bootstrap]
        runner = CliRunner()
        told = runner.invoke(command, ["transaction", "find-hanging", "--idle-for", "0s", "--json", *target])
        (hanging,) = json.loads(told.stdout)
        assert (hanging["partition"], hanging["start_offset"]) == ("bought-0", offset)
        where = ["--topic", "bought", "--partition", "0", "--first-offset", str(offset)]
        assert runner.invoke(command, ["transaction", "abort", *where, "-y", *target]).exit_code == 0
        one_word(broker.bootstrap, b"later", "bought")
        assert bought(broker.bootstrap) == [b"later"]


def test_a_damaged_record_of_the_transaction_state_costs_its_own_transaction(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    write_open(data, b"perhaps")
    append(data, TRANSACTION_TOPIC, b"\0\0\0\x03bad", b"\0\1rest")
    write_state(data, "buyer", TransactionState.PREPARE_COMMIT)
    assert called(data)["exit"] == 0
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        until_described(admin, "buyer", "CompleteCommit")
        assert bought(broker.bootstrap) == [b"perhaps"]
        assert f"{TRANSACTION_TOPIC}-0: the data from offset 10 is skipped" in broker.log


def test_the_loss_of_transactions_is_reported(tmp_path: Path) -> None:
    path = f"/brokers/topics/{TRANSACTION_TOPIC}"
    nodes = edited_nodes(tmp_path, path, partitions={"0": [2]})
    told = called(copied("zookeeper", tmp_path), "--nodes", nodes, "--only-whole")
    assert told["notes"] == [
        f"topic {TRANSACTION_TOPIC} is omitted: partition 0 is on other brokers",
        "the state of all transactions is omitted with it: no coordinator ends those that are open; "
        "'tidemill transaction find-hanging' names them after the start, and 'transaction abort' ends them",
    ]


@pytest.mark.parametrize("topic", ["__consumer_offsets", TRANSACTION_TOPIC])
def test_metadata_without_an_internal_topic_is_refused(topic: str, tmp_path: Path) -> None:
    nodes = json.loads((RECORDED / "zookeeper" / "nodes.json").read_text())
    path = tmp_path / "nodes.json"
    kept = {name: text for name, text in nodes.items() if f"/brokers/topics/{topic}" not in name}
    path.write_text(json.dumps(kept))
    (problem,) = called(copied("zookeeper", tmp_path), "--nodes", path)["problems"]
    assert problem.startswith(f"{tmp_path / 'data'}/{topic}-0 holds ")
    assert f"has no topic {topic}: it is older than the directories" in problem


def test_producers_get_no_ids_of_transactional_ids_without_metadata(tmp_path: Path) -> None:
    data = copied("kraft", tmp_path)
    write_state(data, "idle", TransactionState.COMPLETE_COMMIT, 2_000_000, partitions=frozenset())
    assert called(data, "--without-settings")["exit"] == 0
    config = {"transactional.id": "other"}
    with Broker(CONFIG, data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        with ClientProducer(broker.bootstrap, config) as producer:
            producer.begin()
        assert admin.describe_transaction("other").producer_id > 2_000_000
        assert admin.describe_transaction("idle").producer_id == 2_000_000


@pytest.mark.parametrize(
    ("kind", "feature", "level"),
    [
        ("kraft", None, 2),
        ("zookeeper", None, None),
        ("zookeeper", {"version": 2, "status": 1, "features": {}}, 0),
        ("zookeeper", {"version": 2, "status": 1, "features": {"transaction.version": 1}}, 1),
    ],
)
def test_the_transaction_version_is_imported(
    kind: str, feature: dict[str, Any] | None, level: int | None, tmp_path: Path
) -> None:
    data, source_options = copied(kind, tmp_path), source(kind)
    if feature is not None:
        nodes = json.loads((RECORDED / "zookeeper" / "nodes.json").read_text())
        (tmp_path / "nodes.json").write_text(json.dumps(nodes | {FEATURE: json.dumps(feature)}))
        source_options = ["--nodes", str(tmp_path / "nodes.json")]
    assert called(data, *source_options)["exit"] == 0
    stored = asyncio.run(node_of(data, FEATURE))
    found = None if stored is None else FeatureNode.decode(stored)
    assert found == (None if level is None else {"transaction.version": level} if level else {})
    with Broker(CONFIG, data_dir=data) as broker:
        assert transaction_version(broker.bootstrap) == (2 if level is None else level)


def test_a_cluster_of_kafka_on_zookeeper_has_no_transaction_version(tmp_path: Path) -> None:
    """A whole cluster takes over the node, which Kafka created without the feature."""
    data = copied("kraft", tmp_path)
    assert called(data)["exit"] == 0
    asyncio.run(set_node(data, FEATURE, b'{"features":{},"version":2,"status":1}'))
    with Broker(CONFIG, data_dir=data) as broker:
        assert transaction_version(broker.bootstrap) == 0


async def set_node(data: Path, path: str, value: bytes) -> None:
    store = EmbeddedStore.open(str(data / STORE))
    await store.transact([SetData(path, value)])
    await store.close()


async def node_of(data: Path, path: str) -> bytes | None:
    store = EmbeddedStore.open(str(data / STORE))
    node = await store.get(path)
    await store.close()
    return None if node is None else node.data


def test_unknown_settings_are_reported(tmp_path: Path) -> None:
    config = {"compression.snappy.level": "4", "retention.ms": "-1"}
    nodes = edited_nodes(tmp_path, "/config/topics/codecs", config=config)
    told = called(copied("zookeeper", tmp_path), "--nodes", nodes)
    assert told["topics"]["codecs"]["config"] == {"retention.ms": "-1"}
    (note,) = told["notes"]
    assert note.startswith("topic codecs: compression.snappy.level=4 is omitted")


def test_supported_group_settings_are_imported(tmp_path: Path) -> None:
    config = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "1", "gone.key": "1"}
    nodes = edited_nodes(tmp_path, "/config/groups/team%2F1", config=config, version=1)
    directory = copied("zookeeper", tmp_path)
    told = called(directory, "--nodes", nodes)
    assert told["group_configs"] == {"team/1": {"consumer.session.timeout.ms": "50000"}}
    assert [note.partition(" of group team/1 is omitted")[0] for note in told["notes"]] == [
        "the setting consumer.heartbeat.interval.ms",
        "the setting gone.key",
    ]
    with Broker(CONFIG, data_dir=directory) as broker, Admin(broker.bootstrap) as admin:
        group = ConfigResource(ResourceType.GROUP, "team/1")
        assert admin.describe_configs(group)["consumer.session.timeout.ms"].value == "50000"


def test_no_record_is_deleted_for_lack_of_an_unsupported_setting(tmp_path: Path) -> None:
    config = {"cleanup.policy": "shred", "retention.ms": "60000"}
    nodes = edited_nodes(tmp_path, "/config/topics/codecs", config=config)
    told = called(copied("zookeeper", tmp_path), "--nodes", nodes)
    assert told["topics"]["codecs"]["config"] == {
        "cleanup.policy": "delete",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    (note,) = told["notes"]
    assert note.startswith("topic codecs: cleanup.policy=shred is omitted")
