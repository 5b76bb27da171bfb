"""Real brokers whose topics and addresses change while they are away."""

from __future__ import annotations

from pathlib import Path

from cluster_stage import Stage, cluster, nodes, until
from confluent_kafka import Producer

from tidemill.client import Admin, ClientError
from tidemill.coordination.nodes import BrokerNode
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper


def produce(stage: Stage, topic: str, values: range) -> None:
    living = ",".join(one.bootstrap for one in stage.brokers.values() if one.running)
    producer = Producer({"bootstrap.servers": living, "acks": "all", "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, f"{topic} {value}".encode(), partition=0)
    assert producer.flush(30) == 0


def state(stage: Stage, topic: str) -> tuple[int, list[int], list[int]]:
    """Leader, replicas and in-sync set of its partition."""
    living = [number for number, one in stage.brokers.items() if one.running]
    try:
        with stage.admin(*living) as admin:
            one = admin.describe_topic(topic).partitions[0]
    except ClientError:
        return -1, [], []
    return one.leader, sorted(one.replicas), sorted(one.isr)


def log_of(stage: Stage, number: int, name: str) -> bytes:
    found = Path(stage.brokers[number].data_dir).glob(f"{name}/*.log")
    return b"".join(path.read_bytes() for path in sorted(found))


def test_a_topic_made_anew_while_a_broker_was_away_is_whole_there_and_has_nothing_of_the_old(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-anew"
    with cluster(address, 2, min__insync__replicas="1") as stage:
        with stage.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        produce(stage, "t", range(20))
        until(lambda: state(stage, "t") == (1, [1, 2], [1, 2]), "both are in sync")
        stage.brokers[2].kill()
        with stage.admin(1) as admin:
            # Broker 2 has no replica any more when the topic goes, so that nobody waits for it.
            assert admin.alter_reassignments({TopicPartition("t", 0): [1]}) == {TopicPartition("t", 0): None}
            until(lambda: state(stage, "t") == (1, [1], [1]), "the replica of broker 2 is given up")
            admin.delete_topic("t")
        stage.brokers[2].start()
        assert b"t 19" in log_of(stage, 2, "t-0")
        with stage.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        produce(stage, "t", range(100, 110))
        until(lambda: state(stage, "t") == (1, [1, 2], [1, 2]), "broker 2 follows the new topic")
        until(lambda: log_of(stage, 2, "t-0") == log_of(stage, 1, "t-0"), "both have the same")
        assert b"t 109" in log_of(stage, 2, "t-0")
        assert b"t 19" not in log_of(stage, 2, "t-0")
        assert b"t 19" in log_of(stage, 2, "t-0.*-stray")
        assert "held a topic of this name with another id" in stage.brokers[2].log
        stage.brokers[2].restart()
        until(lambda: state(stage, "t") == (1, [1, 2], [1, 2]), "it is in sync after another start, too")


def test_brokers_that_come_back_at_another_address_are_found_by_all(zookeeper_server: ZooKeeper) -> None:
    address = f"{zookeeper_server.address}/test-moved"
    with cluster(address, 3) as stage:
        with stage.admin() as admin:
            for first in (1, 2, 3):
                others = [number for number in (1, 2, 3) if number != first]
                admin.create_topic(f"t{first}", assignments={0: [first, *others]})
        for number, broker in stage.brokers.items():  # One of them is the controller.
            before = broker.port
            broker.kill()
            broker.port = 0
            broker.start()
            assert broker.port != before
            for first in (1, 2, 3):
                until(lambda first=first: len(state(stage, f"t{first}")[2]) == 3, f"{number} is in sync")  # type: ignore[misc]
                produce(stage, f"t{first}", range(10))
        with stage.admin() as admin:
            admin.elect_leaders(None)
        for first in (1, 2, 3):
            # Each leads, and is followed where it is now.
            until(lambda first=first: state(stage, f"t{first}") == (first, [1, 2, 3], [1, 2, 3]), "it leads")  # type: ignore[misc]
            produce(stage, f"t{first}", range(10, 20))
        for number in stage.brokers:
            # What only the controller can do is passed on to where it is.
            with stage.admin(number) as admin:
                admin.create_topic(f"asked-{number}", 1, 3)


def test_a_broker_at_the_address_of_one_that_has_ended_is_not_taken_for_it(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-taken"
    with cluster(address, 3, min__insync__replicas="1") as stage:
        with stage.admin() as admin:
            admin.create_topic("t", assignments={0: [2, 1, 3]})
        produce(stage, "t", range(10))
        stage.brokers[3].stop()
        stage.brokers[2].kill()
        # The registration of broker 2 lives as long as its session, and somebody listens where it was.
        stage.brokers[3].port = stage.brokers[2].port
        stage.brokers[3].start()
        until(lambda: state(stage, "t") == (1, [1, 2, 3], [1, 3]), "broker 2 is gone, and broker 3 in sync")
        produce(stage, "t", range(10, 20))
        assert not any("broker 2 listens again" in one.log for one in stage.brokers.values())
        stage.brokers[2].port = 0
        stage.brokers[2].start()
        until(lambda: state(stage, "t")[2] == [1, 2, 3], "broker 2 is back, elsewhere")
        assert b"t 19" in log_of(stage, 2, "t-0")


def test_a_listener_that_brokers_registered_anew_with_is_told_to_those_who_use_it(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-listeners"
    with cluster(address, 2, min__insync__replicas="1") as stage:
        with stage.admin() as admin:
            admin.create_topic("t", assignments={0: [1, 2]})
        for broker in stage.brokers.values():
            broker.stop()
            broker.config["listeners"] = f"PLAINTEXT://127.0.0.1:{broker.port},EXTRA://127.0.0.1:0"
            broker.config["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"
            broker.start()
        until(lambda: state(stage, "t")[2] == [1, 2], "both are in sync")
        ports = extra_ports(address)
        assert sorted(ports) == [1, 2]
        for port in ports.values():
            with Admin(f"127.0.0.1:{port}") as admin:
                known = {one.broker_id: one.port for one in admin.describe_cluster().brokers}
            assert known == ports


def extra_ports(address: str) -> dict[int, int]:
    """Where the registrations say that the further listener is."""
    with nodes(address) as client:
        found = {int(name): client.get(f"/brokers/ids/{name}")[0] for name in ("1", "2")}
    return {
        number: endpoint.port
        for number, data in found.items()
        for endpoint in BrokerNode.decode(number, data).endpoints
        if endpoint.listener == "EXTRA"
    }
