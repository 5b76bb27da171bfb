"""What three brokers tell of their cluster on their metrics ports, while one of them ends and comes back.

One cluster serves all tests, in any order. What counts events tells of all since a broker's start, so tests
look at how much it grows. What tells of a state tells of the present: each test begins with brokers that run,
are in sync and hold no topic of another test.
"""

from __future__ import annotations

import os
import secrets
import signal
import urllib.request
from collections.abc import Collection, Iterator

import pytest
from cluster_stage import Stage, cluster, until
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tidemill.client import Consumer, Producer, TopicPartition
from tidemill.testing.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def brokers(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers with metrics."""
    settings = {"tidemill__metrics__port": "0", "replica__lag__time__max__ms": "1500"}
    quiet = {"auto__leader__rebalance__enable": "false"}
    path = f"test-cluster-metrics-{secrets.token_hex(4)}"
    with cluster(f"{zookeeper_server.address}/{path}", **settings, **quiet) as found:
        yield found


@pytest.fixture
def stage(brokers: Stage) -> Stage:
    """All of them run, are in sync, and have no topics but internal ones, whatever another test left."""
    for broker in brokers.brokers.values():
        broker.start()
    with brokers.admin() as admin:
        names = [topic.name for topic in admin.list_topics()]
        if names:
            admin.delete_topics(names)
    until(lambda: is_well(brokers, names), "all is well before the test")
    return brokers


def is_well(stage: Stage, gone: Collection[str]) -> bool:
    """Whether nothing is missing, and no series is left of the topics that are gone."""
    faults = ("tidemill_under_replicated_partitions", "tidemill_offline_partitions")
    return all(summed(stage, name) == 0 for name in faults) and not any(
        is_told(stage, number, "tidemill_topic_messages_in_total", topic=name)
        for number in stage.brokers
        for name in gone
    )


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
    expands = summed(stage, "tidemill_isr_expands_total") - told(stage, victim, "tidemill_isr_expands_total")
    elections = told(stage, office, "tidemill_leader_elections_total")
    unclean = told(stage, office, "tidemill_unclean_leader_elections_total")
    stage.brokers[victim].kill()
    until(lambda: stage.leaders("alone") == [-1], "the controller knows")
    assert told(stage, office, "tidemill_leader_elections_total") > elections
    assert told(stage, office, "tidemill_unclean_leader_elections_total") == unclean
    until(lambda: stage.leaders("seen")[0] in (office, other), "another leads")
    new = stage.leaders("seen")[0]
    until(lambda: told(stage, new, "tidemill_under_replicated_partitions") > 0, "a replica is missing")
    until(lambda: told(stage, office, "tidemill_offline_partitions") == 1, "one is offline")
    stage.brokers[victim].start()
    until(lambda: summed(stage, "tidemill_under_replicated_partitions") == 0, "all is in sync again")
    until(lambda: summed(stage, "tidemill_offline_partitions") == 0, "none is offline")
    grown = summed(stage, "tidemill_isr_expands_total") - told(stage, victim, "tidemill_isr_expands_total")
    assert grown > expands
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
    unclean = told(stage, office, "tidemill_unclean_leader_elections_total")
    stage.brokers[other].kill()
    write(stage, "unclean", 5)
    until(lambda: told(stage, last, "tidemill_under_replicated_partitions") > 0, "one is left in sync")
    stage.brokers[last].kill()
    until(lambda: stage.leaders("unclean") == [-1], "nobody leads")
    stage.brokers[other].start()
    until(lambda: stage.leaders("unclean") == [other], "who is not in sync leads")
    assert told(stage, office, "tidemill_unclean_leader_elections_total") == unclean + 1


def test_times_of_requests_are_those_of_the_requests(stage: Stage) -> None:
    office = controller(stage)
    with stage.admin() as admin:
        admin.create_topic("timed", assignments={0: [office, *(n for n in stage.brokers if n != office)]})
    count = summed(stage, "tidemill_request_seconds_count", api="Metadata")
    for _ in range(10):
        stage.leaders("timed")
    assert summed(stage, "tidemill_request_seconds_count", api="Metadata") >= count + 10
    assert 0 < summed(stage, "tidemill_request_seconds_sum", api="Metadata") < 60
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


def test_a_dead_follower_lags_whoever_leads(stage: Stage) -> None:
    office = controller(stage)
    dead, leader = (number for number in stage.brokers if number != office)
    place = TopicPartition("dead", 0)
    lag = "tidemill_replica_lag_max_records"
    with stage.admin() as admin:
        admin.create_topic("dead", assignments={0: [leader, office, dead]})
    write(stage, "dead", 5)
    stage.brokers[dead].kill()
    until(lambda: told(stage, leader, "tidemill_under_replicated_partitions") > 0, "it left the set")
    with stage.admin(leader, office) as admin:
        write(stage, "dead", 50, through=leader)
        until(lambda: told(stage, leader, lag) == 50, "it lacks what was written since")
        assert told(stage, office, lag) == 0, "who does not lead does not tell"
        assert admin.alter_reassignments({place: [office, leader, dead]}) == {place: None}
        until(lambda: not admin.list_reassignments(), "the order of replicas is another")
        assert admin.elect_leaders([place]) == {place: None}
    until(lambda: stage.leaders("dead") == [office], "another leads")
    # It may have heard too late that all had the first ones: then it does not know that the dead one did.
    until(lambda: 50 <= told(stage, office, lag) <= 55, "which knows it as well")
    until(lambda: told(stage, leader, lag) == 0, "and the one before tells nothing any more")
    stage.brokers[dead].start()
    until(lambda: told(stage, office, lag) == 0, "it has all")


def test_a_topic_that_is_deleted_leaves_no_series_and_begins_anew(stage: Stage) -> None:
    name = "tidemill_topic_messages_in_total"
    for count in (50, 3):
        with stage.admin() as admin:
            admin.create_topic("again", assignments={0: [1, 2, 3], 1: [3, 2, 1]})
        write(stage, "again", count)
        assert count <= summed(stage, name, topic="again") < count + 50
        with stage.admin() as admin:
            admin.delete_topic("again")
        until(lambda: is_well(stage, ["again"]), "nothing is left of it")


def test_a_partition_that_is_moved_away_leaves_no_series(stage: Stage) -> None:
    name = "tidemill_topic_messages_in_total"
    with stage.admin() as admin:
        admin.create_topic("moved", assignments={0: [1, 2], 1: [1, 2]})
        write(stage, "moved", 5)
        counted = told(stage, 1, name, topic="moved")
        assert counted >= 5
        held = told(stage, 1, "tidemill_partitions")
        for place in (TopicPartition("moved", 0), TopicPartition("moved", 1)):
            assert told(stage, 1, name, topic="moved") == counted, "a counter does not fall"
            assert admin.alter_reassignments({place: [2, 3]}) == {place: None}
            held -= 1
            until(lambda held=held: told(stage, 1, "tidemill_partitions") == held, "it is let go")
    until(lambda: not is_told(stage, 1, name, topic="moved"), "no series is left")
    assert is_told(stage, 2, name, topic="moved")
    assert is_told(stage, 3, name, topic="moved")
    until(lambda: summed(stage, "tidemill_replica_lag_max_records") == 0, "nobody waits for who has left")


def is_told(stage: Stage, number: int, name: str, **labels: str) -> bool:
    """Whether a broker tells of a sample with these labels."""
    return any(labels.items() <= sample.labels.items() for sample in samples(stage, number, name))
