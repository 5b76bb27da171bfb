"""Apache Kafka's Java client moves a partition between data directories, and its tool shows the directory."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing import Broker

HERE = Path(__file__).parent
TIMEOUT_S = 90
MESSAGES = 6000


def java(jars: str, *arguments: str) -> str:
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", jars, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)
def test_kafka_admin_moves_a_replica(java_jars: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    config = {"log.dirs": ",".join(paths), "replica.alter.log.dirs.io.max.bytes.per.second": 3_000_000}
    with Broker(config, data_dir=paths[0]) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(MESSAGES):
            producer.produce("t", bytes(1000))
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
        source, target = sorted(paths, key=lambda path: not Path(path, "t-0").exists())
        told = java(java_jars, str(HERE / "java" / "MoveReplica.java"), broker.bootstrap, "t", "1", target)
        steps = [line.split() for line in told.splitlines()]
        assert steps[-1][0] == target
        moving = [int(step[2]) for step in steps if step[:2] == [source, target]]
        assert moving, steps
        assert moving == sorted(moving, reverse=True)
        tool = "org.apache.kafka.tools.LogDirsCommand"
        shown = java(
            java_jars, tool, "--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", "t"
        )
        document = json.loads(shown.splitlines()[-1])
        (there,) = [one for one in document["brokers"][0]["logDirs"] if one["partitions"]]
        assert there["logDir"] == target
        assert there["partitions"][0]["isFuture"] is False
