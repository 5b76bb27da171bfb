"""The state machine of transactions: each request in each state, failures of appends, and time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transactions_fixture import EXPIRATION_MS, P0, P1, MachineFixture

from record_builders import build_batch
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tidemill.records.batch import parse_batch
from tidemill.transactions.coordinator_effects import ProducerResult
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    FENCED_EPOCH,
    LAST_EPOCH,
    TransactionState,
)
from tidemill.transactions.transaction_state_manager import DEFERRED_MAX

NONE = ErrorCode.NONE
STATES = {
    "Empty": (),
    "Ongoing": ("add",),
    "PrepareCommit": ("add", "commit"),
    "PrepareAbort": ("add", "abort"),
    "CompleteCommit": ("add", "commit", "markers"),
    "CompleteAbort": ("add", "abort", "markers"),
}


def result(producer_id: int, epoch: int) -> ProducerResult:
    return ProducerResult(error=NONE, producer_id=producer_id, epoch=epoch)


def error(code: ErrorCode) -> ProducerResult:
    return ProducerResult(error=code)


def in_state(state: str, version: int) -> tuple[MachineFixture, tuple[int, int]]:
    """A state machine in ``state``, and the producer with the epoch before the last end of a transaction."""
    fixture = MachineFixture(version)
    begun = fixture.init()
    producer = begun.producer_id, begun.epoch
    for step in STATES[state]:
        if step == "add":
            assert fixture.add(producer) is NONE
        elif step == "markers":
            fixture.write_markers()
        else:
            assert fixture.end_transaction(producer, step == "commit").error is NONE
    return fixture, producer


def test_a_new_id_gets_a_producer_id_and_epoch_0() -> None:
    fixture = MachineFixture()
    assert fixture.init() == result(101, 0)
    assert fixture.init("y") == result(102, 0)
    assert fixture.state().state is TransactionState.EMPTY


def test_a_second_producer_gets_the_next_epoch_and_fences_the_first() -> None:
    fixture = MachineFixture()
    fixture.init()
    assert fixture.init() == result(101, 1)
    assert fixture.add((101, 0)) is ErrorCode.PRODUCER_FENCED
    assert fixture.end_transaction((101, 0), True) == error(ErrorCode.PRODUCER_FENCED)
    assert fixture.init(expected=(101, 0)) == error(ErrorCode.PRODUCER_FENCED)


def test_a_producer_goes_on_with_the_next_epoch_and_may_repeat_the_request() -> None:
    fixture = MachineFixture()
    fixture.init()
    assert fixture.init(expected=(101, 0)) == result(101, 1)
    assert fixture.init(expected=(101, 0)) == result(101, 1)
    assert fixture.init(expected=(101, 1)) == result(101, 2)
    assert fixture.init() == result(101, 3)
    assert fixture.init(expected=(101, 2)) == error(ErrorCode.PRODUCER_FENCED)
    assert fixture.init(expected=(7, 3)) == error(ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_exhausted_epoch_gets_another_producer_id(version: int) -> None:
    fixture = MachineFixture(version)
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=LAST_EPOCH)
    assert fixture.init(expected=(101, LAST_EPOCH)) == result(102, 0)
    assert fixture.init(expected=(101, LAST_EPOCH)) == result(102, 0), "a repeated request"
    assert fixture.init(expected=(101, 5)) == error(ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize(("is_commit", "last"), [(True, "CompleteCommit"), (False, "CompleteAbort")])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_ends_after_the_markers(version: int, is_commit: bool, last: str) -> None:
    fixture = MachineFixture(version)
    fixture.init()
    assert fixture.add((101, 0), P0, P1) is NONE
    ended = fixture.end_transaction((101, 0), is_commit)
    assert ended == (result(101, 1) if version == 2 else ProducerResult(error=NONE))
    assert fixture.state().partitions == {P0, P1}
    [sent] = fixture.markers
    assert list(sent.partitions) == [P0, P1]
    assert sent.marker.is_commit is is_commit
    assert sent.marker.producer == (101, 1 if version == 2 else 0)
    fixture.machine.marker_written("x", sent.marker.producer, P0, fixture.now)
    fixture.run()
    assert fixture.state().state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    fixture.machine.marker_written("x", sent.marker.producer, P1, fixture.now)
    fixture.run()
    assert fixture.state().state.name.title().replace("_", "") == last
    assert not fixture.state().partitions
    epoch = 1 if version == 2 else 0
    assert fixture.add((101, epoch)) is NONE
    assert fixture.state().partitions == {P0}


CASES = [
    # state, is_commit, repeated: version 1, version 2
    ("Empty", True, "INVALID_TXN_STATE", "INVALID_TXN_STATE", "PRODUCER_FENCED"),
    ("Empty", False, "INVALID_TXN_STATE", "begins", "PRODUCER_FENCED"),
    ("Ongoing", True, "begins", "begins", "PRODUCER_FENCED"),
    ("Ongoing", False, "begins", "begins", "PRODUCER_FENCED"),
    ("PrepareCommit", True, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
    ("PrepareCommit", False, "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"),
    ("PrepareAbort", True, "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"),
    ("PrepareAbort", False, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
    ("CompleteCommit", True, "done", "INVALID_TXN_STATE", "done"),
    ("CompleteCommit", False, "INVALID_TXN_STATE", "begins", "INVALID_TXN_STATE"),
    ("CompleteAbort", True, "INVALID_TXN_STATE", "INVALID_TXN_STATE", "INVALID_TXN_STATE"),
    ("CompleteAbort", False, "done", "begins", "done"),
]


@pytest.mark.parametrize(("state", "is_commit", "version_1", "version_2", "repeated"), CASES)
def test_end_txn_in_each_state(
    state: str, is_commit: bool, version_1: str, version_2: str, repeated: str
) -> None:
    fixture, producer = in_state(state, 1)
    written = len(fixture.log)
    assert outcome(fixture, fixture.end_transaction(producer, is_commit), written) == version_1
    fixture, _ = in_state(state, 2)
    written, known = len(fixture.log), fixture.state()
    current = known.producer_id, known.producer_epoch
    assert outcome(fixture, fixture.end_transaction(current, is_commit), written) == version_2
    fixture, _ = in_state(state, 2)
    before = known.producer_id, known.producer_epoch - 1
    assert outcome(fixture, fixture.end_transaction(before, is_commit), written) == repeated


def outcome(fixture: MachineFixture, ended: ProducerResult, written: int) -> str:
    if ended.error is not NONE:
        assert len(fixture.log) == written
        return ended.error.name
    return "begins" if len(fixture.log) > written else "done"


@pytest.mark.parametrize("state", list(STATES))
@pytest.mark.parametrize("version", [1, 2])
def test_partitions_in_each_state(state: str, version: int) -> None:
    fixture, _ = in_state(state, version)
    known = fixture.state()
    current = known.producer_id, known.producer_epoch
    busy = state.startswith("Prepare")
    verified = fixture.machine.verify_partitions("x", ProducerIdAndEpoch(*current), [P0, P1])
    if busy:
        assert set(verified.values()) == {ErrorCode.CONCURRENT_TRANSACTIONS}
    else:
        inside = NONE if state == "Ongoing" else ErrorCode.TRANSACTION_ABORTABLE
        assert verified == {P0: inside, P1: ErrorCode.TRANSACTION_ABORTABLE}
    assert fixture.add(current, P1) is (ErrorCode.CONCURRENT_TRANSACTIONS if busy else NONE)
    assert fixture.add((7, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert fixture.add(current, name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_producer_aborts_the_transaction_of_the_former_one(version: int) -> None:
    fixture = MachineFixture(version)
    fixture.init()
    fixture.add((101, 0))
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    [sent] = fixture.markers
    assert not sent.marker.is_commit
    assert sent.marker.producer == (101, 1)
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS), "the markers are not written yet"
    fixture.write_markers()
    assert fixture.init() == result(101, 2)
    assert fixture.end_transaction((101, 0), True) == error(ErrorCode.PRODUCER_FENCED)
    assert fixture.end_transaction((101, 0), False) == error(ErrorCode.PRODUCER_FENCED)
    assert fixture.init(expected=(101, 0)) == error(ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize(("version", "after"), [(1, (102, 0)), (2, (102, 1))])
def test_fencing_the_last_epoch_leaves_another_producer_id(version: int, after: tuple[int, int]) -> None:
    fixture = MachineFixture(version)
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=LAST_EPOCH)
    fixture.add((101, LAST_EPOCH))
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert fixture.markers[0].marker.producer == (101, FENCED_EPOCH)
    fixture.write_markers()
    assert fixture.init() == result(*after)
    assert fixture.end_transaction((101, LAST_EPOCH), False).error is not NONE


GoesOn = Callable[[MachineFixture, tuple[int, int]], ProducerResult]
GOING_ON: list[GoesOn] = [
    lambda fixture, producer: fixture.init(expected=producer),
    lambda fixture, producer: fixture.end_transaction(producer, False),
]


@pytest.mark.parametrize("go_on", GOING_ON, ids=["init", "abort"])
@pytest.mark.parametrize(("epoch", "after"), [(0, (101, 1)), (LAST_EPOCH, (102, 0))])
def test_a_producer_of_version_2_goes_on_after_its_transaction_has_timed_out(
    go_on: GoesOn, epoch: int, after: tuple[int, int]
) -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=epoch)
    fixture.add((101, epoch))
    fixture.now_ms += 100_000
    assert fixture.abort_timed_out() == 1
    fixture.run()
    assert fixture.markers[0].marker.producer == (101, epoch + 1)
    fixture.write_markers()
    assert fixture.end_transaction((101, epoch), True) == error(ErrorCode.INVALID_TXN_STATE)
    assert fixture.add((101, epoch)) is not NONE
    assert go_on(fixture, (101, epoch)) == result(*after)
    assert go_on(fixture, (101, epoch)) == result(*after), "a repeated request"
    assert fixture.add(after) is NONE


def test_an_abort_that_gets_no_producer_id_is_repeated() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=LAST_EPOCH)
    fixture.add((101, LAST_EPOCH))
    fixture.now_ms += 100_000
    fixture.id_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    fixture.abort_timed_out()
    fixture.run()
    assert fixture.state().state is TransactionState.ONGOING
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    fixture.id_error = NONE
    assert fixture.abort_timed_out() == 1
    fixture.run()
    assert fixture.state().state is TransactionState.PREPARE_ABORT


def test_the_last_epoch_of_version_2_ends_with_another_producer_id() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=LAST_EPOCH)
    fixture.add((101, LAST_EPOCH))
    assert fixture.end_transaction((101, LAST_EPOCH), True) == result(102, 0)
    assert fixture.markers[0].marker.producer == (101, FENCED_EPOCH)
    fixture = fixture.restart()
    fixture.write_markers()
    assert fixture.end_transaction((101, LAST_EPOCH), True) == result(102, 0), "a repeated request"
    assert fixture.add((102, 0)) is NONE


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_new_coordinator_writes_the_markers_of_decided_transactions(is_commit: bool) -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.add((101, 0), P0, P1)
    fixture.end_transaction((101, 0), is_commit)
    after = fixture.restart()
    [sent] = after.markers
    assert (list(sent.partitions), sent.marker.is_commit) == ([P0, P1], is_commit)
    after.write_markers()
    assert not after.machine.pending
    assert after.add((101, 1)) is NONE


def test_the_log_is_read_as_it_was_written() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.add((101, 0), P0, P1)
    fixture.end_transaction((101, 0), True)
    fixture.write_markers()
    fixture.init("y")
    after = fixture.restart()
    assert {
        name: one._replace(last_producer_epoch=-1) for name, one in fixture.machine.transactions.items()
    } == (after.machine.transactions)


def test_requests_for_a_pending_id_are_repeated_later() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.held = []
    assert fixture.add((101, 0)) is None
    assert fixture.add((101, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert fixture.end_transaction((101, 0), False) == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert fixture.state().state is TransactionState.EMPTY, "the record is not committed yet"
    [append] = fixture.held
    fixture.end(append)
    assert fixture.state().state is TransactionState.ONGOING


def test_a_request_waits_for_the_end_of_the_one_before() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.is_patient = True
    fixture.add((101, 0))
    fixture.held = []
    assert fixture.end_transaction((101, 0), True) is None
    fixture.held, [append] = None, fixture.held
    fixture.end(append)
    assert fixture.add((101, 1), P1) is None
    assert len(fixture.timers) == 1
    fixture.write_markers()
    assert not fixture.timers
    assert (fixture.state().state, fixture.state().partitions) == (TransactionState.ONGOING, {P1})
    assert [one.error for one in list(fixture.replies.values())[-1:]] == [NONE]


def test_a_new_producer_waits_for_the_abort_of_the_former_transaction() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.is_patient = True
    fixture.add((101, 0))
    assert fixture.init() is None
    fixture.write_markers()
    assert list(fixture.replies.values())[-1] == result(101, 2)


def test_few_requests_for_an_id_wait() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.is_patient = True
    fixture.held = []
    fixture.add((101, 0))
    waiting = [fixture.add((101, 0)) for _ in range(DEFERRED_MAX)]
    assert waiting == [None] * DEFERRED_MAX
    assert fixture.add((101, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    [timer] = fixture.timers
    fixture.fire(timer)
    refused = [one.error for one in fixture.replies.values()]
    assert refused[1:] == [ErrorCode.CONCURRENT_TRANSACTIONS] * (DEFERRED_MAX + 1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_fenced_producer_of_version_2_does_not_repeat_the_end_of_a_later_one(is_commit: bool) -> None:
    fixture = MachineFixture(2)
    fixture.init()
    assert fixture.init() == result(101, 1), "a second producer"
    fixture.version = 1
    assert fixture.add((101, 1)) is NONE
    assert fixture.end_transaction((101, 1), is_commit, version=1).error is NONE
    assert fixture.end_transaction((101, 0), is_commit, version=2) == error(ErrorCode.PRODUCER_FENCED)
    fixture.write_markers()
    assert fixture.end_transaction((101, 0), is_commit, version=2) == error(ErrorCode.PRODUCER_FENCED)


def test_a_failed_append_changes_nothing() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    before = fixture.state()
    assert fixture.add((101, 0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fixture.init("new") == error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert fixture.init() == error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert fixture.state() is before
    assert not fixture.machine.pending
    assert "new" not in fixture.machine.transactions


def test_a_failed_append_refuses_the_requests_that_wait_for_it() -> None:
    """They would append at once, and wait again: without end, while the disk is full."""
    fixture = MachineFixture()
    fixture.init()
    fixture.add((101, 0))
    fixture.is_patient = True
    fixture.held = []
    assert fixture.init() is None, "it waits for the abort of the transaction"
    assert fixture.init() is None
    fixture.error, [append] = ErrorCode.COORDINATOR_NOT_AVAILABLE, fixture.held
    fixture.end(append, fixture.error)
    assert fixture.held == [append], "nothing is appended again"
    assert list(fixture.replies.values())[-2:] == [error(ErrorCode.CONCURRENT_TRANSACTIONS)] * 2
    assert not fixture.timers
    fixture.error, fixture.held, fixture.is_patient = NONE, None, False
    assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    fixture.write_markers()
    assert fixture.init() == result(101, 2)


def test_a_late_append_blocks_its_id_until_it_ends() -> None:
    """Kafka lets other requests begin at the timeout: then a later record may be followed by this one."""
    fixture = MachineFixture()
    fixture.init()
    fixture.add((101, 0))
    fixture.held = []
    assert fixture.end_transaction((101, 0), True) is None
    [append] = fixture.held
    fixture.machine.append_timed_out(append.then, ErrorCode.COORDINATOR_NOT_AVAILABLE, fixture.now)
    fixture.run()
    assert error(ErrorCode.COORDINATOR_NOT_AVAILABLE) in fixture.replies.values()
    assert fixture.end_transaction((101, 0), False) == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    for record in append.records:
        fixture.machine.replay(record, fixture.now)
    fixture.machine.timed_out_append_ended(append.then, NONE, fixture.now)
    fixture.held = None
    fixture.run()
    assert fixture.end_transaction((101, 0), False) == error(ErrorCode.INVALID_TXN_STATE)
    assert fixture.markers[0].marker.is_commit


def test_a_marker_of_another_transaction_does_not_count() -> None:
    fixture = MachineFixture(version=1)
    fixture.init()
    fixture.init()
    fixture.add((101, 1))
    fixture.end_transaction((101, 1), True)
    fixture.machine.marker_written("x", ProducerIdAndEpoch(101, 0), P0, fixture.now)
    fixture.run()
    assert fixture.state().state is TransactionState.PREPARE_COMMIT
    fixture.write_markers()
    assert fixture.state().state is TransactionState.COMPLETE_COMMIT


def test_a_completion_that_fails_is_repeated() -> None:
    fixture = MachineFixture()
    fixture.init()
    fixture.add((101, 0))
    fixture.end_transaction((101, 0), True)
    fixture.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    fixture.write_markers()
    assert fixture.state().state is TransactionState.PREPARE_COMMIT
    [timer] = fixture.timers
    fixture.error = NONE
    fixture.fire(timer)
    assert fixture.state().state is TransactionState.COMPLETE_COMMIT


def test_a_transaction_times_out() -> None:
    fixture = MachineFixture()
    for name, timeout_ms in (("short", 1_000), ("long", 5_000), ("endless", NO_TIMEOUT_MS)):
        begun = fixture.init(name, timeout_ms=timeout_ms)
        fixture.add((begun.producer_id, 0), name=name)
    fixture.now_ms += 1_000
    assert fixture.abort_timed_out() == 0
    assert fixture.machine.oldest_start_ms == fixture.state("short").start_ms
    fixture.now_ms += 1
    assert fixture.abort_timed_out() == 1
    fixture.run()
    assert [sent.marker.transactional_id for sent in fixture.markers] == ["short"]
    assert fixture.end_transaction((101, 0), True, "short") == error(ErrorCode.INVALID_TXN_STATE)
    fixture.now_ms += 10_000_000
    assert fixture.abort_timed_out() == 1


def test_unused_ids_expire() -> None:
    fixture = MachineFixture()
    fixture.init("idle")
    fixture.init("open", timeout_ms=NO_TIMEOUT_MS)
    fixture.add((102, 0), name="open")
    fixture.now_ms += EXPIRATION_MS - 1
    assert fixture.machine.expire(["idle", "open", "unknown"], fixture.now) == 0
    fixture.now_ms += 1
    assert fixture.machine.expire(["idle", "open", "unknown"], fixture.now) == 1
    fixture.run()
    assert list(fixture.machine.transactions) == ["open"]
    assert not fixture.machine.pending
    assert fixture.init("idle") == result(103, 0)


def test_a_closed_shard_refuses_waiting_requests() -> None:
    fixture = MachineFixture()
    fixture.held = []
    fixture.init()
    [append] = fixture.held
    fixture.machine.unload(fixture.now)
    fixture.end(append, ErrorCode.NOT_COORDINATOR)
    assert list(fixture.replies.values()) == [error(ErrorCode.NOT_COORDINATOR)]
    assert not fixture.machine.transactions


def test_no_producer_gets_the_epoch_that_fences() -> None:
    """Apache Kafka 4.0 may have stored it. The marker of its transaction could have no higher one."""
    fixture = MachineFixture()
    fixture.init()
    fixture.machine.transactions["x"] = fixture.state()._replace(
        state=TransactionState.COMPLETE_ABORT, producer_epoch=FENCED_EPOCH, client_version=2
    )
    assert fixture.end_transaction((101, LAST_EPOCH), False) == error(ErrorCode.PRODUCER_FENCED)
    assert fixture.add((101, FENCED_EPOCH)) is ErrorCode.PRODUCER_FENCED
    assert fixture.init() == result(102, 0)


@pytest.mark.parametrize("end", ["timeout", "init", "commit", "decided before the load"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_with_the_epoch_that_fences_ends_with_a_marker_that_leaders_accept(
    end: str, version: int
) -> None:
    """Apache Kafka 4.0 may have left one open. Its marker cannot have a higher epoch."""
    fixture = MachineFixture(version)
    fixture.init()
    state = TransactionState.PREPARE_ABORT if end == "decided before the load" else TransactionState.ONGOING
    open_one = fixture.state()._replace(
        state=state,
        producer_epoch=FENCED_EPOCH,
        partitions=frozenset({P0}),
        start_ms=fixture.now.wall_ms,
        client_version=version,
    )
    fixture.log.append(TransactionRecord("x", open_one))
    fixture = fixture.restart()
    if end == "timeout":
        fixture.now_ms += 100_000
        assert fixture.abort_timed_out() == 1
        fixture.run()
    elif end == "init":
        assert fixture.init() == error(ErrorCode.CONCURRENT_TRANSACTIONS)
    elif end == "commit":
        assert fixture.end_transaction((101, FENCED_EPOCH), True).error is NONE
    [sent] = fixture.markers
    assert sent.marker.producer == (101, FENCED_EPOCH)
    assert sent.marker.is_commit == (end == "commit")
    leader = ProducerStateManager("t-0")
    data = build_batch(
        [(0, b"key", b"value", None)],
        producer_id=101,
        producer_epoch=FENCED_EPOCH,
        base_sequence=0,
        transactional=True,
    )
    leader.apply(parse_batch(data, 0, len(data)), None, 0, 0, 0)
    assert leader.has_transaction(101, FENCED_EPOCH)
    leader.check_marker(*sent.marker.producer, 1, sent.marker.client_version >= EPOCH_BUMP_VERSION)
    fixture.write_markers()
    after = fixture.init()
    assert (after.error, after.producer_id != 101) == (NONE, True)
    assert fixture.add((after.producer_id, after.epoch)) is NONE
