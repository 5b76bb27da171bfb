"""Metadata responses after the kill of a leader, and the writes of librdkafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from broker_cluster import Brokers, start_cluster, until, zookeeper_client
from confluent_kafka import Producer
from wire_peer import WirePeer

from tidemill.coordination.nodes import BrokerNode
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

COUNT, KILLS = 4, 5
"""Number of brokers, and maximum number of kills. If an election on a busy machine takes longer than the
delay of a response, the response contains the killed leader, and the test kills again."""


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Four brokers, two of which may be down."""
    with start_cluster(f"{zookeeper_server.address}/leader-kill", COUNT) as found:
        yield found


class DebugLog(logging.Handler):
    """The debug log of a librdkafka client."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = logging.Logger("librdkafka")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def leader_in_first_response(self, topic: str, partition: int, reason: str) -> int:
        """The leader of a partition in the first Metadata response to a request with this reason."""
        answered = next(at for at, line in enumerate(self.lines) if f"topics): {reason} =====" in line)
        named = f"Topic {topic} [{partition}] Leader "
        return next(int(line.split(named)[1].split()[0]) for line in self.lines[answered:] if named in line)


def led_topic(cluster: Brokers, name: str, partitions: int = 1) -> int:
    """Creates a topic on all brokers. Returns the leader of its first partition."""
    with cluster.admin() as admin:
        admin.create_topic(name, partitions, COUNT)
    cluster.until_in_sync(name, [*cluster.brokers])
    return cluster.leaders(name)[0]


def start_again(cluster: Brokers, topic: str, dead: int, partition: int = 0) -> int:
    """Starts a killed broker, and waits for its replica. Returns the leader of the partition."""
    cluster.brokers[dead].start()
    cluster.until_in_sync(topic, [*cluster.brokers], partition)
    return cluster.leaders(topic)[partition]


def metadata(peer: WirePeer, topic: str) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer: MetadataResponse = peer.ask(ApiKey.METADATA, 12, request)
    return answer


@contextmanager
def peers(cluster: Brokers, without: int) -> Iterator[dict[int, WirePeer]]:
    """Connections to all brokers except one."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(WirePeer(broker.bootstrap))
            for number, broker in cluster.brokers.items()
            if number != without
        }


def listed(peer: WirePeer, broker_id: int) -> bool:
    return broker_id in [one.node_id for one in metadata(peer, "killed").brokers]


def test_the_first_response_after_a_kill_has_the_new_leader_and_the_killed_broker(
    cluster: Brokers,
) -> None:
    dead = led_topic(cluster, "killed")
    for _ in range(KILLS):
        with peers(cluster, without=dead) as asked:
            cluster.brokers[dead].kill()
            answers = [metadata(peer, "killed") for peer in asked.values()]
        assert all(dead in [one.node_id for one in answer.brokers] for answer in answers)
        if any(answer.topics[0].partitions[0].leader_id != dead for answer in answers):
            break
        dead = start_again(cluster, "killed", dead)
    else:
        raise AssertionError(f"after {KILLS} kills, each first answer named the dead leader")
    until(lambda: cluster.leaders("killed")[0] not in (dead, -1), "another broker leads")
    leader = cluster.leaders("killed")[0]
    assert leader in [answer.topics[0].partitions[0].leader_id for answer in answers]

    # DescribeCluster omits the killed broker at once; Metadata contains it until its session has expired.
    with WirePeer(cluster.brokers[leader].bootstrap) as peer:
        with cluster.admin(leader) as admin, zookeeper_client(cluster.address) as store:
            assert dead not in [one.broker_id for one in admin.describe_cluster().brokers]
            assert dead not in admin.describe_log_dirs()
            admin.list_groups()
            while store.exists(BrokerNode.path(dead)):
                assert listed(peer, dead)
                time.sleep(0.2)
        until(lambda: not listed(peer, dead), "it is not listed any more")


def test_find_coordinator_after_a_kill_returns_the_new_coordinator(
    cluster: Brokers,
) -> None:
    def coordinator(number: int) -> int:
        with WirePeer(cluster.brokers[number].bootstrap) as peer:
            request = FindCoordinatorRequest(key="g", key_type=0)
            found: int = peer.ask(ApiKey.FIND_COORDINATOR, 3, request).node_id
        return found

    def next_coordinator(number: int, *others: int) -> int:
        until(lambda: coordinator(number) not in (*others, -1), "there is a coordinator")
        return coordinator(number)

    for number in cluster.brokers:
        first = next_coordinator(number)
    partition = cluster.leaders(OFFSETS_TOPIC).index(first)
    cluster.until_in_sync(OFFSETS_TOPIC, [*cluster.brokers], partition)
    for _ in range(KILLS):
        dead = next_coordinator(1)
        other = next(number for number in cluster.brokers if number != dead)
        cluster.brokers[dead].kill()
        if coordinator(other) not in (dead, -1):
            return
        next_coordinator(other, dead)
        start_again(cluster, OFFSETS_TOPIC, dead, partition)
    raise AssertionError(f"after {KILLS} kills, each first answer named the dead coordinator")


def test_librdkafka_finds_the_new_leader_in_the_first_response_after_a_kill(cluster: Brokers) -> None:
    log = DebugLog()
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "debug": "metadata,broker"}, logger=log.logger
    )
    # Each broker leads a partition, so that librdkafka has connections to all of them.
    leader = led_topic(cluster, "written", COUNT)
    for partition in range(COUNT):
        producer.produce("written", b"x", partition=partition)
    assert producer.flush(30) == 0

    named: list[int] = []
    while len(named) < KILLS:
        log.lines.clear()
        cluster.brokers[leader].kill()
        producer.produce("written", b"x", partition=0)
        assert producer.flush(30) == 0
        named.append(log.leader_in_first_response("written", 0, "broker down"))
        if named[-1] != leader:
            return
        leader = start_again(cluster, "written", leader)
    raise AssertionError(f"after {KILLS} kills, each first answer named the dead leader: {named}")
