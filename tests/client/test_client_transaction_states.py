"""The states of a transactional producer change as the table allows, and in one place."""

from __future__ import annotations

import time

import pytest

from tidemill.client.config import PRODUCER, ClientConfig
from tidemill.client.errors import (
    AbortableTransactionError,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
    error_for,
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


REFUSAL = "t-0 is not part of an open transaction of this producer (INVALID_PRODUCER_EPOCH)"


def refused_batch_error(open_s: float) -> str:
    """Returns the error of a transaction, open for ``open_s``, whose message was refused for its epoch."""
    found = manager(State.IN_TRANSACTION)
    found._has_two_phase_commit = False
    found._began_s = time.monotonic() - open_s
    found.batch_failed(error_for(ErrorCode.INVALID_PRODUCER_EPOCH, "produce to t-0", detail=REFUSAL))
    with pytest.raises(AbortableTransactionError) as caught:
        found.check_open()
    return str(caught.value)


def test_the_first_message_of_a_fenced_producer_names_the_other_one() -> None:
    told = refused_batch_error(0)
    assert told.count("INVALID_PRODUCER_EPOCH") == 1
    assert "another producer with transactional id 'id' has begun, or an administrator" in told
    assert told.endswith("; abort the transaction")


def test_a_message_after_the_timeout_names_it() -> None:
    told = refused_batch_error(2)
    assert "another producer with transactional id 'id' has begun" in told
    assert "open for longer than transaction.timeout.ms=1000" in told


@pytest.mark.parametrize("is_message", [True, False])
def test_a_transactional_id_without_a_producer_id_has_expired(is_message: bool) -> None:
    found = manager(State.IN_TRANSACTION)
    error = error_for(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "commit the transaction")
    if is_message:
        found.batch_failed(error)
    else:
        found._failed(error)
    with pytest.raises(AbortableTransactionError, match=r"has expired.*transactional\.id\.expiration\.ms"):
        found.check_open()
