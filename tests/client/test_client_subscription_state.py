"""The state that a consumer, its coordinator, its fetcher and its offset resets share."""

from __future__ import annotations

import re

import pytest

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import CONSUMER
from tidemill.client.subscription_state import SubscriptionState
from tidemill.model.types import TopicPartition
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def state(reset: str = "latest") -> SubscriptionState:
    """A state with two assigned partitions, whose records from offset 5 the user processes."""
    settings = {"bootstrap.servers": "unused:1", "auto.offset.reset": reset}
    found = SubscriptionState(ClientConfig(CONSUMER, settings))
    found.add_partitions([FIRST, SECOND])
    for item in (FIRST, SECOND):
        found.seek(item, 9)
    found.iteration_offsets = {FIRST: 6, SECOND: 7}
    found.returned_offsets = {FIRST: 5, SECOND: 5}
    return found


@pytest.mark.parametrize(("reset", "timestamp"), [("earliest", EARLIEST), ("latest", LATEST), ("none", None)])
def test_the_default_reset_follows_the_configuration(reset: str, timestamp: int | None) -> None:
    assert state(reset).default_reset_timestamp == timestamp


@pytest.mark.parametrize("topics", [{"t"}, set[str]()])
def test_a_subscription_excludes_manually_assigned_partitions(topics: set[str]) -> None:
    subscriptions = state()
    pattern = None if topics else re.compile("t.*")
    assert not subscriptions.is_subscribed
    with pytest.raises(ValueError, match="partitions are assigned"):
        subscriptions.subscribe(topics, pattern, None)
    assert not subscriptions.is_subscribed
    subscriptions.remove_partitions([FIRST, SECOND])
    subscriptions.subscribe(topics, pattern, None)
    subscriptions.add_partitions([FIRST])
    subscriptions.subscribe(topics, pattern, None)
    assert subscriptions.is_subscribed
    subscriptions.unsubscribe()
    assert not subscriptions.is_subscribed


def test_the_consumed_offsets_are_those_of_an_iteration_in_progress() -> None:
    subscriptions = state()
    assert subscriptions.all_consumed() == {FIRST: (6, -1, ""), SECOND: (7, -1, "")}
    assert subscriptions.consumed_offset(FIRST) == 6
    subscriptions.iteration_offsets.clear()
    assert subscriptions.consumed_offset(FIRST) == 9
    subscriptions.request_reset(FIRST, EARLIEST)
    assert subscriptions.consumed_offset(FIRST) is None
    assert subscriptions.all_consumed() == {SECOND: (9, -1, "")}


@pytest.mark.parametrize("change", ["seek", "reset", "remove"])
def test_a_changed_position_ends_the_progress_in_the_returned_records(change: str) -> None:
    subscriptions = state()
    if change == "seek":
        subscriptions.seek(FIRST, 2)
    elif change == "reset":
        subscriptions.request_reset(FIRST, LATEST)
    else:
        subscriptions.remove_partitions([FIRST])
    assert subscriptions.iteration_offsets == {SECOND: 7}
    assert subscriptions.returned_offsets == {SECOND: 5}


def test_a_partition_is_initializing_until_its_position_is_known_or_looked_up() -> None:
    subscriptions = state()
    assert subscriptions.initializing_partitions() == []
    subscriptions.remove_partitions([FIRST])
    subscriptions.add_partitions([FIRST, SECOND])
    assert subscriptions.initializing_partitions() == [FIRST]
    subscriptions.request_reset(FIRST, EARLIEST)
    assert subscriptions.initializing_partitions() == []
    subscriptions.seek(FIRST, 0)
    assert (subscriptions.positions[FIRST].offset, subscriptions.positions[FIRST].reset_timestamp) == (
        0,
        None,
    )
    assert subscriptions.positions[SECOND].offset == 9


def test_a_partition_that_is_not_assigned_has_no_position() -> None:
    subscriptions = state()
    subscriptions.remove_partitions([SECOND])
    subscriptions.record_error(SECOND, "LEADER_NOT_AVAILABLE", "no leader")
    with pytest.raises(ValueError, match=r"t-1 is not assigned to this consumer; assigned are .*'t'"):
        subscriptions.position_of(SECOND)
