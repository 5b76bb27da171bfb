"""/healthz, metrics and ``tidemill cluster status`` during an outage of ZooKeeper."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from tidemill.cli.main import run
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

SETTINGS = {"tidemill__metrics__port": "0", "min__insync__replicas": "2"}

KAFKA_PYTHON = """
import json, sys
from kafka import KafkaAdminClient

admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
brokers = admin.describe_cluster()["brokers"]
print(json.dumps(sorted(one.get("broker_id", one.get("node_id")) for one in brokers)))
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line. Returns the exit code, output and errors."""
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = run(arguments)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture(scope="module")
def store() -> Iterator[ZooKeeper]:
    """A ZooKeeper server only for this module."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def brokers(store: ZooKeeper) -> Iterator[Brokers]:
    with start_cluster(store.address, 2, **SETTINGS) as found:
        yield found


@pytest.fixture
def cluster(brokers: Brokers) -> Brokers:
    """The brokers, all running and in sync."""
    until(lambda: all(health(one)[0] == 200 for one in brokers.brokers.values()), "all is well")
    return brokers


@contextmanager
def gone(store: ZooKeeper) -> Iterator[None]:
    """Stops ZooKeeper for the block."""
    store.kill()
    try:
        yield
    finally:
        store.start()


def health(broker: Broker) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{broker.metrics_port}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def metric(broker: Broker, name: str, **labels: str) -> list[float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return [
        one.value
        for family in families
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    ]


def test_health_and_metrics_show_an_outage_of_zookeeper(cluster: Brokers, store: ZooKeeper) -> None:
    one = cluster.brokers[1]
    assert metric(one, "tidemill_store_silent_seconds") == [0]
    before = metric(one, "tidemill_store_interruptions_total")[0]
    with gone(store):
        until(lambda: all(health(one)[0] == 503 for one in cluster.brokers.values()), "both are unwell")
        status, details = health(one)
        assert (status, details["status"]) == (503, "unwell")
        assert details["store_silent_s"] > 0
        assert "the coordination store has not responded for" in details["reason"]
        assert metric(one, "tidemill_store_silent_seconds")[0] > 0
        assert metric(one, "tidemill_store_interruptions_total") == [before + 1]
    until(lambda: all(health(one)[0] == 200 for one in cluster.brokers.values()), "all is well again")
    assert health(one)[1]["store_silent_s"] == 0
    assert metric(one, "tidemill_store_silent_seconds") == [0]


def test_cluster_status_shows_brokers_without_zookeeper_and_the_check_fails(
    cluster: Brokers, store: ZooKeeper, cli: Cli
) -> None:
    status = ("cluster", "status", "-b", cluster.bootstrap)
    until(lambda: cli(*status, "--check")[0] == 0, "all is well")
    assert json.loads(cli(*status, "--json")[1])["without_store"] == []
    with gone(store):
        until(lambda: cli(*status, "--check")[0] == 1, "the check fails")
        until(lambda: "brokers 1, 2 without the coordination store" in cli(*status)[2], "both are named")
        code, out, _ = cli(*status, "--json", "--check")
        found = json.loads(out)
        assert (code, found["under_replicated"], found["offline"]) == (1, [], [])
        assert [one["broker"] for one in found["without_store"]] == [1, 2]
        assert all(one["seconds"] > 0 for one in found["without_store"])
        # Without --check the exit code is 0.
        assert cli(*status)[0] == 0
    until(lambda: cli(*status, "--check")[0] == 0, "all is well again")


def test_other_clients_parse_describe_cluster_without_zookeeper(cluster: Brokers, store: ZooKeeper) -> None:
    """They skip the tagged field, which only the client of Tidemill reads."""
    librdkafka = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    with gone(store):
        until(lambda: health(cluster.brokers[1])[0] == 503, "a broker knows")
        until(lambda: health(cluster.brokers[2])[0] == 503, "the other one, too")
        found = librdkafka.describe_cluster(request_timeout=10).result(20)
        assert sorted(node.id for node in found.nodes) == [1, 2]
        # In its own process, because its import prints a warning.
        command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == [1, 2]


def test_metrics_show_partitions_under_min_isr(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("under", assignments={0: [1, 2], 1: [2, 1]})
        admin.create_topic("enough", assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"})
    one, other = cluster.brokers[1], cluster.brokers[2]
    cluster.until_in_sync("under", [1, 2])
    until(lambda: metric(one, "tidemill_at_min_isr_partitions")[0] >= 1, "one replica less would be too few")
    assert metric(one, "tidemill_under_min_isr_partitions") == [0]
    assert metric(one, "tidemill_partition_under_min_isr") == []
    other.kill()
    try:
        until(lambda: metric(one, "tidemill_under_min_isr_partitions") == [2], "both lack a replica")
        for partition in ("0", "1"):
            found = metric(one, "tidemill_partition_under_min_isr", topic="under", partition=partition)
            assert found == [1]
        assert metric(one, "tidemill_partition_under_min_isr", topic="enough") == []
    finally:
        other.start()
    until(lambda: metric(one, "tidemill_under_min_isr_partitions") == [0], "none lacks one")
    with cluster.admin() as admin:
        admin.delete_topics(["under", "enough"])


def test_metrics_show_the_space_of_each_data_directory(cluster: Brokers) -> None:
    one = cluster.brokers[1]
    labels = {"directory": one.data_dir}
    until(lambda: metric(one, "tidemill_log_directory_free_bytes", **labels), "it was looked at")
    (free,) = metric(one, "tidemill_log_directory_free_bytes", **labels)
    (total,) = metric(one, "tidemill_log_directory_total_bytes", **labels)
    assert 0 < free <= total
    assert metric(one, "tidemill_full_log_directories") == [0]
