"""The log lines of a controller about brokers that stop, fail and return: real processes and ZooKeeper."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator

import pytest
from cluster_stage import Stage, cluster, cut_power, produce, stored, until

from tidemill.client import Admin, ClientError
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

_numbers = itertools.count()


@pytest.fixture
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers."""
    address = f"{zookeeper_server.address}/test-cluster-log-{next(_numbers)}"
    with cluster(address, zookeeper__session__timeout__ms="3000", min__insync__replicas="1") as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


def controller_of(stage: Stage) -> int:
    """The id of the controller."""
    living = [number for number, broker in stage.brokers.items() if broker.running]
    with stage.admin(*living) as admin:
        return admin.describe_cluster().controller_id


def living(stage: Stage, number: int) -> set[int]:
    """The brokers that live, as one of them says."""
    with stage.admin(number) as admin:
        return {one.broker_id for one in admin.describe_cluster().brokers}


def lines_of(stage: Stage, number: int, *texts: str) -> list[str]:
    """The lines of a broker's log that have all of these texts."""
    return [line for line in stage.brokers[number].log.splitlines() if all(text in line for text in texts)]


def test_brokers_that_are_stopped_and_started_in_turn_leave_no_warning_on_the_controller(
    stage: Stage,
) -> None:
    with stage.admin() as admin:
        admin.create_topic("t", 6, 3)
    controller = controller_of(stage)
    others = [number for number in stage.brokers if number != controller]
    for number in others * 3:
        stage.brokers[number].stop()
        stage.brokers[number].start()
    assert lines_of(stage, controller, " WARNING ") == []


def test_each_line_about_brokers_names_one_that_registered_or_is_gone(stage: Stage) -> None:
    controller = controller_of(stage)
    other = next(number for number in stage.brokers if number != controller)
    cut_power(stage.brokers[other])  # Its registration names lost replicas, and is renewed without them.
    until(lambda: living(stage, controller) == {1, 2, 3} - {other}, "the broker is gone")
    stage.brokers[other].start()
    until(lambda: living(stage, controller) == {1, 2, 3}, "the broker is registered")
    time.sleep(1.0)  # Until it has renewed its registration.
    assert lines_of(stage, controller, ": [], that went: []") == [], "the former text"
    assert lines_of(stage, controller, "brokers registered: [], brokers gone: []") == []
    assert lines_of(stage, controller, f"brokers gone: [{other}]; live brokers: ")
    text = f"brokers registered: [{other}], brokers gone: []; live brokers: [1, 2, 3]"
    assert lines_of(stage, controller, text)


def test_a_new_controller_logs_that_the_former_one_is_gone(stage: Stage) -> None:
    former = controller_of(stage)
    others = [number for number in stage.brokers if number != former]
    os.kill(stage.brokers[former].pid, signal.SIGSTOP)
    try:
        text = f"brokers registered: [], brokers gone: [{former}]; live brokers: {others}"
        until(lambda: any(lines_of(stage, number, text) for number in others), text)
    finally:
        os.kill(stage.brokers[former].pid, signal.SIGCONT)


def test_partitions_that_a_dead_broker_leaves_without_a_leader_are_one_line_until_it_returns(
    stage: Stage,
) -> None:
    controller = controller_of(stage)
    other = next(number for number in stage.brokers if number != controller)
    with stage.admin() as admin:
        admin.create_topic("t", assignments={number: [other] for number in range(6)})
    stage.brokers[other].kill()
    text = "6 partitions have no leader, as no eligible replica is available: t-0, t-1, t-2 and 3 more"
    until(lambda: lines_of(stage, controller, text), "the controller tells of them")
    stage.brokers[other].start()
    again = "6 partitions have a leader again: t-0, t-1, t-2 and 3 more"
    until(lambda: lines_of(stage, controller, again), "they have a leader")
    assert len(lines_of(stage, controller, " WARNING ", text, f"waiting for brokers [{other}]")) == 1
    assert len(lines_of(stage, controller, " have no leader")) == 1
    assert len(lines_of(stage, controller, " a leader again")) == 1


def test_a_cluster_that_is_stopped_and_started_leaves_no_warning_of_partitions_without_a_leader(
    stage: Stage,
) -> None:
    controller = controller_of(stage)
    with stage.admin() as admin:
        admin.create_topic("t", assignments={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    order = sorted(stage.brokers, key=lambda number: number == controller)
    for number in order:
        stage.brokers[number].stop()
    before = {number: len(stage.brokers[number].log) for number in order}
    for number in order:
        stage.brokers[number].start()
    with stage.admin() as admin:
        until(
            lambda: all(one.leader > 0 for one in admin.describe_topic("t").partitions), "they have leaders"
        )
    for number in order:
        log = stage.brokers[number].log[before[number] :]
        assert " WARNING " not in log, log


def is_unregistered(admin: Admin, broker: int) -> bool:
    """Unregisters a broker; False while its registration is there."""
    try:
        admin.unregister_broker(broker)
    except ClientError as refused:
        if refused.code != ErrorCode.INVALID_REQUEST:
            raise
        return False
    return True


def test_the_name_of_a_topic_deleted_while_a_broker_was_down_is_free_once_that_is_unregistered(
    stage: Stage,
) -> None:
    controller = controller_of(stage)
    dead = next(number for number in stage.brokers if number != controller)
    with stage.admin() as admin:
        admin.create_topic("gone", assignments={0: [dead, controller]})
        produce(stage, "gone", range(100))
        with pytest.raises(ClientError, match=f"broker {dead} is live"):
            admin.unregister_broker(dead)
    stage.brokers[dead].kill()
    until(lambda: dead not in living(stage, controller), "the broker is gone")
    with stage.admin(*({1, 2, 3} - {dead})) as admin:
        admin.delete_topic("gone")
        with pytest.raises(ClientError) as refused:
            admin.create_topic("gone", assignments={0: [controller]})
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (
            f"is still being deleted, which waits for brokers [{dead}]: start them, or run "
            f"'tidemill broker unregister {dead}' for a broker that will not return)"
        ) in str(refused.value)
        assert "use the topic that is there" not in str(refused.value)
        assert len(lines_of(stage, controller, f"deletion of topics gone waits for brokers [{dead}]")) == 1
        until(lambda: is_unregistered(admin, dead), "the session of the broker has ended")
        admin.create_topic("gone", assignments={0: [controller]})
        assert produce(stage, "gone", range(1000, 1003)) == [0, 1, 2]
        stage.brokers[dead].start()  # All the same, with the log of the deleted topic.
        until(lambda: dead in living(stage, controller), "the broker is back")
        admin.alter_reassignments({TopicPartition("gone", 0): [dead]})
    stage.until_in_sync("gone", [dead])
    assert stored(stage, "gone") == [1000, 1001, 1002]
