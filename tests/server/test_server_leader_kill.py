"""A leader is killed: what clients are told at once, and where librdkafka writes then."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from cluster_stage import Stage, cluster, nodes, until
from confluent_kafka import Producer
from wire_peer import WirePeer

from tidemill.coordination.nodes import BrokerNode
from tidemill.groups.ports import OFFSETS_TOPIC
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

COUNT, KILLS = 4, 5
"""Brokers, and how often one is killed at most: where an election takes longer than an answer is held, on a
machine with other work, the answer names the dead leader."""


@pytest.fixture
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Four brokers, of which two may be killed."""
    with cluster(f"{zookeeper_server.address}/leader-kill", COUNT) as found:
        yield found


class DebugLog(logging.Handler):
    """What a librdkafka client logs of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = logging.Logger("librdkafka")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def leader_in_first_answer(self, topic: str, partition: int, reason: str) -> int:
        """The leader of a partition in the first Metadata answer to a request for this reason."""
        answered = next(at for at, line in enumerate(self.lines) if f"topics): {reason} =====" in line)
        named = f"Topic {topic} [{partition}] Leader "
        return next(int(line.split(named)[1].split()[0]) for line in self.lines[answered:] if named in line)


def led_topic(stage: Stage, name: str, partitions: int = 1) -> int:
    """Makes a topic on all brokers; the leader of its first partition."""
    with stage.admin() as admin:
        admin.create_topic(name, partitions, COUNT)
    stage.until_in_sync(name, [*stage.brokers])
    return stage.leaders(name)[0]


def start_again(stage: Stage, topic: str, dead: int, partition: int = 0) -> int:
    """Starts a broker that was killed; once its replica is in sync, the leader of the partition."""
    stage.brokers[dead].start()
    stage.until_in_sync(topic, [*stage.brokers], partition)
    return stage.leaders(topic)[partition]


def metadata(peer: WirePeer, topic: str) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer: MetadataResponse = peer.ask(ApiKey.METADATA, 12, request)
    return answer


@contextmanager
def peers(stage: Stage, without: int) -> Iterator[dict[int, WirePeer]]:
    """A connection to each broker but one."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(WirePeer(broker.bootstrap))
            for number, broker in stage.brokers.items()
            if number != without
        }


def listed(peer: WirePeer, broker_id: int) -> bool:
    return broker_id in [one.node_id for one in metadata(peer, "killed").brokers]


def test_the_first_answer_after_a_kill_names_the_next_leader_and_lists_the_dead_one(stage: Stage) -> None:
    dead = led_topic(stage, "killed")
    for _ in range(KILLS):
        with peers(stage, without=dead) as asked:
            stage.brokers[dead].kill()
            answers = [metadata(peer, "killed") for peer in asked.values()]
        assert all(dead in [one.node_id for one in answer.brokers] for answer in answers)
        if any(answer.topics[0].partitions[0].leader_id != dead for answer in answers):
            break
        dead = start_again(stage, "killed", dead)
    else:
        raise AssertionError(f"after {KILLS} kills, each first answer named the dead leader")
    until(lambda: stage.leaders("killed")[0] not in (dead, -1), "another broker leads")
    leader = stage.leaders("killed")[0]
    assert leader in [answer.topics[0].partitions[0].leader_id for answer in answers]

    # Administrators are told at once that it is gone; clients are told of it until its session has ended.
    with WirePeer(stage.brokers[leader].bootstrap) as peer:
        with stage.admin(leader) as admin, nodes(stage.address) as store:
            assert dead not in [one.broker_id for one in admin.describe_cluster().brokers]
            assert dead not in admin.describe_log_dirs()
            admin.list_groups()
            while store.exists(BrokerNode.path(dead)):
                assert listed(peer, dead)
                time.sleep(0.2)
        until(lambda: not listed(peer, dead), "it is not listed any more")


def test_a_client_that_looks_for_a_coordinator_after_a_kill_is_sent_to_the_next_one(stage: Stage) -> None:
    def coordinator(number: int) -> int:
        with WirePeer(stage.brokers[number].bootstrap) as peer:
            request = FindCoordinatorRequest(key="g", key_type=0)
            found: int = peer.ask(ApiKey.FIND_COORDINATOR, 3, request).node_id
        return found

    def next_coordinator(number: int, *others: int) -> int:
        until(lambda: coordinator(number) not in (*others, -1), "there is a coordinator")
        return coordinator(number)

    for number in stage.brokers:
        first = next_coordinator(number)
    partition = stage.leaders(OFFSETS_TOPIC).index(first)
    stage.until_in_sync(OFFSETS_TOPIC, [*stage.brokers], partition)
    for _ in range(KILLS):
        dead = next_coordinator(1)
        other = next(number for number in stage.brokers if number != dead)
        stage.brokers[dead].kill()
        if coordinator(other) not in (dead, -1):
            return
        next_coordinator(other, dead)
        start_again(stage, OFFSETS_TOPIC, dead, partition)
    raise AssertionError(f"after {KILLS} kills, each first answer named the dead coordinator")


def test_the_first_answer_after_a_kill_tells_librdkafka_where_to_write(stage: Stage) -> None:
    log = DebugLog()
    producer = Producer({"bootstrap.servers": stage.bootstrap, "debug": "metadata,broker"}, logger=log.logger)
    # Each broker leads a partition, so that librdkafka has a connection to each of them when one dies.
    leader = led_topic(stage, "written", COUNT)
    for partition in range(COUNT):
        producer.produce("written", b"x", partition=partition)
    assert producer.flush(30) == 0

    named: list[int] = []
    while len(named) < KILLS:
        log.lines.clear()
        stage.brokers[leader].kill()
        producer.produce("written", b"x", partition=0)
        assert producer.flush(30) == 0
        named.append(log.leader_in_first_answer("written", 0, "broker down"))
        if named[-1] != leader:
            return
        leader = start_again(stage, "written", leader)
    raise AssertionError(f"after {KILLS} kills, each first answer named the dead leader: {named}")
