"""Nodes that classes of Kafka 3.9 write to ZooKeeper take effect on Tidemill brokers, and they read
Tidemill's nodes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, start_cluster, until, zookeeper_client
from kafka_desk import Desk, compiled, desk
from kafka_peer import class_path, java
from kafka_trio import VERSION

from tidemill.client import ConfigResource, Producer, ResourceType
from tidemill.testing.zookeeper import ZooKeeper

SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    quiet = {"auto__leader__rebalance__enable": "false"}
    with start_cluster(f"{zookeeper_server.address}/extra-cluster-store", **quiet) as found:
        yield found
        for broker in found.brokers.values():
            assert "Traceback" not in broker.log, broker.log


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk(
        compiled(class_path(VERSION), tmp_path_factory.mktemp("classes"), "Desk", "StoreWriter")
    ) as found:
        yield found


def replicas(cluster: Brokers, topic: str) -> list[list[int]]:
    """Returns the replicas of each partition with a leader; none for a partition without a leader."""
    with cluster.admin() as admin:
        found = next((one for one in admin.list_topics() if one.name == topic), None)
        if found is None:
            return []
        partitions = admin.describe_topic(topic).partitions
        return [list(one.replicas) if one.leader >= 0 else [] for one in partitions]


def test_topics_partitions_and_settings_in_the_store_are_applied(cluster: Brokers, classes: Desk) -> None:
    def act(*arguments: str) -> str:
        return classes("StoreWriter", cluster.address, *arguments)

    act("create-topic", "stored", "3", "3", "retention.ms=71000", "cleanup.policy=compact")
    until(lambda: [sorted(one) for one in replicas(cluster, "stored")] == [[1, 2, 3]] * 3, "it is made")
    with Producer(cluster.bootstrap, acks="all") as producer:
        for partition in range(3):
            producer.send("stored", b"1", key=b"1", partition=partition)
    with cluster.admin(2) as admin:
        assert admin.topic_configs("stored")["retention.ms"].value == "71000"
        assert admin.topic_configs("stored")["cleanup.policy"].value == "compact"
    act("add-partitions", "stored", "5")
    until(lambda: [sorted(one) for one in replicas(cluster, "stored")] == [[1, 2, 3]] * 5, "it has five")
    act("topic-config", "stored", "retention.ms=72000")
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            until(lambda: admin.topic_configs("stored")["retention.ms"].value == "72000", "it is changed")
            assert admin.topic_configs("stored")["cleanup.policy"].value == "delete"
    act("delete-topic", "stored")
    until(lambda: replicas(cluster, "stored") == [], "it is deleted")
    left = [path for one in cluster.brokers.values() for path in Path(one.data_dir).glob("stored-?")]
    until(lambda: not any(path.exists() for path in left), "nothing is left of it")


def test_stored_settings_of_brokers_are_applied(cluster: Brokers, classes: Desk) -> None:
    def told(number: int, key: str) -> str | None:
        with cluster.admin(number) as admin:
            resource = ConfigResource(ResourceType.BROKER, str(number))
            return admin.describe_configs(resource)[key].value

    classes("StoreWriter", cluster.address, "broker-config", "2", "log.cleaner.threads=3")
    until(lambda: told(2, "log.cleaner.threads") == "3", "broker 2 has it")
    assert told(1, "log.cleaner.threads") == "1"
    classes("StoreWriter", cluster.address, "broker-config", "", "message.max.bytes=765432")
    for number in cluster.brokers:
        until(lambda n=number: told(n, "message.max.bytes") == "765432", f"broker {number} has it")  # type: ignore[misc]


def test_stored_reassignments_and_elections_are_executed(cluster: Brokers, classes: Desk) -> None:
    with cluster.admin() as admin:
        admin.create_topic("going", assignments={0: [1, 2]})
    with Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(500):
            producer.send("going", b"%d" % number, partition=0)
    classes("StoreWriter", cluster.address, "reassign", "going", "0", "3", "1")
    until(lambda: replicas(cluster, "going") == [[3, 1]], "it is moved")
    with zookeeper_client(cluster.address) as client:
        until(lambda: client.exists("/admin/reassign_partitions") is None, "the wish is taken away")
        classes("StoreWriter", cluster.address, "reassign", "going", "0", "1", "3")
        until(lambda: replicas(cluster, "going") == [[1, 3]], "the order is another")
        classes("StoreWriter", cluster.address, "elect", "going", "0")
        until(lambda: cluster.leaders("going") == [1], "the preferred leads")
        until(lambda: client.exists("/admin/preferred_replica_election") is None, "the wish is taken away")


def test_kafka_reads_the_nodes_of_tidemill_brokers(cluster: Brokers, classes: Desk) -> None:
    with cluster.admin() as admin:
        admin.create_topic("seen", assignments={0: [2, 3], 1: [3, 1]}, configs={"retention.ms": "73000"})
    states, brokers, controller = (
        classes("StoreWriter", cluster.address, "states", "0,1", "seen").strip().splitlines()[-3:]
    )
    assert re.search(r"seen-0 -> \(Leader:2,ISR:2,3,LeaderRecoveryState:RECOVERED,LeaderEpoch:0", states), (
        states
    )
    assert re.search(r"seen-1 -> \(Leader:3,ISR:3,1,LeaderRecoveryState:RECOVERED,LeaderEpoch:0", states), (
        states
    )
    assert all(f"EndPoint(127.0.0.1,{broker.port}," in brokers for broker in cluster.brokers.values()), (
        brokers
    )
    assert re.fullmatch(r"Some\([123]\)", controller)
    command = java(class_path(VERSION), SHELL, "-server", cluster.address, "get", "/config/topics/seen")
    shell = subprocess.run(command, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL)
    assert '{"version":1,"config":{"retention.ms":"73000"}}' in shell.stdout, shell
