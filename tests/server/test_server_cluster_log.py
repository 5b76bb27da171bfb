"""The log lines of a controller about brokers that stop, fail and return: real processes and ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from cluster_stage import Stage, cluster

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
