"""The states of a transactional producer change as the table allows, and in one place."""

from __future__ import annotations

import pytest

from tidemill.client.config import PRODUCER, ClientConfig
from tidemill.client.errors import (
    AbortableTransactionError,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
)
from tidemill.client.network_client import NetworkClient
from tidemill.client.transaction_manager import FOLLOWING, State, TransactionManager
from tidemill.model.errors import ErrorCode

PATHS: dict[State, list[State]] = {
    State.UNINITIALIZED: [],
    State.INITIALIZING: [State.INITIALIZING],
    State.READY: [State.INITIALIZING, State.READY],
    State.IN_TRANSACTION: [State.INITIALIZING, State.READY, State.IN_TRANSACTION],
    State.PREPARED_TRANSACTION: [State.INITIALIZING, State.PREPARED_TRANSACTION],
    State.COMMITTING_TRANSACTION: [
        State.INITIALIZING,
        State.PREPARED_TRANSACTION,
        State.COMMITTING_TRANSACTION,
    ],
    State.ABORTING_TRANSACTION: [
        State.INITIALIZING,
        State.PREPARED_TRANSACTION,
        State.ABORTING_TRANSACTION,
    ],
    State.ABORTABLE_ERROR: [State.INITIALIZING, State.ABORTABLE_ERROR],
    State.FATAL_ERROR: [State.FATAL_ERROR],
}
"""How a new producer comes to each state."""


def manager(state: State = State.UNINITIALIZED) -> TransactionManager:
    config = ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})
    found = TransactionManager(NetworkClient(config), "id", 1000, has_two_phase_commit=True)
    for following in PATHS[state]:
        found._change_state(following)
    assert found.state is state
    return found


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("following", State)
def test_a_change_is_in_the_table_or_names_both_states(state: State, following: State) -> None:
    found = manager(state)
    if following in FOLLOWING[state] or following is State.FATAL_ERROR:
        found._change_state(following)
        assert found.state is following
        return
    text = f"producer state {state.name} cannot handle the change to {following.name}$"
    with pytest.raises(RuntimeError, match=text):
        found._change_state(following)
    assert found.state is state


def test_nothing_follows_a_fatal_error() -> None:
    found = manager(State.IN_TRANSACTION)
    found._failed(ClientError("fenced", ErrorCode.PRODUCER_FENCED))
    later = found._failed(ClientError("later", ErrorCode.TRANSACTION_ABORTABLE))
    assert isinstance(later, AbortableTransactionError)
    assert found.state is State.FATAL_ERROR
    with pytest.raises(ProducerFenced):
        found.check_usable()


def test_a_failed_initialization_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manager()

    def fail(deadline: float, *, keeps_prepared: bool) -> None:
        assert found.state is State.INITIALIZING
        raise RequestTimeout("no answer")

    monkeypatch.setattr(found, "_init_producer_id", fail)
    for call in (lambda: found.begin(0), lambda: found.complete(None, 0)):
        with pytest.raises(RequestTimeout):
            call()
        assert found.state is State.UNINITIALIZED
    monkeypatch.setattr(found, "_init_producer_id", lambda deadline, *, keeps_prepared: None)
    found.begin(0)
    assert found.state is State.IN_TRANSACTION


def test_a_fatal_error_of_the_initialization_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manager()

    def fail(deadline: float, *, keeps_prepared: bool) -> None:
        raise found._failed(ClientError("refused", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    monkeypatch.setattr(found, "_init_producer_id", fail)
    with pytest.raises(FatalTransactionError):
        found.begin(0)
    assert found.state is State.FATAL_ERROR


def test_calls_while_another_thread_begins_are_refused() -> None:
    found = manager(State.INITIALIZING)
    for call in (lambda: found.begin(0), lambda: found.complete(None, 0), found.prepare, found.check_open):
        with pytest.raises(ClientError, match="another thread begins"):
            call()
    assert found.state is State.INITIALIZING
