"""Replicas that return empty or after a power cut, with broker processes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, cut_power, produce, start_cluster, stored, until

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
def brokers(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers for the tests of this module."""
    with start_cluster(f"{zookeeper_server.address}/test-cluster-losses", **SETTINGS) as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


@pytest.fixture
def cluster(brokers: Brokers) -> Brokers:
    """The brokers, all running, also after a failed test."""
    for broker in brokers.brokers.values():
        broker.start()
    return brokers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name for one run of a test."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{next(_numbers)}"


def empty(broker: Broker) -> None:
    """Replaces the broker's disk by an empty one."""
    assert not broker.running
    shutil.rmtree(broker.data_dir)
    Path(broker.data_dir).mkdir()


def lose_the_end(broker: Broker, topic: str) -> None:
    """Removes unsynced data: the second half of the only segment."""
    (segment,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)


def kill_and_empty(broker: Broker, topic: str) -> None:
    broker.kill()
    empty(broker)


def cut_power_and_lose_the_end(broker: Broker, topic: str) -> None:
    cut_power(broker)
    lose_the_end(broker, topic)


def make(cluster: Brokers, topic: str, replicas: list[int], minimum: int) -> None:
    """Creates a topic with one partition."""
    configs = {"min.insync.replicas": str(minimum), "unclean.leader.election.enable": "false"}
    with cluster.admin() as admin:
        admin.create_topic(topic, assignments={0: replicas}, configs=configs)


def is_logged(cluster: Brokers, topic: str, leader: int) -> bool:
    """Whether a WARNING contains that the leader of the topic may lack records."""
    lines = [line for broker in cluster.brokers.values() for line in broker.log.splitlines()]
    elected = f"{topic}-0: broker {leader} was elected in leader epoch "
    return any(
        " WARNING " in line and elected in line and "may lack committed records" in line for line in lines
    )


def is_emptied(broker: Broker, topic: str, end: int) -> bool:
    """Whether the broker has no file with records of the topic."""
    names = {path.name for path in Path(broker.data_dir, f"{topic}-0").iterdir()}
    return {name for name in names if ".log" in name} == {f"{end:020d}.log"}


def test_prefers_replicas_without_records_to_one_that_missed_delete_records(
    cluster: Brokers, topic: str
) -> None:
    """Broker 3 has records that were deleted while it was down. The other brokers had a power cut."""
    make(cluster, topic, [1, 2, 3], 2)
    produce(cluster, topic, range(300))
    cluster.until_in_sync(topic, [1, 2, 3])
    cluster.brokers[3].kill()
    cluster.until_in_sync(topic, [1, 2])
    produce(cluster, topic, range(300, 500))
    with cluster.admin(1, 2) as admin:
        assert admin.delete_records({TopicPartition(topic, 0): 500}) == {TopicPartition(topic, 0): 500}
    for number in (1, 2):
        until(
            lambda number=number: is_emptied(cluster.brokers[number], topic, 500), "the files of records go"
        )
        cut_power(cluster.brokers[number])
    for number in (3, 2, 1):
        cluster.brokers[number].start()
    cluster.until_in_sync(topic, [1, 2, 3])
    assert stored(cluster, topic) == []
    assert produce(cluster, topic, range(1)) == [500], "no offset is given out twice"


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(kill_and_empty, id="with an empty disk"),
        pytest.param(cut_power_and_lose_the_end, id="after a power cut"),
    ],
)
def test_no_records_are_lost_if_the_last_in_sync_replica_returns_without_them(
    cluster: Brokers, topic: str, lose: Callable[[Broker, str], None]
) -> None:
    make(cluster, topic, [1, 2, 3], 2)
    assert len(produce(cluster, topic, range(MESSAGES), linger__ms=20)) == MESSAGES
    cluster.until_in_sync(topic, [1, 2, 3])
    leader = cluster.described(topic).leader
    followers = [number for number in cluster.brokers if number != leader]
    for number in followers:
        cluster.brokers[number].kill()
    cluster.until_in_sync(topic, [leader])
    lose(cluster.brokers[leader], topic)
    for number in [*followers, leader]:
        cluster.brokers[number].start()
    cluster.until_in_sync(topic, [1, 2, 3])
    assert stored(cluster, topic) == list(range(MESSAGES))
    assert produce(cluster, topic, range(MESSAGES, MESSAGES + 1)) == [MESSAGES]


@pytest.mark.parametrize("has_power", [True, False])
def test_a_topic_with_one_replica_returns_after_a_kill_and_a_power_cut(
    cluster: Brokers, topic: str, has_power: bool
) -> None:
    make(cluster, topic, [2], 1)
    produce(cluster, topic, range(500), batch__num__messages=10)
    if has_power:
        cluster.brokers[2].kill()
    else:
        cut_power(cluster.brokers[2])
        lose_the_end(cluster.brokers[2], topic)
    cluster.brokers[2].start()
    cluster.until_in_sync(topic, [2])
    left = stored(cluster, topic)
    assert left == list(range(len(left)))
    if has_power:
        assert len(left) == 500
    else:
        assert 200 < len(left) < 300
        assert is_logged(cluster, topic, 2)
    assert produce(cluster, topic, range(1)) == [len(left)]


def diverge(cluster: Brokers, topic: str) -> None:
    """Stops broker 2 as the only in-sync replica. Broker 3 has the first 100 of 200 messages."""
    make(cluster, topic, [2, 3], 1)
    produce(cluster, topic, range(100))
    cluster.until_in_sync(topic, [2, 3])
    cluster.brokers[3].kill()
    cluster.until_in_sync(topic, [2])
    produce(cluster, topic, range(100, 200))
    cut_power(cluster.brokers[2])
    cluster.brokers[3].start()
    until(lambda: cluster.described(topic).leader < 0, f"{topic} has no leader")


def test_a_partition_waits_for_an_unclean_election_if_its_last_replica_returns_empty(
    cluster: Brokers, topic: str
) -> None:
    diverge(cluster, topic)
    empty(cluster.brokers[2])
    cluster.brokers[2].start()
    with pytest.raises(AssertionError, match="not true within"):
        until(lambda: cluster.described(topic).leader > 0, "it is led", 3)
    elect = ["topic", "elect", topic, "-p", "0", "--unclean", "--yes"]
    assert run([*elect, "--bootstrap-server", cluster.bootstrap]) == 0
    cluster.until_in_sync(topic, [2, 3])
    assert stored(cluster, topic) == list(range(100))
    assert is_logged(cluster, topic, 3)


def test_the_last_in_sync_replica_leads_again_after_a_power_cut(cluster: Brokers, topic: str) -> None:
    diverge(cluster, topic)
    assert not is_logged(cluster, topic, 2)
    cluster.brokers[2].start()
    cluster.until_in_sync(topic, [2, 3])
    assert stored(cluster, topic) == list(range(200))
    assert is_logged(cluster, topic, 2)
