"""Programs of Apache Kafka 0.8.2.2, on three Tidemill brokers on ZooKeeper, which the programs access
directly.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, produce, start_cluster, until, zookeeper_client
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_desk import compiled
from kafka_peer import Kafka, class_path, java
from kafka_peer import ZooKeeper as KafkasZooKeeper

from tidemill.client import Admin
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

VERSION = "0.8.2.2"
TOPICS = "kafka.admin.TopicCommand"
PROGRAM_S = 60

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a program of Kafka 0.8.2.2, and returns its output."""
    jars = compiled(class_path(VERSION), tmp_path_factory.mktemp(VERSION), "OldOffsets")

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            java(jars, name, *arguments, heap="128m"),
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers."""
    with start_cluster(f"{zookeeper_server.address}/extra-kafka-08") as found:
        yield found
        for broker in found.brokers.values():
            assert "Traceback" not in broker.log, broker.log


def knows(cluster: Brokers, number: int, topic: str) -> bool:
    """Whether a broker's metadata has the topic."""
    with cluster.admin(number) as admin:
        return topic in [one.name for one in admin.list_topics()]


def settings_by_broker(cluster: Brokers, topic: str, key: str) -> list[str]:
    """Returns the setting of a topic on each broker."""
    told = []
    for broker in cluster.brokers.values():
        with Admin(broker.bootstrap) as admin:
            told.append(str(admin.topic_configs(topic)[key].value))
    return told


def test_settings_altered_by_the_tool_of_kafka_08_apply_to_every_broker(
    cluster: Brokers, old_kafka: Callable[..., str]
) -> None:
    asked = ("--zookeeper", cluster.address, "--topic", "altered")
    old_kafka(TOPICS, "--create", *asked, "--partitions", "2", "--replication-factor", "3")
    until(
        lambda: all(knows(cluster, number, "altered") for number in cluster.brokers), "every broker knows it"
    )
    old_kafka(TOPICS, "--alter", *asked, "--config", "retention.ms=77000", "--config", "segment.bytes=100000")
    until(
        lambda: settings_by_broker(cluster, "altered", "retention.ms") == ["77000"] * 3,
        "every broker has the new retention.ms",
    )
    assert settings_by_broker(cluster, "altered", "segment.bytes") == ["100000"] * 3
    old_kafka(TOPICS, "--alter", *asked, "--delete-config", "retention.ms")
    until(
        lambda: settings_by_broker(cluster, "altered", "retention.ms") == ["604800000"] * 3,
        "every broker has the default retention.ms",
    )
    assert settings_by_broker(cluster, "altered", "segment.bytes") == ["100000"] * 3
    for broker in cluster.brokers.values():
        assert "/config/changes" not in broker.log


def test_the_tools_show_the_offsets_of_the_simple_consumer(
    cluster: Brokers, old_kafka: Callable[..., str], tmp_path: Path
) -> None:
    with cluster.admin() as admin:
        admin.create_topic("read", 2, 3)
    cluster.until_in_sync("read", [1, 2, 3])
    produce(cluster, "read", range(20))

    def offsets(number: int, partition: int, *commit: str) -> str:
        host, _, port = cluster.brokers[number].bootstrap.rpartition(":")
        return old_kafka("OldOffsets", host, port, "readers", "read", str(partition), *commit).strip()

    assert offsets(1, 0) == "-1 3"
    assert offsets(1, 0, "5") == "5 0"
    assert offsets(2, 1, "0") == "0 0"
    with zookeeper_client(cluster.address) as client:
        stored = {n: client.get(f"/consumers/readers/offsets/read/{n}")[0] for n in "01"}
    assert stored == {"0": b"5", "1": b"0"}

    exported = tmp_path / "offsets"
    zookeeper = ("--zkconnect", cluster.address)
    old_kafka("kafka.tools.ExportZkOffsets", *zookeeper, "--group", "readers", "--output-file", str(exported))
    lines = exported.read_text().split()
    assert sorted(lines) == ["/consumers/readers/offsets/read/0:5", "/consumers/readers/offsets/read/1:0"]

    exported.write_text("/consumers/readers/offsets/read/0:17\n")
    old_kafka("kafka.tools.ImportZkOffsets", *zookeeper, "--input-file", str(exported))
    for number in cluster.brokers:
        assert offsets(number, 0) == "17 0"

    of_group = ("--zookeeper", cluster.address, "--group", "readers", "--topic", "read")
    checked = old_kafka("kafka.tools.ConsumerOffsetChecker", *of_group)
    assert re.search(r"^readers\s+read\s+0\s+17\s+20\s+3\s", checked, re.MULTILINE), checked


def test_the_console_consumer_continues_at_the_offset_of_the_simple_consumer(
    cluster: Brokers, old_kafka: Callable[..., str], tmp_path: Path
) -> None:
    """The simple consumer reads the offset that the console consumer leaves in ZooKeeper."""
    with cluster.admin() as admin:
        admin.create_topic("shared", 1, 3)
    cluster.until_in_sync("shared", [1, 2, 3])
    produce(cluster, "shared", range(20))
    host, _, port = cluster.brokers[1].bootstrap.rpartition(":")
    assert old_kafka("OldOffsets", host, port, "both", "shared", "0", "15").strip() == "15 0"
    properties = tmp_path / "consumer.properties"
    properties.write_text("group.id=both\nconsumer.timeout.ms=20000\nauto.commit.interval.ms=100\n")
    read = old_kafka(
        "kafka.tools.ConsoleConsumer", "--zookeeper", cluster.address, "--topic", "shared",
        "--consumer.config", str(properties), "--max-messages", "4",
    )  # fmt: skip
    assert read.split() == ["15", "16", "17", "18"]
    assert old_kafka("OldOffsets", host, port, "both", "shared", "0").strip() == "19 0"


def test_offsets_of_version_0_that_kafka_39_keeps_are_the_same_after_an_import(
    old_kafka: Callable[..., str], tmp_path: Path
) -> None:
    jars = class_path("3.9.2")
    zookeeper = KafkasZooKeeper(jars, tmp_path)
    kafka = Kafka(jars, tmp_path, tmp_path / "data", zookeeper=f"{zookeeper.address}/kafka")

    def offsets(bootstrap: str, group: str, *commit: str) -> str:
        host, _, port = bootstrap.rpartition(":")
        return old_kafka("OldOffsets", host, port, group, "read", "0", *commit).strip()

    try:
        kafka.start()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("read", 1)])["read"].result(60)
        assert offsets(kafka.bootstrap, "first", "5") == "5 0"
        assert offsets(kafka.bootstrap, "second", "9") == "9 0"
        assert offsets(kafka.bootstrap, "third") == "-1 3"
        kafka.end()
        import_ = [sys.executable, "-m", "tidemill", "log", "import", str(kafka.data), "--zookeeper"]
        done = subprocess.run([*import_, kafka.zookeeper], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 offsets that groups kept in ZooKeeper are imported" in done.stdout
        with Broker(data_dir=kafka.data) as ours:
            assert offsets(ours.bootstrap, "first") == "5 0"
            assert offsets(ours.bootstrap, "second") == "9 0"
            assert offsets(ours.bootstrap, "third") == "-1 3"
    finally:
        kafka.end()
        zookeeper.end()
