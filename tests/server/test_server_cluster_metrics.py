"""What three brokers tell of their cluster on their metrics ports, while one of them ends and comes back."""

from __future__ import annotations

import os
import secrets
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from cluster_stage import Stage, cluster, until
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidemill.client import Consumer, Producer
from tidemill.testing.zookeeper import ZooKeeper


@pytest.fixture
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers with metrics, new for each test: numbers tell of all that happened since the start."""
    settings = {"tidemill__metrics__port": "0", "replica__lag__time__max__ms": "1500"}
    path = f"test-cluster-metrics-{secrets.token_hex(4)}"
    with cluster(f"{zookeeper_server.address}/{path}", **settings) as found:
        yield found


def samples(stage: Stage, number: int, name: str) -> list[Sample]:
    """A metric's samples on one broker."""
    port = stage.brokers[number].metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def told(stage: Stage, number: int, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels on one broker."""
    found = [one.value for one in samples(stage, number, name) if labels.items() <= one.labels.items()]
    assert found or labels, f"{name} is not there"
    return sum(found)


def summed(stage: Stage, name: str, **labels: str) -> float:
    """The sum over the brokers that run."""
    return sum(
        told(stage, number, name, **labels) for number, broker in stage.brokers.items() if broker.running
    )


def controller(stage: Stage) -> int:
    """The broker that says that it is the controller."""
    found = [number for number in stage.brokers if told(stage, number, "tidemill_active_controller") == 1]
    assert len(found) == 1
    return found[0]


def write(stage: Stage, topic: str, count: int, acks: str = "all", through: int = 0) -> None:
    """So many messages of 1,000 bytes for partition 0; a broker may be named that is to be asked first."""
    bootstrap = stage.brokers[through].bootstrap if through else stage.bootstrap
    with Producer(bootstrap, acks=acks) as producer:
        for _ in range(count):
            producer.send(topic, bytes(1000), partition=0)


def test_a_broker_that_ends_and_comes_back_is_seen_in_the_numbers(stage: Stage) -> None:
    office = controller(stage)
    victim, other = (number for number in stage.brokers if number != office)
    with stage.admin() as admin:
        admin.create_topic("seen", assignments={0: [victim, office, other]})
        admin.create_topic("alone", assignments={0: [victim]}, configs={"min.insync.replicas": "1"})
    write(stage, "seen", 10)
    until(lambda: summed(stage, "tidemill_topic_messages_in_total", topic="seen") == 10, "all count")
    assert told(stage, victim, "tidemill_topic_bytes_in_total", topic="seen") > 10_000
    assert told(stage, victim, "tidemill_requests_total", api="Produce") > 0
    until(lambda: summed(stage, "tidemill_under_replicated_partitions") == 0, "all is in sync")
    assert summed(stage, "tidemill_offline_partitions") == 0
    before = {
        name: summed(stage, name) - told(stage, victim, name)
        for name in ("tidemill_isr_shrinks_total", "tidemill_isr_expands_total")
    }
    elections = told(stage, office, "tidemill_leader_elections_total")
    stage.brokers[victim].kill()
    until(lambda: stage.leaders("alone") == [-1], "the controller knows")
    assert told(stage, office, "tidemill_leader_elections_total") > elections
    assert told(stage, office, "tidemill_unclean_leader_elections_total") == 0
    new = stage.leaders("seen")[0]
    assert new in (office, other)
    until(lambda: told(stage, new, "tidemill_under_replicated_partitions") > 0, "a replica is missing")
    until(lambda: told(stage, office, "tidemill_offline_partitions") == 1, "one is offline")
    stage.brokers[victim].start()
    until(lambda: summed(stage, "tidemill_under_replicated_partitions") == 0, "all is in sync again")
    until(lambda: summed(stage, "tidemill_offline_partitions") == 0, "none is offline")
    expands = summed(stage, "tidemill_isr_expands_total") - told(stage, victim, "tidemill_isr_expands_total")
    assert expands > before["tidemill_isr_expands_total"]
    assert controller(stage) == office


def test_a_follower_that_stands_still_lags_and_leaves_the_set(stage: Stage) -> None:
    office = controller(stage)
    follower, other = (number for number in stage.brokers if number != office)
    with stage.admin() as admin:
        admin.create_topic("behind", assignments={0: [office, follower, other]})
    write(stage, "behind", 5)
    shrinks = told(stage, office, "tidemill_isr_shrinks_total")
    expands = told(stage, office, "tidemill_isr_expands_total")
    stopped = stage.brokers[follower]
    stopped_pid = stopped.pid
    os.kill(stopped_pid, signal.SIGSTOP)
    try:
        # One that stands still would be asked for as long as its session lives.
        write(stage, "behind", 100, acks="1", through=office)
        until(lambda: told(stage, office, "tidemill_replica_lag_max_records") >= 100, "it lags")
        until(lambda: told(stage, office, "tidemill_isr_shrinks_total") > shrinks, "it left the set")
        assert told(stage, office, "tidemill_under_replicated_partitions") > 0
    finally:
        os.kill(stopped_pid, signal.SIGCONT)
    until(lambda: told(stage, office, "tidemill_isr_expands_total") > expands, "it is back")
    until(lambda: told(stage, office, "tidemill_replica_lag_max_records") == 0, "it has all")


def test_an_unclean_election_is_counted(stage: Stage) -> None:
    office = controller(stage)
    last, other = (number for number in stage.brokers if number != office)
    with stage.admin() as admin:
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        admin.create_topic("unclean", assignments={0: [last, other]}, configs=settings)
    stage.brokers[other].kill()
    write(stage, "unclean", 5)
    until(lambda: told(stage, last, "tidemill_under_replicated_partitions") > 0, "one is left in sync")
    stage.brokers[last].kill()
    until(lambda: stage.leaders("unclean") == [-1], "nobody leads")
    stage.brokers[other].start()
    until(lambda: stage.leaders("unclean") == [other], "who is not in sync leads")
    assert told(stage, office, "tidemill_unclean_leader_elections_total") >= 1
    stage.brokers[last].start()
    until(lambda: summed(stage, "tidemill_under_replicated_partitions") == 0, "all is in sync again")


def test_times_of_requests_are_those_of_the_requests(stage: Stage) -> None:
    office = controller(stage)
    with stage.admin() as admin:
        admin.create_topic("timed", assignments={0: [office, *(n for n in stage.brokers if n != office)]})
    count = told(stage, office, "tidemill_request_seconds_count", api="Metadata")
    for _ in range(10):
        stage.leaders("timed")
    assert summed(stage, "tidemill_request_seconds_count", api="Metadata") >= count + 10
    assert 0 < told(stage, office, "tidemill_request_seconds_sum", api="Metadata") < 60
    flushed = told(stage, office, "tidemill_log_flush_seconds_count")
    with stage.admin() as admin:
        settings = {"flush.messages": "1"}
        everywhere = [office, *(number for number in stage.brokers if number != office)]
        admin.create_topic("synced", assignments={0: everywhere}, configs=settings)
    write(stage, "synced", 3)
    assert told(stage, office, "tidemill_log_flush_seconds_count") > flushed


def test_the_lag_of_a_group_is_told_by_its_coordinator_whoever_leads(stage: Stage) -> None:
    numbers = list(stage.brokers)
    with stage.admin() as admin:
        # One partition a broker, which has no other replica: the coordinator has to ask for two of the ends.
        settings = {"min.insync.replicas": "1"}
        admin.create_topic("read", assignments={n - 1: [n] for n in numbers}, configs=settings)
    with Producer(stage.bootstrap, acks="all") as producer:
        for number in range(30):
            producer.send("read", b"%d" % number, partition=number % 3)
    with Consumer(stage.bootstrap, {"group.id": "slow", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["read"])
        seen = 0
        while seen < 30:
            seen += len(consumer.poll(timeout=1.0))
        consumer.commit()
    name, labels = "tidemill_group_lag_records", {"group": "slow", "topic": "read"}
    until(lambda: sum(is_told(stage, number, name, **labels) for number in numbers) == 1, "one tells the lag")
    assert summed(stage, name, **labels) == 0
    with Producer(stage.bootstrap, acks="all") as producer:
        for number in range(12):
            producer.send("read", b"%d" % number, partition=number % 3)
    until(lambda: summed(stage, name, **labels) == 12, "the group is 12 records behind")


def is_told(stage: Stage, number: int, name: str, **labels: str) -> bool:
    """Whether a broker tells of a sample with these labels."""
    return any(labels.items() <= sample.labels.items() for sample in samples(stage, number, name))
