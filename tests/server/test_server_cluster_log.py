"""The controller's log lines about brokers that stop, fail and return, with broker processes."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator

import pytest
from broker_cluster import Brokers, cut_power, produce, start_cluster, stored, until

from tidemill.client import Admin, ClientError
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

_numbers = itertools.count()


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers."""
    address = f"{zookeeper_server.address}/test-cluster-log-{next(_numbers)}"
    with start_cluster(address, zookeeper__session__timeout__ms="3000", min__insync__replicas="1") as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


def controller_of(cluster: Brokers) -> int:
    """The id of the active controller."""
    living = [number for number, broker in cluster.brokers.items() if broker.running]
    with cluster.admin(*living) as admin:
        return admin.describe_cluster().controller_id


def living(cluster: Brokers, number: int) -> set[int]:
    """The registered brokers, from broker ``number``."""
    with cluster.admin(number) as admin:
        return {one.broker_id for one in admin.describe_cluster().brokers}


def lines_of(cluster: Brokers, number: int, *texts: str) -> list[str]:
    """The lines of a broker's log that contain all ``texts``."""
    return [line for line in cluster.brokers[number].log.splitlines() if all(text in line for text in texts)]


def test_a_rolling_restart_causes_no_warnings_of_the_controller(
    cluster: Brokers,
) -> None:
    with cluster.admin() as admin:
        admin.create_topic("t", 6, 3)
    controller = controller_of(cluster)
    others = [number for number in cluster.brokers if number != controller]
    for number in others * 3:
        cluster.brokers[number].stop()
        cluster.brokers[number].start()
    assert lines_of(cluster, controller, " WARNING ") == []


def test_each_log_line_names_a_broker_that_registered_or_is_gone(cluster: Brokers) -> None:
    controller = controller_of(cluster)
    other = next(number for number in cluster.brokers if number != controller)
    cut_power(cluster.brokers[other])  # Its registration contains lost replicas, and is updated without them.
    until(lambda: living(cluster, controller) == {1, 2, 3} - {other}, "the broker is gone")
    cluster.brokers[other].start()
    until(lambda: living(cluster, controller) == {1, 2, 3}, "the broker is registered")
    time.sleep(1.0)  # Waits for the update of the registration.
    assert lines_of(cluster, controller, ": [], that went: []") == [], "the former text"
    assert lines_of(cluster, controller, "brokers registered: [], brokers gone: []") == []
    assert lines_of(cluster, controller, f"brokers gone: [{other}]; live brokers: ")
    text = f"brokers registered: [{other}], brokers gone: []; live brokers: [1, 2, 3]"
    assert lines_of(cluster, controller, text)


def test_a_new_controller_logs_that_the_former_controller_is_gone(cluster: Brokers) -> None:
    former = controller_of(cluster)
    others = [number for number in cluster.brokers if number != former]
    os.kill(cluster.brokers[former].pid, signal.SIGSTOP)
    try:
        text = f"brokers registered: [], brokers gone: [{former}]; live brokers: {others}"
        until(lambda: any(lines_of(cluster, number, text) for number in others), text)
    finally:
        os.kill(cluster.brokers[former].pid, signal.SIGCONT)


def test_partitions_without_a_leader_are_one_log_line_until_the_broker_returns(
    cluster: Brokers,
) -> None:
    controller = controller_of(cluster)
    other = next(number for number in cluster.brokers if number != controller)
    with cluster.admin() as admin:
        admin.create_topic("t", assignments={number: [other] for number in range(6)})
    cluster.brokers[other].kill()
    text = "6 partitions have no leader, as no eligible replica is available: t-0, t-1, t-2 and 3 more"
    until(lambda: lines_of(cluster, controller, text), "the controller tells of them")
    cluster.brokers[other].start()
    again = "6 partitions have a leader again: t-0, t-1, t-2 and 3 more"
    until(lambda: lines_of(cluster, controller, again), "they have a leader")
    assert len(lines_of(cluster, controller, " WARNING ", text, f"waiting for brokers [{other}]")) == 1
    assert len(lines_of(cluster, controller, " have no leader")) == 1
    assert len(lines_of(cluster, controller, " a leader again")) == 1


def test_a_restart_of_the_cluster_logs_no_partitions_without_a_leader(
    cluster: Brokers,
) -> None:
    controller = controller_of(cluster)
    with cluster.admin() as admin:
        admin.create_topic("t", assignments={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    order = sorted(cluster.brokers, key=lambda number: number == controller)
    for number in order:
        cluster.brokers[number].stop()
    before = {number: len(cluster.brokers[number].log) for number in order}
    for number in order:
        cluster.brokers[number].start()
    with cluster.admin() as admin:
        until(
            lambda: all(one.leader > 0 for one in admin.describe_topic("t").partitions), "they have leaders"
        )
    for number in order:
        log = cluster.brokers[number].log[before[number] :]
        assert " WARNING " not in log, log


def is_unregistered(admin: Admin, broker: int) -> bool:
    """Unregisters a broker. Returns False while it is still registered."""
    try:
        admin.unregister_broker(broker)
    except ClientError as refused:
        if refused.code != ErrorCode.INVALID_REQUEST:
            raise
        return False
    return True


def test_a_deleted_topic_can_be_created_again_after_an_offline_broker_is_unregistered(
    cluster: Brokers,
) -> None:
    controller = controller_of(cluster)
    dead = next(number for number in cluster.brokers if number != controller)
    with cluster.admin() as admin:
        admin.create_topic("gone", assignments={0: [dead, controller]})
        produce(cluster, "gone", range(100))
        with pytest.raises(ClientError, match=f"broker {dead} is live"):
            admin.unregister_broker(dead)
    cluster.brokers[dead].kill()
    until(lambda: dead not in living(cluster, controller), "the broker is gone")
    with cluster.admin(*({1, 2, 3} - {dead})) as admin:
        admin.delete_topic("gone")
        with pytest.raises(ClientError) as refused:
            admin.create_topic("gone", assignments={0: [controller]})
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (
            f"is still being deleted, which waits for brokers [{dead}]: start them, or run "
            f"'tidemill broker unregister {dead}' for a broker that will not return)"
        ) in str(refused.value)
        assert "use the existing topic" not in str(refused.value)
        assert len(lines_of(cluster, controller, f"deletion of topics gone waits for brokers [{dead}]")) == 1
        until(lambda: is_unregistered(admin, dead), "the session of the broker has ended")
        admin.create_topic("gone", assignments={0: [controller]})
        assert produce(cluster, "gone", range(1000, 1003)) == [0, 1, 2]
        cluster.brokers[dead].start()  # It starts again, with the log of the deleted topic.
        until(lambda: dead in living(cluster, controller), "the broker is back")
        admin.alter_reassignments({TopicPartition("gone", 0): [dead]})
    cluster.until_in_sync("gone", [dead])
    assert stored(cluster, "gone") == [1000, 1001, 1002]
