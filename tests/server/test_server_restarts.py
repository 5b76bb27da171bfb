"""Brokers that are down while topics and addresses change, with broker processes."""

from __future__ import annotations

from pathlib import Path

from broker_cluster import Brokers, start_cluster, until, zookeeper_client
from confluent_kafka import Producer

from tidemill.client import Admin, ClientError
from tidemill.coordination.nodes import BrokerNode
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper


def produce(cluster: Brokers, topic: str, values: range) -> None:
    living = ",".join(one.bootstrap for one in cluster.brokers.values() if one.running)
    producer = Producer({"bootstrap.servers": living, "acks": "all", "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, f"{topic} {value}".encode(), partition=0)
    assert producer.flush(30) == 0


def state(cluster: Brokers, topic: str) -> tuple[int, list[int], list[int]]:
    """The leader, replicas and ISR of partition 0."""
    living = [number for number, one in cluster.brokers.items() if one.running]
    try:
        with cluster.admin(*living) as admin:
            one = admin.describe_topic(topic).partitions[0]
    except ClientError:
        return -1, [], []
    return one.leader, sorted(one.replicas), sorted(one.isr)


def log_of(cluster: Brokers, number: int, name: str) -> bytes:
    found = Path(cluster.brokers[number].data_dir).glob(f"{name}/*.log")
    return b"".join(path.read_bytes() for path in sorted(found))


def test_a_topic_created_again_while_a_broker_was_down_has_no_old_records_there(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-anew"
    with start_cluster(address, 2, min__insync__replicas="1") as cluster:
        with cluster.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        produce(cluster, "t", range(20))
        until(lambda: state(cluster, "t") == (1, [1, 2], [1, 2]), "both are in sync")
        cluster.brokers[2].kill()
        with cluster.admin(1) as admin:
            # Broker 2 has no replica when the topic is deleted, so that the deletion does not wait for it.
            assert admin.alter_reassignments({TopicPartition("t", 0): [1]}) == {TopicPartition("t", 0): None}
            until(lambda: state(cluster, "t") == (1, [1], [1]), "the replica of broker 2 is given up")
            admin.delete_topic("t")
        cluster.brokers[2].start()
        assert b"t 19" in log_of(cluster, 2, "t-0")
        with cluster.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        produce(cluster, "t", range(100, 110))
        until(lambda: state(cluster, "t") == (1, [1, 2], [1, 2]), "broker 2 follows the new topic")
        until(lambda: log_of(cluster, 2, "t-0") == log_of(cluster, 1, "t-0"), "both have the same")
        assert b"t 109" in log_of(cluster, 2, "t-0")
        assert b"t 19" not in log_of(cluster, 2, "t-0")
        assert b"t 19" in log_of(cluster, 2, "t-0.*-stray")
        assert "held a topic of this name with another id" in cluster.brokers[2].log
        cluster.brokers[2].restart()
        until(lambda: state(cluster, "t") == (1, [1, 2], [1, 2]), "it is in sync after another start, too")


def test_brokers_find_restarted_brokers_at_new_addresses(zookeeper_server: ZooKeeper) -> None:
    address = f"{zookeeper_server.address}/test-moved"
    with start_cluster(address, 3) as cluster:
        with cluster.admin() as admin:
            for first in (1, 2, 3):
                others = [number for number in (1, 2, 3) if number != first]
                admin.create_topic(f"t{first}", assignments={0: [first, *others]})
        for number, broker in cluster.brokers.items():  # One of them is the active controller.
            before = broker.port
            broker.kill()
            broker.port = 0
            broker.start()
            assert broker.port != before
            for first in (1, 2, 3):
                until(lambda first=first: len(state(cluster, f"t{first}")[2]) == 3, f"{number} is in sync")  # type: ignore[misc]
                produce(cluster, f"t{first}", range(10))
        with cluster.admin() as admin:
            admin.elect_leaders(None)
        for first in (1, 2, 3):
            # Each broker leads a topic, and the followers fetch from its new address.
            until(
                lambda first=first: state(cluster, f"t{first}") == (first, [1, 2, 3], [1, 2, 3]), "it leads"
            )  # type: ignore[misc]
            produce(cluster, f"t{first}", range(10, 20))
        for number in cluster.brokers:
            # Requests for the controller are forwarded to its new address.
            with cluster.admin(number) as admin:
                admin.create_topic(f"asked-{number}", 1, 3)


def test_a_broker_at_the_address_of_a_stopped_broker_is_not_mistaken_for_it(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-taken"
    with start_cluster(address, 3, min__insync__replicas="1") as cluster:
        with cluster.admin() as admin:
            admin.create_topic("t", assignments={0: [2, 1, 3]})
        produce(cluster, "t", range(10))
        cluster.brokers[3].stop()
        cluster.brokers[2].kill()
        # The registration of broker 2 exists until its session expires, and broker 3 listens on its port.
        cluster.brokers[3].port = cluster.brokers[2].port
        cluster.brokers[3].start()
        until(lambda: state(cluster, "t") == (1, [1, 2, 3], [1, 3]), "broker 2 is gone, and broker 3 in sync")
        produce(cluster, "t", range(10, 20))
        assert not any("broker 2 accepts connections again" in one.log for one in cluster.brokers.values())
        cluster.brokers[2].port = 0
        cluster.brokers[2].start()
        until(lambda: state(cluster, "t")[2] == [1, 2, 3], "broker 2 is back, elsewhere")
        assert b"t 19" in log_of(cluster, 2, "t-0")


def test_clients_of_a_new_listener_receive_its_addresses(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-listeners"
    with start_cluster(address, 2, min__insync__replicas="1") as cluster:
        with cluster.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        for broker in cluster.brokers.values():
            broker.stop()
            broker.config["listeners"] = f"PLAINTEXT://127.0.0.1:{broker.port},EXTRA://127.0.0.1:0"
            broker.config["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"
            broker.start()
        until(lambda: state(cluster, "t")[2] == [1, 2], "both are in sync")
        ports = extra_ports(address)
        assert sorted(ports) == [1, 2]
        for port in ports.values():
            with Admin(f"127.0.0.1:{port}") as admin:
                known = {one.broker_id: one.port for one in admin.describe_cluster().brokers}
            assert known == ports


def extra_ports(address: str) -> dict[int, int]:
    """The ports of the additional listener in the registrations."""
    with zookeeper_client(address) as client:
        found = {int(name): client.get(f"/brokers/ids/{name}")[0] for name in ("1", "2")}
    return {
        number: endpoint.port
        for number, data in found.items()
        for endpoint in BrokerNode.decode(number, data).endpoints
        if endpoint.listener == "EXTRA"
    }
