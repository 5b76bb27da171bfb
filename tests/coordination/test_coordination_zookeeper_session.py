"""The states of a session with ZooKeeper."""

from __future__ import annotations

import pytest

from tidemill.coordination.coordination_store import SessionState
from tidemill.coordination.zookeeper_session import CLOSE, CONNECT, EXPIRE, LOSE, RESUME, TRANSITIONS, Session


def test_the_table_has_a_row_for_each_state_and_a_column_for_each_event() -> None:
    assert len(TRANSITIONS.rows) == len(TRANSITIONS.states)
    assert {len(row) for row in TRANSITIONS.rows} == {len(TRANSITIONS.events)}


@pytest.mark.parametrize(
    ("events", "reported"),
    [
        ([CONNECT], None),
        ([CONNECT, LOSE], None),
        ([CONNECT, EXPIRE, CONNECT], None),
        ([CONNECT, RESUME], SessionState.CONNECTED),
        ([CONNECT, RESUME, LOSE], SessionState.SUSPENDED),
        ([CONNECT, RESUME, LOSE, CONNECT], SessionState.SUSPENDED),
        ([CONNECT, RESUME, LOSE, CONNECT, RESUME], SessionState.CONNECTED),
        ([CONNECT, RESUME, LOSE, EXPIRE], SessionState.EXPIRED),
        ([CONNECT, RESUME, LOSE, EXPIRE, CONNECT], SessionState.EXPIRED),
        ([CONNECT, RESUME, EXPIRE, CONNECT, LOSE], SessionState.EXPIRED),
        ([CONNECT, RESUME, EXPIRE, CONNECT, RESUME], SessionState.CONNECTED),
        ([CONNECT, RESUME, CLOSE], None),
    ],
)
def test_listeners_learn_the_state_that_matters_to_them(
    events: list[int], reported: SessionState | None
) -> None:
    session = Session()
    for event in events:
        session.handle(event)

    assert session.reported_state is reported
    assert session.is_usable == (reported is SessionState.CONNECTED)


@pytest.mark.parametrize("events", [[RESUME], [CONNECT, CONNECT], [CONNECT, LOSE, RESUME], [CLOSE, CONNECT]])
def test_refuses_events_that_cannot_follow(events: list[int]) -> None:
    session = Session()
    for event in events[:-1]:
        session.handle(event)

    with pytest.raises(RuntimeError, match="ZooKeeper session state"):
        session.handle(events[-1])
