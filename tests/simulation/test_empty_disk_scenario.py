"""No broker relies on the former records of a broker that returns with fewer; each mechanism alone ensures
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from empty_disk_scenario import FETCH, NOTHING, WISH, EmptyDiskScenario
from event_log import Violation

from tidemill.broker import alter_partition_manager
from tidemill.controller.alter_partition import ANY_EPOCH, IsrMember
from tidemill.coordination.lost_replicas import NOTHING_LOST
from tidemill.replication.partition import Partition
from tidemill.server import broker_server

SEEDS = (1, 3, 4)
"""Seeds in which the fetch of the former process arrives in time, and the leader requests a larger ISR."""
REFUSED = "the controller refuses the ISR: INELIGIBLE_REPLICA"


def without_epochs() -> Any:
    """A leader requests members regardless of their registrations, as before KIP-903."""

    def members_of(partition: Partition, isr: Sequence[int], own_epoch: int) -> list[IsrMember]:
        return [IsrMember(broker, ANY_EPOCH) for broker in isr]

    return mock.patch.object(alter_partition_manager, "members_of", members_of)


def without_loss_report() -> Any:
    """A broker with an empty disk does not report it in its registration."""
    return mock.patch.object(broker_server, "detect_lost_replicas", return_value=NOTHING_LOST)


def events_of(on_its_way: str, seed: int, *faults: Callable[[], Any]) -> str:
    """Returns the events until all requests in flight were answered. Raises Violation."""
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault())
        scenario = EmptyDiskScenario(seed, on_its_way)
        scenario.run()
    return scenario.events_until_answered


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on_its_way", [WISH, FETCH, NOTHING])
def test_a_broker_with_a_lost_disk_holds_records_after_it_has_caught_up(on_its_way: str, seed: int) -> None:
    scenario = EmptyDiskScenario(seed, on_its_way)
    scenario.run()
    replica = scenario.replica(scenario.follower)
    assert replica is not None
    assert replica.log.end_offset == scenario.led().log.end_offset > 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on_its_way", [WISH, FETCH])
def test_broker_epochs_distinguish_the_former_process(on_its_way: str, seed: int) -> None:
    assert REFUSED in events_of(on_its_way, seed, without_loss_report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("on_its_way", "faults"),
    [
        (WISH, [without_loss_report, without_epochs]),
        (FETCH, [without_loss_report, without_epochs]),
        (NOTHING, [without_loss_report]),
    ],
)
def test_acknowledged_records_are_lost_without_broker_epochs(
    on_its_way: str, faults: list[Callable[[], Any]], seed: int
) -> None:
    with pytest.raises(Violation) as lost:
        events_of(on_its_way, seed, *faults)
    assert "the scenario does not proceed" not in str(lost.value)
