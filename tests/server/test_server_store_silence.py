"""ZooKeeper is gone: /healthz, the metrics and ``tidemill cluster status`` of the brokers say so."""

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
from cluster_stage import Stage, cluster, until
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
    """Runs one command line: exit code, output, errors."""
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = run(arguments)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture(scope="module")
def store() -> Iterator[ZooKeeper]:
    """A server of this module's own, as others must not miss it."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def brokers(store: ZooKeeper) -> Iterator[Stage]:
    with cluster(store.address, 2, **SETTINGS) as found:
        yield found


@pytest.fixture
def stage(brokers: Stage) -> Stage:
    """All is well, whatever another test left."""
    until(lambda: all(health(one)[0] == 200 for one in brokers.brokers.values()), "all is well")
    return brokers


@contextmanager
def gone(store: ZooKeeper) -> Iterator[None]:
    """ZooKeeper has ended for the time of the block."""
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


def test_health_and_metrics_say_that_zookeeper_is_gone_and_back(stage: Stage, store: ZooKeeper) -> None:
    one = stage.brokers[1]
    assert metric(one, "tidemill_store_silent_seconds") == [0]
    before = metric(one, "tidemill_store_interruptions_total")[0]
    with gone(store):
        until(lambda: all(health(one)[0] == 503 for one in stage.brokers.values()), "both are unwell")
        status, told = health(one)
        assert (status, told["status"]) == (503, "unwell")
        assert told["store_silent_s"] > 0
        assert "the coordination store has not answered for" in told["reason"]
        assert metric(one, "tidemill_store_silent_seconds")[0] > 0
        assert metric(one, "tidemill_store_interruptions_total") == [before + 1]
    until(lambda: all(health(one)[0] == 200 for one in stage.brokers.values()), "all is well again")
    assert health(one)[1]["store_silent_s"] == 0
    assert metric(one, "tidemill_store_silent_seconds") == [0]


def test_cluster_status_names_brokers_without_zookeeper_and_the_check_fails(
    stage: Stage, store: ZooKeeper, cli: Cli
) -> None:
    status = ("cluster", "status", "-b", stage.bootstrap)
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
        # Without --check it is no failure to say so.
        assert cli(*status)[0] == 0
    until(lambda: cli(*status, "--check")[0] == 0, "all is well again")


def test_other_clients_read_the_description_of_a_cluster_without_zookeeper(
    stage: Stage, store: ZooKeeper
) -> None:
    """They skip the field that says it, which only this project's client knows."""
    librdkafka = AdminClient({"bootstrap.servers": stage.bootstrap, "log_level": 0})
    with gone(store):
        until(lambda: health(stage.brokers[1])[0] == 503, "a broker knows")
        until(lambda: health(stage.brokers[2])[0] == 503, "the other one, too")
        found = librdkafka.describe_cluster(request_timeout=10).result(20)
        assert sorted(node.id for node in found.nodes) == [1, 2]
        # In a process of its own: it warns when it is imported.
        command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, stage.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == [1, 2]


def test_partitions_under_their_minimum_are_counted_and_named(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.create_topic("under", assignments={0: [1, 2], 1: [2, 1]})
        admin.create_topic("enough", assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"})
    one, other = stage.brokers[1], stage.brokers[2]
    stage.until_in_sync("under", [1, 2])
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
    with stage.admin() as admin:
        admin.delete_topics(["under", "enough"])


def test_the_room_of_each_data_directory_is_told(stage: Stage) -> None:
    one = stage.brokers[1]
    labels = {"directory": one.data_dir}
    until(lambda: metric(one, "tidemill_log_directory_free_bytes", **labels), "it was looked at")
    (free,) = metric(one, "tidemill_log_directory_free_bytes", **labels)
    (total,) = metric(one, "tidemill_log_directory_total_bytes", **labels)
    assert 0 < free <= total
    assert metric(one, "tidemill_full_log_directories") == [0]
