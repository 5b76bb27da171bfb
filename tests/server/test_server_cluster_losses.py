"""Replicas that come back empty, or after a power cut: real brokers, real ZooKeeper, real clients."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_stage import Stage, cluster, cut_power, produce, stored, until

from tidemill.cli.main import run
from tidemill.client import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

MESSAGES = 5000
SETTINGS = {
    "zookeeper__session__timeout__ms": "2000",
    "replica__lag__time__max__ms": "2000",
    "auto__leader__rebalance__enable": "false",
    "log__retention__check__interval__ms": "300",
    "log__initial__task__delay__ms": "300",
    "log__segment__delete__delay__ms": "300",
}

_numbers = itertools.count()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def brokers(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers for the tests of this module."""
    with cluster(f"{zookeeper_server.address}/test-cluster-losses", **SETTINGS) as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


@pytest.fixture
def stage(brokers: Stage) -> Stage:
    """All of them running, also after a test that failed."""
    for broker in brokers.brokers.values():
        broker.start()
    return brokers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this try's own."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{next(_numbers)}"


def empty(broker: Broker) -> None:
    """The broker's disk is replaced by an empty one."""
    assert not broker.running
    shutil.rmtree(broker.data_dir)
    Path(broker.data_dir).mkdir()


def make(stage: Stage, topic: str, replicas: list[int], minimum: int) -> None:
    """Creates a topic of one partition."""
    configs = {"min.insync.replicas": str(minimum), "unclean.leader.election.enable": "false"}
    with stage.admin() as admin:
        admin.create_topic(topic, assignments={0: replicas}, configs=configs)


def is_told(stage: Stage, topic: str, leader: int) -> bool:
    """Whether a WARNING says that the leader of the topic may lack records."""
    lines = [line for broker in stage.brokers.values() for line in broker.log.splitlines()]
    told = f"{topic}-0: broker {leader} leads"
    return any(
        " WARNING " in line and told in line and "may lack committed records" in line for line in lines
    )


def is_emptied(broker: Broker, topic: str, end: int) -> bool:
    """Whether no file with records of the topic is left."""
    names = {path.name for path in Path(broker.data_dir, f"{topic}-0").iterdir()}
    return {name for name in names if ".log" in name} == {f"{end:020d}.log"}


def test_replicas_whose_records_were_all_deleted_count_more_than_one_that_missed_that(
    stage: Stage, topic: str
) -> None:
    """Broker 3 has records that were deleted while it was down. The others, without any, lost their power."""
    make(stage, topic, [1, 2, 3], 2)
    produce(stage, topic, range(300))
    stage.until_in_sync(topic, [1, 2, 3])
    stage.brokers[3].kill()
    stage.until_in_sync(topic, [1, 2])
    produce(stage, topic, range(300, 500))
    with stage.admin(1, 2) as admin:
        assert admin.delete_records({TopicPartition(topic, 0): 500}) == {TopicPartition(topic, 0): 500}
    for number in (1, 2):
        until(lambda number=number: is_emptied(stage.brokers[number], topic, 500), "the files of records go")
        cut_power(stage.brokers[number])
    for number in (3, 2, 1):
        stage.brokers[number].start()
    stage.until_in_sync(topic, [1, 2, 3])
    assert stored(stage, topic) == []
    assert produce(stage, topic, range(1)) == [500], "no offset is given out twice"


def test_the_last_in_sync_replica_comes_back_empty_and_nothing_is_lost(stage: Stage, topic: str) -> None:
    make(stage, topic, [1, 2, 3], 2)
    assert len(produce(stage, topic, range(MESSAGES), linger__ms=20)) == MESSAGES
    stage.until_in_sync(topic, [1, 2, 3])
    leader = stage.described(topic).leader
    followers = [number for number in stage.brokers if number != leader]
    for number in followers:
        stage.brokers[number].kill()
    stage.until_in_sync(topic, [leader])
    stage.brokers[leader].kill()
    empty(stage.brokers[leader])
    for number in [*followers, leader]:
        stage.brokers[number].start()
    stage.until_in_sync(topic, [1, 2, 3])
    assert stored(stage, topic) == list(range(MESSAGES))
    assert produce(stage, topic, range(MESSAGES, MESSAGES + 1)) == [MESSAGES]


def test_the_last_in_sync_replica_loses_its_power_and_nothing_is_lost(stage: Stage, topic: str) -> None:
    make(stage, topic, [1, 2, 3], 2)
    assert len(produce(stage, topic, range(MESSAGES), linger__ms=20)) == MESSAGES
    stage.until_in_sync(topic, [1, 2, 3])
    leader = stage.described(topic).leader
    followers = [number for number in stage.brokers if number != leader]
    for number in followers:
        stage.brokers[number].kill()
    stage.until_in_sync(topic, [leader])
    cut_power(stage.brokers[leader])
    lose_the_end(stage.brokers[leader], topic)
    for number in [*followers, leader]:
        stage.brokers[number].start()
    stage.until_in_sync(topic, [1, 2, 3])
    assert stored(stage, topic) == list(range(MESSAGES))


def lose_the_end(broker: Broker, topic: str) -> None:
    """What had not been synced is gone: the second half of the only segment."""
    (segment,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)


@pytest.mark.parametrize("has_power", [True, False])
def test_a_topic_of_one_replica_comes_back_after_a_kill_and_after_a_power_cut(
    stage: Stage, topic: str, has_power: bool
) -> None:
    make(stage, topic, [2], 1)
    produce(stage, topic, range(500), batch__num__messages=10)
    if has_power:
        stage.brokers[2].kill()
    else:
        cut_power(stage.brokers[2])
        lose_the_end(stage.brokers[2], topic)
    stage.brokers[2].start()
    stage.until_in_sync(topic, [2])
    left = stored(stage, topic)
    assert left == list(range(len(left)))
    if has_power:
        assert len(left) == 500
    else:
        assert 200 < len(left) < 300
        assert is_told(stage, topic, 2)
    assert produce(stage, topic, range(1)) == [len(left)]


def diverge(stage: Stage, topic: str) -> None:
    """Broker 2 is in sync alone, and then down; broker 3 has the first 100 messages of 200."""
    make(stage, topic, [2, 3], 1)
    produce(stage, topic, range(100))
    stage.until_in_sync(topic, [2, 3])
    stage.brokers[3].kill()
    stage.until_in_sync(topic, [2])
    produce(stage, topic, range(100, 200))
    cut_power(stage.brokers[2])
    stage.brokers[3].start()
    until(lambda: stage.described(topic).leader < 0, f"{topic} has no leader")


def test_a_partition_whose_last_replica_came_back_empty_waits_for_an_unclean_election(
    stage: Stage, topic: str
) -> None:
    diverge(stage, topic)
    empty(stage.brokers[2])
    stage.brokers[2].start()
    with pytest.raises(AssertionError, match="never came about"):
        until(lambda: stage.described(topic).leader > 0, "it is led", 3)
    elect = ["topic", "elect", topic, "-p", "0", "--unclean", "--yes"]
    assert run([*elect, "--bootstrap-server", stage.bootstrap]) == 0
    stage.until_in_sync(topic, [2, 3])
    assert stored(stage, topic) == list(range(100))
    assert is_told(stage, topic, 3)


def test_a_partition_whose_last_replica_lost_its_power_is_led_again_once_that_is_back(
    stage: Stage, topic: str
) -> None:
    diverge(stage, topic)
    assert not is_told(stage, topic, 2)
    stage.brokers[2].start()
    stage.until_in_sync(topic, [2, 3])
    assert stored(stage, topic) == list(range(200))
    assert is_told(stage, topic, 2)
