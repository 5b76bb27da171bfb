"""The effects that a coordinator performs itself."""

from __future__ import annotations

from typing import Any

import pytest
from test_transaction_coordinator import Allocation, FixedLog, OnePartition, coordinator_of

from tidemill.coordinator_runtime.coordinator_shard import CoordinatorInvariantError
from tidemill.groups.coordinator_effects import GroupState, StateChanged
from tidemill.groups.group_coordinator import GroupCoordinator
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.model.clock import SystemClock
from tidemill.transactions.coordinator_effects import TransactionEnded

STATE_CHANGED = StateChanged(
    group_id="g",
    before=GroupState.EMPTY,
    after=GroupState.PREPARING_REBALANCE,
    generation=0,
    members=0,
    reason="a test",
)


async def test_a_coordinator_refuses_the_effects_of_another_one() -> None:
    transactions: Any = coordinator_of(Allocation(), FixedLog())
    config = GroupCoordinatorConfig(unpacked_bytes_max=1)
    groups: Any = GroupCoordinator(
        offsets_log=FixedLog(), topic=OnePartition(), config=config, clock=SystemClock()
    )
    ended = TransactionEnded(transactional_id="x", is_commit=True)
    transactions.perform(None, ended)
    groups.perform(None, STATE_CHANGED)
    with pytest.raises(CoordinatorInvariantError):
        transactions.perform(None, STATE_CHANGED)
    with pytest.raises(CoordinatorInvariantError):
        groups.perform(None, ended)
    assert (transactions.commits, transactions.aborts) == (1, 0)
