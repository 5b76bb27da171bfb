"""The metrics of three brokers while one of them stops and returns.

All tests use one cluster, in any order. Counters start with the broker, so that tests check their increase.
Gauges show the current state. Each test starts with brokers that are running and in sync, without topics of
other tests.
"""

from __future__ import annotations

import os
import secrets
import signal
import urllib.request
from collections.abc import Collection, Iterator

import pytest
from broker_cluster import Brokers, start_cluster, until
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidemill.client import Consumer, Producer, TopicPartition
from tidemill.testing.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def brokers(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers with metrics."""
    settings = {"tidemill__metrics__port": "0", "replica__lag__time__max__ms": "1500"}
    quiet = {"auto__leader__rebalance__enable": "false"}
    path = f"test-cluster-metrics-{secrets.token_hex(4)}"
    with start_cluster(f"{zookeeper_server.address}/{path}", **settings, **quiet) as found:
        yield found


@pytest.fixture
def cluster(brokers: Brokers) -> Brokers:
    """The brokers, all running and in sync, without topics of other tests."""
    for broker in brokers.brokers.values():
        broker.start()
    with brokers.admin() as admin:
        names = [topic.name for topic in admin.list_topics()]
        if names:
            admin.delete_topics(names)
    until(lambda: is_recovered(brokers, names), "all is well before the test")
    return brokers


def is_recovered(cluster: Brokers, gone: Collection[str]) -> bool:
    """Whether no broker or replica is missing, and no series of deleted topics is left."""
    faults = ("tidemill_under_replicated_partitions", "tidemill_offline_partitions")
    return all(total_of(cluster, name) == 0 for name in faults) and not any(
        has_sample(cluster, number, "tidemill_topic_messages_in_total", topic=name)
        for number in cluster.brokers
        for name in gone
    )


def samples(cluster: Brokers, number: int, name: str) -> list[Sample]:
    """The samples of a metric of one broker."""
    port = cluster.brokers[number].metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def value_of(cluster: Brokers, number: int, name: str, **labels: str) -> float:
    """The sum of the samples of a metric of one broker with these labels."""
    found = [one.value for one in samples(cluster, number, name) if labels.items() <= one.labels.items()]
    assert found or labels, f"{name} is not there"
    return sum(found)


def total_of(cluster: Brokers, name: str, **labels: str) -> float:
    """The sum over the running brokers."""
    return sum(
        value_of(cluster, number, name, **labels)
        for number, broker in cluster.brokers.items()
        if broker.running
    )


def controller(cluster: Brokers) -> int:
    """The broker with ``tidemill_active_controller`` 1."""
    found = [
        number for number in cluster.brokers if value_of(cluster, number, "tidemill_active_controller") == 1
    ]
    assert len(found) == 1
    return found[0]


def write(cluster: Brokers, topic: str, count: int, acks: str = "all", through: int = 0) -> None:
    """Writes ``count`` messages of 1,000 bytes to partition 0, via broker ``through`` if it is given."""
    bootstrap = cluster.brokers[through].bootstrap if through else cluster.bootstrap
    with Producer(bootstrap, acks=acks) as producer:
        for _ in range(count):
            producer.send(topic, bytes(1000), partition=0)


def test_metrics_show_a_broker_that_stops_and_returns(cluster: Brokers) -> None:
    controller_id = controller(cluster)
    victim, other = (number for number in cluster.brokers if number != controller_id)
    with cluster.admin() as admin:
        admin.create_topic("seen", assignments={0: [victim, controller_id, other]})
        admin.create_topic("alone", assignments={0: [victim]}, configs={"min.insync.replicas": "1"})
    write(cluster, "seen", 10)
    until(lambda: total_of(cluster, "tidemill_topic_messages_in_total", topic="seen") == 10, "all count")
    assert value_of(cluster, victim, "tidemill_topic_bytes_in_total", topic="seen") > 10_000
    assert value_of(cluster, victim, "tidemill_requests_total", api="Produce") > 0
    until(lambda: total_of(cluster, "tidemill_under_replicated_partitions") == 0, "all is in sync")
    assert total_of(cluster, "tidemill_offline_partitions") == 0
    expands = total_of(cluster, "tidemill_isr_expands_total") - value_of(
        cluster, victim, "tidemill_isr_expands_total"
    )
    elections = value_of(cluster, controller_id, "tidemill_leader_elections_total")
    unclean = value_of(cluster, controller_id, "tidemill_unclean_leader_elections_total")
    cluster.brokers[victim].kill()
    until(lambda: cluster.leaders("alone") == [-1], "the controller knows")
    assert value_of(cluster, controller_id, "tidemill_leader_elections_total") > elections
    assert value_of(cluster, controller_id, "tidemill_unclean_leader_elections_total") == unclean
    until(lambda: cluster.leaders("seen")[0] in (controller_id, other), "another leads")
    new = cluster.leaders("seen")[0]
    until(lambda: value_of(cluster, new, "tidemill_under_replicated_partitions") > 0, "a replica is missing")
    until(lambda: value_of(cluster, controller_id, "tidemill_offline_partitions") == 1, "one is offline")
    cluster.brokers[victim].start()
    until(lambda: total_of(cluster, "tidemill_under_replicated_partitions") == 0, "all is in sync again")
    until(lambda: total_of(cluster, "tidemill_offline_partitions") == 0, "none is offline")
    grown = total_of(cluster, "tidemill_isr_expands_total") - value_of(
        cluster, victim, "tidemill_isr_expands_total"
    )
    assert grown > expands
    assert controller(cluster) == controller_id


def test_metrics_show_a_paused_follower_that_leaves_the_isr(cluster: Brokers) -> None:
    controller_id = controller(cluster)
    follower, other = (number for number in cluster.brokers if number != controller_id)
    with cluster.admin() as admin:
        admin.create_topic("behind", assignments={0: [controller_id, follower, other]})
    write(cluster, "behind", 5)
    shrinks = value_of(cluster, controller_id, "tidemill_isr_shrinks_total")
    expands = value_of(cluster, controller_id, "tidemill_isr_expands_total")
    stopped = cluster.brokers[follower]
    stopped_pid = stopped.pid
    os.kill(stopped_pid, signal.SIGSTOP)
    try:
        # Clients would contact the paused broker until its session expires.
        write(cluster, "behind", 100, acks="1", through=controller_id)
        until(lambda: value_of(cluster, controller_id, "tidemill_max_lag_records") >= 100, "it lags")
        until(
            lambda: value_of(cluster, controller_id, "tidemill_isr_shrinks_total") > shrinks,
            "it left the set",
        )
        assert value_of(cluster, controller_id, "tidemill_under_replicated_partitions") > 0
    finally:
        os.kill(stopped_pid, signal.SIGCONT)
    until(lambda: value_of(cluster, controller_id, "tidemill_isr_expands_total") > expands, "it is back")
    until(lambda: value_of(cluster, controller_id, "tidemill_max_lag_records") == 0, "it has all")


def test_counts_unclean_elections(cluster: Brokers) -> None:
    controller_id = controller(cluster)
    last, other = (number for number in cluster.brokers if number != controller_id)
    with cluster.admin() as admin:
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        admin.create_topic("unclean", assignments={0: [last, other]}, configs=settings)
    unclean = value_of(cluster, controller_id, "tidemill_unclean_leader_elections_total")
    cluster.brokers[other].kill()
    write(cluster, "unclean", 5)
    until(lambda: value_of(cluster, last, "tidemill_under_replicated_partitions") > 0, "one is left in sync")
    cluster.brokers[last].kill()
    until(lambda: cluster.leaders("unclean") == [-1], "it has no leader")
    cluster.brokers[other].start()
    until(lambda: cluster.leaders("unclean") == [other], "a replica outside the ISR leads")
    assert value_of(cluster, controller_id, "tidemill_unclean_leader_elections_total") == unclean + 1


def test_request_times_match_the_requests(cluster: Brokers) -> None:
    controller_id = controller(cluster)
    with cluster.admin() as admin:
        admin.create_topic(
            "timed", assignments={0: [controller_id, *(n for n in cluster.brokers if n != controller_id)]}
        )
    count = total_of(cluster, "tidemill_request_seconds_count", api="Metadata")
    for _ in range(10):
        cluster.leaders("timed")
    assert total_of(cluster, "tidemill_request_seconds_count", api="Metadata") >= count + 10
    assert 0 < total_of(cluster, "tidemill_request_seconds_sum", api="Metadata") < 60
    flushed = value_of(cluster, controller_id, "tidemill_log_flush_seconds_count")
    with cluster.admin() as admin:
        settings = {"flush.messages": "1"}
        everywhere = [controller_id, *(number for number in cluster.brokers if number != controller_id)]
        admin.create_topic("synced", assignments={0: everywhere}, configs=settings)
    write(cluster, "synced", 3)
    assert value_of(cluster, controller_id, "tidemill_log_flush_seconds_count") > flushed


def test_the_coordinator_reports_the_group_lag_for_all_leaders(cluster: Brokers) -> None:
    numbers = list(cluster.brokers)
    with cluster.admin() as admin:
        # One partition on each broker, without other replicas: the coordinator requests two end offsets.
        settings = {"min.insync.replicas": "1"}
        admin.create_topic("read", assignments={n - 1: [n] for n in numbers}, configs=settings)
    with Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(30):
            producer.send("read", b"%d" % number, partition=number % 3)
    with Consumer(cluster.bootstrap, {"group.id": "slow", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["read"])
        seen = 0
        while seen < 30:
            seen += len(consumer.poll(timeout=1.0))
        consumer.commit()
    name, labels = "tidemill_group_lag_records", {"group": "slow", "topic": "read"}
    until(
        lambda: sum(has_sample(cluster, number, name, **labels) for number in numbers) == 1,
        "one tells the lag",
    )
    assert total_of(cluster, name, **labels) == 0
    with Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(12):
            producer.send("read", b"%d" % number, partition=number % 3)
    until(lambda: total_of(cluster, name, **labels) == 12, "the group is 12 records behind")


def test_an_offline_follower_lags_for_any_leader(cluster: Brokers) -> None:
    controller_id = controller(cluster)
    dead, leader = (number for number in cluster.brokers if number != controller_id)
    place = TopicPartition("dead", 0)
    lag = "tidemill_max_lag_records"
    with cluster.admin() as admin:
        admin.create_topic("dead", assignments={0: [leader, controller_id, dead]})
    write(cluster, "dead", 5)
    cluster.brokers[dead].kill()
    until(lambda: value_of(cluster, leader, "tidemill_under_replicated_partitions") > 0, "it left the set")
    with cluster.admin(leader, controller_id) as admin:
        write(cluster, "dead", 50, through=leader)
        until(lambda: value_of(cluster, leader, lag) == 50, "it lacks what was written since")
        assert value_of(cluster, controller_id, lag) == 0, "who does not lead does not tell"
        assert admin.alter_reassignments({place: [controller_id, leader, dead]}) == {place: None}
        until(lambda: not admin.list_reassignments(), "the order of replicas is another")
        assert admin.elect_leaders([place]) == {place: None}
    until(lambda: cluster.leaders("dead") == [controller_id], "another leads")
    # The new leader may not know that the offline follower had the first messages.
    until(lambda: 50 <= value_of(cluster, controller_id, lag) <= 55, "which knows it as well")
    until(lambda: value_of(cluster, leader, lag) == 0, "and the one before tells nothing any more")
    cluster.brokers[dead].start()
    until(lambda: value_of(cluster, controller_id, lag) == 0, "it has all")


def test_a_deleted_topic_has_no_series_and_starts_at_zero_when_created_again(cluster: Brokers) -> None:
    name = "tidemill_topic_messages_in_total"
    for count in (50, 3):
        with cluster.admin() as admin:
            admin.create_topic("again", assignments={0: [1, 2, 3], 1: [3, 2, 1]})
        write(cluster, "again", count)
        assert count <= total_of(cluster, name, topic="again") < count + 50
        with cluster.admin() as admin:
            admin.delete_topic("again")
        until(lambda: is_recovered(cluster, ["again"]), "nothing is left of it")


def test_a_reassigned_partition_has_no_series(cluster: Brokers) -> None:
    name = "tidemill_topic_messages_in_total"
    with cluster.admin() as admin:
        admin.create_topic("moved", assignments={0: [1, 2], 1: [1, 2]})
        write(cluster, "moved", 5)
        counted = value_of(cluster, 1, name, topic="moved")
        assert counted >= 5
        held = value_of(cluster, 1, "tidemill_partition_count")
        for place in (TopicPartition("moved", 0), TopicPartition("moved", 1)):
            assert value_of(cluster, 1, name, topic="moved") == counted, "a counter does not fall"
            assert admin.alter_reassignments({place: [2, 3]}) == {place: None}
            held -= 1
            until(
                lambda held=held: value_of(cluster, 1, "tidemill_partition_count") == held,
                "it is removed",
            )
    until(lambda: not has_sample(cluster, 1, name, topic="moved"), "no series is left")
    assert has_sample(cluster, 2, name, topic="moved")
    assert has_sample(cluster, 3, name, topic="moved")
    until(
        lambda: total_of(cluster, "tidemill_max_lag_records") == 0,
        "its lag is not counted",
    )


def has_sample(cluster: Brokers, number: int, name: str, **labels: str) -> bool:
    """Whether a broker has a sample with these labels."""
    return any(labels.items() <= sample.labels.items() for sample in samples(cluster, number, name))
