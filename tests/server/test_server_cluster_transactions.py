"""Transactions of three broker processes whose partitions move, are deleted or are recreated meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tidemill.client import Admin, NewTopic
from tidemill.coordinator_runtime.coordinator_partition import partition_for
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

COUNT = 3
DELAY_S_MAX = 2.5
"""Less than the time until the marker is written again, and until the follower is not in sync any more."""


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers for all tests of this module. Each test leaves them running."""
    with start_cluster(
        f"{zookeeper_server.address}/transactions",
        auto__leader__rebalance__enable="false",
        transaction__state__log__replication__factor="3",
        transaction__state__log__num__partitions="3",
    ) as found:
        yield found


def begun(cluster: Brokers, name: str, *topics: str) -> Producer:
    """Begins a transaction, and writes one message to the first partition of each topic."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, name.encode(), partition=0)
    assert producer.flush(30) == 0
    return producer


def committed(cluster: Brokers, topic: str) -> list[bytes | None]:
    """Reads the first partition up to its end: the last stable offset has reached it."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partition = TopicPartition(topic, 0)
    with cluster.admin() as admin:

        def is_stable() -> bool:
            ends = [
                admin.list_offsets({partition: "latest"}, committed_only=committed_only)[partition].offset
                for committed_only in (False, True)
            ]
            return ends[0] == ends[1]

        until(is_stable, f"{topic} has no open transaction")
    consumer.assign([ClientPartition(topic, 0, 0)])
    values: list[bytes | None] = []

    def is_read() -> bool:
        for message in consumer.consume(100, 0.2):
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return True
        return False

    try:
        until(is_read, f"{topic} is read to its end")
    finally:
        consumer.close()
    return values


def state(admin: Admin, name: str) -> str:
    return admin.describe_transaction(name).state


def until_complete(cluster: Brokers, name: str, wanted: str) -> None:
    """Waits until all markers of the transaction are written."""
    with cluster.admin() as admin:
        until(lambda: state(admin, name) == wanted, f"the transaction of {name} is {wanted}")


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_markers_follow_a_partition_to_other_brokers(cluster: Brokers, is_commit: bool) -> None:
    name = f"moved-{is_commit}".lower()
    partition = TopicPartition(name, 0)
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(name, assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"})])
        producer = begun(cluster, name, name)
        assert admin.alter_reassignments({partition: [3]}) == {partition: None}
        until(
            lambda: list(cluster.described(name).replicas) == [3] and cluster.described(name).leader == 3,
            "broker 3 has the only replica",
        )
        producer.produce(name, b"after the move", partition=0)
        if is_commit:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
    until_complete(cluster, name, "CompleteCommit" if is_commit else "CompleteAbort")
    assert committed(cluster, name) == ([name.encode(), b"after the move"] if is_commit else [])


@pytest.mark.parametrize("is_recreated", [False, True], ids=["deleted", "recreated"])
def test_a_deleted_topic_does_not_hold_up_a_transaction(cluster: Brokers, is_recreated: bool) -> None:
    name = f"kept-{is_recreated}".lower()
    removed = f"removed-{is_recreated}".lower()
    with cluster.admin() as admin:
        for topic in (name, removed):
            admin.create_topic(topic, 1, COUNT)
        producer = begun(cluster, name, name, removed)
        admin.delete_topics([removed])
        if is_recreated:
            admin.create_topic(removed, 1, COUNT)
        producer.commit_transaction(30)
        until_complete(cluster, name, "CompleteCommit")
        assert committed(cluster, name) == [name.encode()]
        if is_recreated:
            assert committed(cluster, removed) == [], "the new topic has no message of the former one"
        producer.begin_transaction()
        producer.produce(name, b"next", partition=0)
        producer.commit_transaction(30)
        until_complete(cluster, name, "CompleteCommit")
    assert committed(cluster, name) == [name.encode(), b"next"]


def name_coordinated_by(cluster: Brokers, broker_id: int) -> str:
    """Returns a transactional id whose coordinator is the broker."""
    leaders = cluster.leaders("__transaction_state")
    names = (f"coordinated-by-{broker_id}-{number}" for number in range(1000))
    return next(name for name in names if leaders[partition_for(name, len(leaders))] == broker_id)


def test_a_marker_that_is_not_committed_delays_no_other_transaction(zookeeper_server: ZooKeeper) -> None:
    """Broker 1 sends markers and verifications to broker 2, whose follower 3 does not respond."""
    with start_cluster(
        f"{zookeeper_server.address}/uncommitted-marker",
        auto__leader__rebalance__enable="false",
        transaction__state__log__replication__factor="1",
        transaction__state__log__num__partitions="3",
        transaction__state__log__min__isr="1",
    ) as cluster:
        configs = {"min.insync.replicas": "1"}
        with cluster.admin() as admin:
            for topic, replicas in {"followed": [2, 3], "single": [1]}.items():
                admin.create_topics([NewTopic(topic, assignments={0: replicas}, configs=configs)])
        begun(cluster, "first", "single").commit_transaction(30)
        delayed = begun(cluster, name_coordinated_by(cluster, 1), "followed")
        # The client has the metadata of the topic: it might request them from broker 3.
        other = begun(cluster, name_coordinated_by(cluster, 2), "single")
        other.commit_transaction(30)
        other.begin_transaction()
        cluster.brokers[3].pause()
        try:
            delayed.commit_transaction(30)
            began = time.monotonic()
            other.produce("single", b"value", partition=0)
            assert other.flush(30) == 0
            assert time.monotonic() - began < DELAY_S_MAX
        finally:
            cluster.brokers[3].resume()
        other.commit_transaction(30)


def test_a_transaction_ends_while_a_leader_is_down(cluster: Brokers) -> None:
    name = "down"
    with cluster.admin() as admin:
        admin.create_topic(name, 3, COUNT)
        producer = begun(cluster, name, name)
        leader = cluster.leaders(name)[0]
        cluster.brokers[leader].kill()
        try:
            producer.commit_transaction(60)
        finally:
            cluster.brokers[leader].start()
    until_complete(cluster, name, "CompleteCommit")
    assert committed(cluster, name) == [name.encode()]
    cluster.until_in_sync(name, [*cluster.brokers])


def test_a_recreated_topic_with_fewer_partitions_does_not_hold_up_a_transaction(cluster: Brokers) -> None:
    name, removed = "kept-shrunk", "removed-shrunk"
    with cluster.admin() as admin:
        admin.create_topic(name, 1, COUNT)
        admin.create_topic(removed, 2, COUNT)
        producer = begun(cluster, name, name)
        producer.produce(removed, b"gone", partition=1)
        assert producer.flush(30) == 0
        admin.delete_topics([removed])
        admin.create_topic(removed, 1, COUNT)
        producer.commit_transaction(30)
    until_complete(cluster, name, "CompleteCommit")
    assert committed(cluster, name) == [name.encode()]
