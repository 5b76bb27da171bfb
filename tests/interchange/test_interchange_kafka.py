"""Apache Kafka's data is imported and served, and exported again: 4.3.1 on KRaft, 3.9.2 on ZooKeeper."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic, ResourceType
from kafka_peer import (
    CODECS,
    Kafka,
    Seen,
    ZooKeeper,
    buy,
    check_same,
    class_path,
    commit_otherwise,
    fill,
    java,
    keep,
    read_all,
    see,
    wait_led,
)
from kafka_record import commit, produce, set_config

from default_limits import DumpOptions, dump_lines
from tidemill.interchange.zookeeper_nodes import from_nodes, read_zookeeper, to_nodes
from tidemill.log.system_files import SystemFiles
from tidemill.testing import Broker

START_TIMEOUT_S = 600
VERSIONS = {"kraft": "4.3.1", "zookeeper": "3.9.2"}
CONFIG = {"log.segment.bytes": "1048576", "log.index.interval.bytes": "1000"}
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(START_TIMEOUT_S),
    pytest.mark.xdist_group("kafka-directories"),
]


class Written(NamedTuple):
    """The data of a killed or stopped Kafka broker, its nodes, and the content that clients read."""

    killed: Path
    stopped: Path
    zookeeper: str
    seen: Seen

    def data(self, how: str, tmp_path: Path) -> Path:
        """Copies the data for one test."""
        target = tmp_path / "data"
        subprocess.run(["cp", "-a", "--sparse=always", str(getattr(self, how)), str(target)], check=True)
        return target

    @property
    def source(self) -> list[str]:
        """Returns the options for the source of topics and settings."""
        return ["--zookeeper", self.zookeeper] if self.zookeeper else []


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(class_path("3.9.2"), tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.end()


@pytest.fixture(scope="module", params=list(VERSIONS))
def written(
    request: pytest.FixtureRequest, zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Written:
    on_zookeeper = request.param == "zookeeper"
    directory = tmp_path_factory.mktemp(request.param)
    address = f"{zookeeper.address}/kafka" if on_zookeeper else ""
    kafka = Kafka(class_path(VERSIONS[request.param]), directory, directory / "data", zookeeper=address)
    try:
        kafka.start(form=not on_zookeeper)
        fill(kafka.bootstrap)
        if not on_zookeeper:
            commit_otherwise(kafka.bootstrap)
        seen = see(kafka.bootstrap)
        kafka.end(signal.SIGKILL)
        found = Written(directory / "killed", directory / "data", address, seen)
        subprocess.run(["cp", "-a", "--sparse=always", str(kafka.data), str(found.killed)], check=True)
        kafka.start()
    finally:
        kafka.end()
    return found


def log(command: str, *arguments: object) -> str:
    """Runs ``tidemill log``; returns its output."""
    every = [sys.executable, "-m", "tidemill", "log", command, *map(str, arguments)]
    done = subprocess.run(every, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def kafka_dump(jars: str, paths: list[Path], *options: str) -> str:
    """Returns the output of kafka-dump-log; its class has another package in Kafka 4."""
    options = options or ("--deep-iteration", "--print-data-log")
    arguments = [*options, "--files", ",".join(map(str, paths))]
    for name in ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"):
        done = subprocess.run(java(jars, name, *arguments), capture_output=True)
        if b"ClassNotFoundException" not in done.stderr:
            assert done.returncode == 0, done.stderr
            # Line ends in values are kept. Kafka 3.9 adds a brace to records of old formats.
            return re.sub(r"(?m)^(\| offset: .* isValid: true crc: \d+)}", r"\1", done.stdout.decode())
    raise AssertionError(f"no DumpLogSegments in {jars}")


def our_dump(paths: list[Path]) -> str:
    every = (dump_lines(SystemFiles(), str(path), DumpOptions(contents=True)) for path in paths)
    return "".join(f"{line}\n" for found in every for line in found)


def check_dumps(jars: str, data: Path, kinds: Collection[str] = DUMPED) -> None:
    """kafka-dump-log finds no error in any file of any partition, and its output equals Tidemill's. Files of
    ``kinds`` must exist.
    """
    paths = [
        path
        for path in sorted(data.glob("*-[0-9]/*"))
        if path.suffix in DUMPED and path.parent.name != "__cluster_metadata-0"
    ]
    assert {path.suffix for path in paths} >= set(kinds)
    theirs = kafka_dump(jars, paths)
    assert theirs == our_dump(paths)
    for complaint in ("Mismatches", "isvalid: false", "Found", "not found"):
        assert complaint not in theirs


def write_on(bootstrap: str, made: str) -> None:
    """Uses the cluster: all codecs, topics created, altered and deleted, commits."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(made, 2, 1, config={"retention.ms": "-1"}), NewTopic(f"{made}-gone", 1, 1)]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    for codec in CODECS:
        produce(bootstrap, f"t-{codec}", codec, partitions=2)
        produce(bootstrap, made, codec, partitions=2)
    keep(bootstrap, 10_000)
    admin.delete_topics([f"{made}-gone"])[f"{made}-gone"].result(30)
    set_config(admin, ResourceType.TOPIC, "t-lz4", "max.message.bytes", "1500000")
    commit(bootstrap, "readers", "t-gzip", 100)
    commit(bootstrap, f"group-{made}", made, 20)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_data_of_kafka_is_served(written: Written, how: str, tmp_path: Path) -> None:
    data = written.data(how, tmp_path)
    told = json.loads(log("import", data, *written.source, "--json"))
    assert (told["imported"], told["clean_shutdown"], told["problems"]) == (True, how == "stopped", [])
    with Broker(CONFIG, data_dir=data) as broker:
        check_same(see(broker.bootstrap), written.seen)
        write_on(broker.bootstrap, "made-here")
        seen = see(broker.bootstrap)
        broker.kill()
        broker.start()
        check_same(see(broker.bootstrap), seen)
        assert "Traceback" not in broker.log
    assert len(seen.records["t-gzip", 0]) == len(written.seen.records["t-gzip", 0]) + 4
    assert json.loads(log("verify", data, "--json"))["sound"]
    check_dumps(class_path(VERSIONS["zookeeper" if written.zookeeper else "kraft"]), data)


@pytest.mark.parametrize("how", ["--in-place", "--to"])
def test_served_data_is_exported_to_kafka(
    written: Written, how: str, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Kafka, Tidemill, Kafka 3.9.2, Tidemill: after each step clients read the same as before it."""
    data = written.data("killed", tmp_path)
    log("import", data, *written.source)
    with Broker(CONFIG, data_dir=data) as broker:
        write_on(broker.bootstrap, "made-here")
        seen = see(broker.bootstrap)
    to = data if how == "--in-place" else tmp_path / "given"
    target = [how] if how == "--in-place" else [how, to]
    address = f"{zookeeper.address}/given/{tmp_path.name}"
    told = json.loads(log("export", data, *target, "--zookeeper", address, "--json"))
    settings = "".join(f"{key}={value}\n" for key, value in told["server_properties"].items())
    kafka = Kafka(class_path("3.9.2"), tmp_path, to, zookeeper=address, settings=settings)
    try:
        kafka.start()
        wait_led(kafka.bootstrap, seen.records)
        check_same(see(kafka.bootstrap), seen)
        write_on(kafka.bootstrap, "made-there")
        buy(kafka.bootstrap)
        seen = see(kafka.bootstrap)
    finally:
        kafka.end()
    log("import", to, "--zookeeper", address)
    with Broker(CONFIG, data_dir=to) as broker:
        check_same(see(broker.bootstrap), seen)


@pytest.mark.parametrize("version", VERSIONS.values())
def test_old_formats_are_dumped_as_kafka_dumps_them(version: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    small = {"segment.bytes": "2000", "index.interval.bytes": "200", "retention.ms": "-1"}
    with Broker(CONFIG, data_dir=data) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        wanted = [
            NewTopic(f"old{number}", 1, 1, config=small | {"message.format.version": name})
            for number, name in enumerate(("0.9.0", "0.10.2", "2.8"))
        ]
        for topic, future in admin.create_topics(wanted).items():
            future.result(30)
            for codec in CODECS if topic == "old2" else CODECS[:4]:
                for _ in range(4):
                    produce(broker.bootstrap, topic, codec, headers=topic == "old2")
    assert {path.stat().st_size > 0 for path in data.glob("old[01]-0/*.index")} == {True}
    check_dumps(class_path(version), data, (".log", ".index", ".timeindex", ".snapshot"))
    recorded = Path(__file__).parent / "recorded" / "zookeeper" / "data"
    check_dumps(class_path(version), recorded)


def test_one_broker_of_two_provides_its_complete_topics(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    address = f"{zookeeper.address}/two"
    brokers = []
    try:
        for node in (1, 2):
            (tmp_path / f"{node}").mkdir()
            broker = Kafka(
                class_path("3.9.2"),
                tmp_path / f"{node}",
                tmp_path / f"data{node}",
                zookeeper=address,
                node=node,
            )
            broker.start()
            brokers.append(broker)
        bootstrap = brokers[0].bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = [NewTopic("both", 2, 2), NewTopic("spread", 2, 1)]
        for future in admin.create_topics(wanted).values():
            future.result(30)
        wait_led(bootstrap, [("both", 0), ("both", 1), ("spread", 0), ("spread", 1)])
        produce(bootstrap, "both", "gzip", partitions=2)
        wait_led(bootstrap, [("both", 0), ("both", 1)], isr=[1, 2])
        brokers[1].end()
        wait_led(bootstrap, [("both", 0), ("both", 1)], isr=[1])
        produce(bootstrap, "both", "lz4", partitions=2)
        found, _ = read_all(bootstrap, [("both", 0), ("both", 1)], "read_committed")
        brokers[0].end()
    finally:
        for broker in brokers:
            broker.end(signal.SIGKILL)
    every = [sys.executable, "-m", "tidemill", "log", "import", "--zookeeper", address]
    behind = subprocess.run([*every, str(tmp_path / "data2")], capture_output=True, text=True)
    assert behind.returncode == 1
    assert "partition both-0 was not in sync on broker 2: import the directories of broker 1" in behind.stderr
    whole = subprocess.run([*every, str(tmp_path / "data1")], capture_output=True, text=True)
    assert whole.returncode == 1
    assert "topic spread: partition" in whole.stderr
    assert "on other brokers than 1" in whole.stderr
    assert "both" not in whole.stderr
    log("import", tmp_path / "data1", "--zookeeper", address, "--only-whole")
    with Broker(data_dir=tmp_path / "data1") as ours:
        again, _ = read_all(ours.bootstrap, list(found), "read_committed")
    assert again == found
    assert [len(records) for records in found.values()] == [8, 8]


def test_the_script_for_zookeepers_shell_creates_the_same_nodes(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    recorded = Path(__file__).parent / "recorded" / "zookeeper"
    data, script, nodes = tmp_path / "data", tmp_path / "nodes.txt", tmp_path / "nodes.json"
    shutil.copytree(recorded / "data", data)
    of_groups = {f"/consumers/{group}/offsets/codecs/0": "7" for group in ("plain", "an old one", "bob's")}
    nodes.write_text(json.dumps(json.loads((recorded / "nodes.json").read_text()) | of_groups))
    log("import", data, "--nodes", nodes)
    log("export", data, "--to", tmp_path / "first", "--script", script)
    log("export", data, "--to", tmp_path / "second", "--zookeeper", f"{zookeeper.address}/by/kazoo")
    shell = java(class_path("3.9.2"), "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka", "-server")
    subprocess.run([*shell, zookeeper.address, "create", "/script"], check=True, capture_output=True)
    with script.open() as commands:
        done = subprocess.run(
            [*shell, f"{zookeeper.address}/script"], stdin=commands, capture_output=True, text=True
        )
    by_script = read_zookeeper(f"{zookeeper.address}/script")
    assert by_script == read_zookeeper(f"{zookeeper.address}/by/kazoo"), done.stdout + done.stderr
    assert {path: by_script[path].decode() for path in of_groups} == of_groups
    assert to_nodes(from_nodes(by_script, "a shell"))
