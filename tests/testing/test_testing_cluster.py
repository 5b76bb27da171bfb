"""A cluster for tests, and the effects of its faults on real clients. No Java is used."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer
from one_message import outcome_of, stored

from tidemill.client import Admin, Producer
from tidemill.client.errors import ClientError
from tidemill.testing import Broker, BrokerFailed, Cluster
from tidemill.testing.zookeeper import ZooKeeper

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(240)

WAIT_S = 40.0
_numbers = iter(range(10_000))


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """Three brokers, without a Java runtime on the path. Each test starts without faults."""
    cluster = Cluster(3, {"zookeeper.session.timeout.ms": 3000, "replica.lag.time.max.ms": 3000})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", "/nonexistent")
            patch.delenv("JAVA_HOME", raising=False)
            assert shutil.which("java") is None
            cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.mend(90)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with one partition and all replicas in sync."""
    name = f"topic-{next(_numbers)}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(name, 1)
    cluster.wait_in_sync(name)
    return name


def outcome(bootstrap: str, topic: str, value: bytes = b"x", **more: Any) -> str:
    """The delivery result of one message with ``acks=all``: ``stored``, or the name of the error."""
    keys = {key.replace("__", "."): value for key, value in more.items()}
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **keys}
    )
    return outcome_of(producer, topic, value)


def number_of(cluster: Cluster, broker: Broker) -> int:
    return next(number for number, one in cluster.brokers.items() if one is broker)


def in_sync(cluster: Cluster, topic: str, through: Broker) -> list[int]:
    with Admin(through.bootstrap) as admin:
        return sorted(admin.describe_topic(topic).partitions[0].isr)


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except ClientError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not true in time: {what}")


def test_a_cluster_replicates_without_java(cluster: Cluster, topic: str) -> None:
    assert len(cluster) == 3
    assert outcome(cluster.bootstrap, topic, b"one") == "stored"
    assert in_sync(cluster, topic, cluster[1]) == [1, 2, 3]
    assert cluster.leader(topic) not in cluster.followers(topic)
    assert len(cluster.followers(topic)) == 2
    assert stored(cluster.bootstrap, topic) == [b"one"]


def test_another_broker_leads_after_a_kill_and_the_killed_broker_follows_again(
    cluster: Cluster, topic: str
) -> None:
    assert outcome(cluster.bootstrap, topic, b"before") == "stored"
    leader = cluster.leader(topic)
    leader.kill()
    assert cluster.leader(topic) is not leader
    assert outcome(cluster.bootstrap, topic, b"meanwhile") == "stored"
    leader.start()
    cluster.wait_in_sync(topic)
    assert stored(cluster.bootstrap, topic) == [b"before", b"meanwhile"]


def test_another_broker_leads_when_the_leader_is_paused_beyond_its_session_timeout(
    cluster: Cluster, topic: str
) -> None:
    leader = cluster.leader(topic)
    leader.pause()
    until(lambda: cluster.leader(topic) is not leader, "another leads")
    assert outcome(cluster.bootstrap, topic, b"meanwhile") == "stored"
    leader.resume()
    cluster.wait_in_sync(topic, WAIT_S)
    assert stored(cluster.bootstrap, topic) == [b"meanwhile"]


def test_a_follower_that_is_cut_off_from_the_leader_leaves_the_isr(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        controller = admin.describe_cluster().controller_id
    leader = cluster.leader(topic)
    followers = [number_of(cluster, one) for one in cluster.followers(topic)]
    # A leader that does not reach the controller cannot remove a replica from the ISR.
    ends = number_of(cluster, leader), next(one for one in followers if one != controller)
    cluster.cut(*ends)
    with Producer(cluster.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
        producer.send(topic, b"x").result(60)
    others = sorted({1, 2, 3} - {ends[1]})
    until(lambda: in_sync(cluster, topic, leader) == others, "it is out of sync")
    cluster.heal(*ends)
    cluster.wait_in_sync(topic, WAIT_S)
    assert stored(cluster.bootstrap, topic) == [b"x"]


def test_an_isolated_leader_is_replaced_and_acknowledges_nothing(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    number = number_of(cluster, leader)
    cluster.isolate(number)
    refused = outcome(
        leader.bootstrap, topic, b"alone", delivery__timeout__ms=2500, request__timeout__ms=1000
    )
    others = ",".join(one.bootstrap for one in cluster if one is not leader)

    def another_leads() -> bool:
        with Admin(others) as admin:
            return admin.describe_topic(topic).partitions[0].leader not in (number, -1)

    until(another_leads, "another leads")
    assert outcome(others, topic, b"majority") == "stored"
    cluster.heal()
    cluster.wait_in_sync(topic, WAIT_S)
    found = stored(cluster.bootstrap, topic)
    assert b"majority" in found
    # The client may have found the new leader in time; its result must match the log.
    assert (refused == "stored") <= (b"alone" in found)


@pytest.mark.parametrize("how", ["silent", "reset"])
def test_a_broker_without_the_store_reports_that_and_serves_its_clients(
    cluster: Cluster, topic: str, how: str
) -> None:
    victim = number_of(cluster, cluster.followers(topic)[0])
    with Admin(cluster.bootstrap) as admin:
        assert admin.brokers_without_store() == {}
        cluster.cut(victim, "store", how)
        until(lambda: list(admin.brokers_without_store()) == [victim], "the broker reports its lost store")
        assert outcome(cluster.bootstrap, topic) == "stored"
        cluster.heal(victim, "store")
        until(lambda: admin.brokers_without_store() == {}, "the store is connected again")


def test_produce_continues_without_the_store_and_topics_cannot_be_created(
    cluster: Cluster, topic: str
) -> None:
    assert cluster.store is not None
    cluster.store.kill()
    assert outcome(cluster.bootstrap, topic) == "stored"
    with Admin(cluster.bootstrap) as admin:
        with pytest.raises(ClientError):
            admin.create_topic(f"{topic}-more", timeout=3.0)
        cluster.store.start()
        until(lambda: admin.brokers_without_store() == {}, "the store is connected again")
        until(lambda: f"{topic}-more" in _names(admin, f"{topic}-more"), "topics can be made")


def _names(admin: Admin, wanted: str) -> list[str]:
    names = [one.name for one in admin.list_topics()]
    if wanted not in names:
        admin.create_topic(wanted, timeout=5.0)
    return [one.name for one in admin.list_topics()]


def test_brokers_register_again_after_their_sessions_have_expired(cluster: Cluster, topic: str) -> None:
    assert cluster.store is not None
    before = _registrations(cluster)
    ended = cluster.store.expire()
    assert len(ended) == 3
    until(
        lambda: all(now > once for now, once in zip(_registrations(cluster), before, strict=True)),
        "all brokers register",
    )
    cluster.wait_in_sync(topic, WAIT_S)
    assert outcome(cluster.bootstrap, topic) == "stored"


def _registrations(cluster: Cluster) -> list[int]:
    """The number of registrations of each broker after the first."""
    return [broker.log.count("registered again") for broker in cluster]


def test_any_broker_returns_an_injected_error(cluster: Cluster, topic: str) -> None:
    with cluster.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", 2) as injected:
        assert outcome(cluster.bootstrap, topic) == "stored"
        assert injected.left == 0
    leader = cluster.leader(topic)
    other = cluster.followers(topic)[0]
    with other.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER") as injected:
        assert outcome(cluster.bootstrap, topic) == "stored"
        assert injected.left == 1  # No client produces to a follower.
    with leader.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER") as injected:
        assert outcome(cluster.bootstrap, topic) == "stored"
        assert injected.left == 0


def test_a_follower_with_a_full_disk_leaves_the_isr(cluster: Cluster, topic: str) -> None:
    follower = cluster.followers(topic)[0]
    number = number_of(cluster, follower)
    follower.disk.fill()
    with Producer(cluster.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
        producer.send(topic, b"x").result(60)
    until(lambda: number not in in_sync(cluster, topic, cluster.leader(topic)), "it is out of sync")
    follower.disk.free()
    cluster.wait_in_sync(topic, WAIT_S)


def test_a_client_that_is_cut_off_from_the_leader_waits(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    cluster.cut("clients", number_of(cluster, leader))
    said = outcome(cluster.bootstrap, topic, delivery__timeout__ms=2500, request__timeout__ms=1000)
    assert said == "_MSG_TIMED_OUT"
    # The brokers are connected, so that the leader stays the same.
    others = ",".join(one.bootstrap for one in cluster if one is not leader)
    with Admin(others) as admin:
        assert admin.describe_topic(topic).partitions[0].leader == number_of(cluster, leader)
    cluster.heal()
    assert outcome(cluster.bootstrap, topic) == "stored"


def test_rejects_unknown_ends_of_links(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="4 has no links: name a broker"):
        cluster.cut(1, 4)
    with pytest.raises(ValueError, match="no link between 'clients' and 'store'"):
        cluster.cut("clients", "store")
    with pytest.raises(ValueError, match="name both"):
        cluster.heal(1)
    with pytest.raises(KeyError, match="there is no broker 7"):
        cluster[7]
    with pytest.raises(ValueError, match="brokers=0"):
        Cluster(0)


def test_a_cluster_without_kazoo_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BrokerFailed, match=r"pip install 'tidemill\[testing\]'"):
        Cluster()


def test_a_cluster_can_use_a_given_zookeeper(zookeeper_server: ZooKeeper) -> None:
    with Cluster(2, zookeeper=f"{zookeeper_server.address}/test-of-ones-own") as cluster:
        assert cluster.store is None
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", 1)
        assert outcome(cluster.bootstrap, "t") == "stored"
        cluster.cut(1, "store", "reset")
        with Admin(cluster.bootstrap) as admin:
            until(lambda: list(admin.brokers_without_store()) == [1], "the broker reports its lost store")


def test_close_removes_all_processes_and_files_of_a_cluster() -> None:
    with Cluster(2) as cluster:
        assert cluster.store is not None
        pids = [*(broker.pid for broker in cluster), cluster.store.pid, cluster.network._child.pid]
        directories = [cluster._directory, cluster.store.directory, cluster.network._directory]
        cluster[1].pause()
        cluster.store.pause()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not any(os.path.exists(path) for path in directories)


@pytest.mark.slow
def test_the_examples_of_the_readme_pass(pytester: pytest.Pytester) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = [block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "def test_" in block]
    assert len(shown) == 2
    pytester.makepyfile(**{f"test_shown_{number}": block for number, block in enumerate(shown)})
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=2)


def test_the_tables_of_the_readme_have_a_header() -> None:
    before = ""
    for line in (Path(__file__).parents[2] / "README.md").read_text().splitlines():
        if line.startswith("|") and not before.startswith("|"):
            table = [line]
        elif line.startswith("|"):
            table.append(line)
        elif before.startswith("|"):
            assert len(table) > 2, table
            assert set(table[1]) <= set("|- :"), table[:2]
        before = line


def test_the_fixtures_work_in_a_users_suite(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def tidemill_cluster_size():
            return 2

        @pytest.fixture(scope="session")
        def tidemill_cluster_config():
            return {"num.partitions": 2}
        """
    )
    pytester.makepyfile(
        """
        from tidemill.client import Admin, Producer

        seen = []

        def test_own_cluster(tidemill_cluster):
            with Admin(tidemill_cluster.bootstrap) as admin:
                assert admin.create_topic("x").partitions == 2

        def test_shared_one(tidemill_session_cluster):
            seen.append(tidemill_session_cluster.bootstrap)
            with Admin(tidemill_session_cluster.bootstrap) as admin:
                admin.create_topic("x", 1)
            tidemill_session_cluster.leader("x").kill()

        def test_shared_one_again(tidemill_session_cluster):
            assert [tidemill_session_cluster.bootstrap] == seen
            assert all(broker.running for broker in tidemill_session_cluster)
            with Producer(tidemill_session_cluster.bootstrap) as producer:
                producer.send("x", b"x").result(10)

        def test_faulty_broker(tidemill_faulty_broker):
            with tidemill_faulty_broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER") as injected:
                with Producer(tidemill_faulty_broker.bootstrap) as producer:
                    producer.send("x", b"x").result(10)
                injected.wait(1)
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=4)


@pytest.mark.slow
def test_the_examples_of_the_page_on_testing_pass(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    for number, example in enumerate(examples):
        pytester.makepyfile(**{f"test_example_{number}": example})
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=4)
