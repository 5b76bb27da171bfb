"""Apache Kafka's own tools move partitions and leaderships of three brokers on ZooKeeper."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidemill.client import Admin, Producer
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
TIMEOUT_S = 90
ATTEMPTS = 20
MESSAGES = 2000


@pytest.fixture(scope="module")
def bootstrap(zookeeper_server: ZooKeeper) -> Iterator[str]:
    """The addresses of brokers 1, 2 and 3."""
    config = {
        "zookeeper.connect": f"{zookeeper_server.address}/test-extra-moves",
        "auto.leader.rebalance.enable": "false",
    }
    with ExitStack() as stack:
        brokers = [stack.enter_context(Broker({**config, "node.id": str(number)})) for number in (1, 2, 3)]
        yield ",".join(broker.bootstrap for broker in brokers)


def tool(jars: str, name: str, bootstrap: str, *arguments: str) -> str:
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", jars, name]
    command += ["--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_kafkas_tools_move_partitions_and_leaderships(java_jars: str, bootstrap: str, tmp_path: Path) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic("t", assignments={0: [1], 1: [1]})
    with Producer(bootstrap) as producer:
        for number in range(MESSAGES):
            producer.send("t", bytes(100), partition=number % 2)
    wishes = {0: [2, 3], 1: [3, 1]}
    plan = tmp_path / "plan.json"
    listed = [{"topic": "t", "partition": p, "replicas": replicas} for p, replicas in wishes.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": listed}))
    file = ("--reassignment-json-file", str(plan))
    told = tool(java_jars, REASSIGN, bootstrap, "--execute", "--throttle", "100000000", *file)
    assert "Successfully started partition reassignments for t-0,t-1" in told
    for _ in range(ATTEMPTS):
        told = tool(java_jars, REASSIGN, bootstrap, "--verify", *file)
        if "still in progress" not in told:
            break
    for number in wishes:
        assert f"Reassignment of partition t-{number} is completed" in told
    assert "No partition reassignments found" in tool(java_jars, REASSIGN, bootstrap, "--list")
    assert "None of the specified" in tool(java_jars, REASSIGN, bootstrap, "--cancel", *file)
    with Admin(bootstrap) as admin:
        found = admin.describe_topic("t").partitions
        assert {one.partition: list(one.replicas) for one in found} == wishes
        assert all(sorted(one.isr) == sorted(one.replicas) for one in found)
    # Another order of the same replicas moves no data, and changes the preferred leader.
    for one in listed:
        one["replicas"] = one["replicas"][::-1]  # type: ignore[index]
    plan.write_text(json.dumps({"version": 1, "partitions": listed}))
    tool(java_jars, REASSIGN, bootstrap, "--execute", *file)
    elect = ("--election-type", "preferred", "--all-topic-partitions")
    assert "Successfully completed leader election" in tool(java_jars, ELECT, bootstrap, *elect)
    with Admin(bootstrap) as admin:
        assert [one.leader for one in admin.describe_topic("t").partitions] == [3, 1]
