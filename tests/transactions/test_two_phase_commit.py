"""Prepared transactions that another producer takes over and ends (KIP-939)."""

from __future__ import annotations

import pytest
from transactions_fixture import P0, P1, MachineFixture

from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tidemill.transactions.coordinator_effects import ProducerResult
from tidemill.transactions.transaction_metadata import (
    FENCED_EPOCH,
    LAST_EPOCH,
    TransactionState,
)

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED


def prepared() -> MachineFixture:
    """A transaction of producer 101 with epoch 0."""
    fixture = MachineFixture()
    fixture.init(timeout_ms=NO_TIMEOUT_MS)
    assert fixture.add((101, 0), P0) is NONE
    return fixture


def kept(producer_id: int, epoch: int, of: tuple[int, int] = (101, 0)) -> ProducerResult:
    return ProducerResult(error=NONE, producer_id=producer_id, epoch=epoch, kept=ProducerIdAndEpoch(*of))


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("crashes", [1, 3])
def test_the_latest_producer_ends_the_transaction(is_commit: bool, crashes: int) -> None:
    fixture = prepared()
    for number in range(crashes):
        assert fixture.init(timeout_ms=NO_TIMEOUT_MS, keeps=True) == kept(101, number + 1)
        fixture = fixture.restart()
    assert fixture.state().partitions == {P0}
    for older in range(crashes):
        assert fixture.end_transaction((101, older), is_commit).error is FENCED
    ended = fixture.end_transaction((101, crashes), is_commit)
    assert ended == ProducerResult(error=NONE, producer_id=101, epoch=crashes + 1)
    assert fixture.markers[0].marker.producer == (101, 1), "the epoch after that of the transaction"
    fixture = fixture.restart()
    assert fixture.end_transaction((101, crashes), is_commit).error is ErrorCode.CONCURRENT_TRANSACTIONS
    fixture.write_markers()
    assert fixture.end_transaction((101, crashes), is_commit) == ended, "a repeated request"
    assert fixture.add((101, crashes + 1), P1) is NONE


@pytest.mark.parametrize("end", ["commit", "abort", "fence"])
@pytest.mark.parametrize("crashes", [1, 2])
def test_only_the_latest_producer_goes_on_after_the_end(end: str, crashes: int) -> None:
    fixture = prepared()
    for _ in range(crashes):
        fixture.init(timeout_ms=60_000, keeps=True)
    if end == "fence":
        fixture.now_ms += 100_000
        assert fixture.abort_timed_out() == 1
        fixture.run()
    else:
        fixture.end_transaction((101, crashes), end == "commit")
    fixture.write_markers()
    for older in range(crashes):
        assert fixture.init(expected=(101, older)).error is FENCED
        assert fixture.end_transaction((101, older), False).error is FENCED
    latest = ProducerResult(error=NONE, producer_id=101, epoch=crashes + 1)
    assert fixture.init(expected=(101, crashes)) == latest


def test_a_transaction_that_was_taken_over_gets_no_further_partitions() -> None:
    fixture = prepared()
    fixture.init(keeps=True)
    for epoch in (0, 1):
        assert fixture.add((101, epoch), P1) is FENCED
    verified = fixture.machine.verify_partitions("x", ProducerIdAndEpoch(101, 0), [P0])
    assert verified == {P0: FENCED}


def test_a_producer_that_keeps_nothing_aborts_the_transaction() -> None:
    fixture = prepared()
    fixture.init(keeps=True)
    fixture.init(keeps=True)
    assert fixture.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    fixture.write_markers()
    assert fixture.state().state is TransactionState.COMPLETE_ABORT
    begun = fixture.init()
    assert (begun.producer_id, begun.error) == (101, NONE)
    assert begun.epoch > 2, "no producer before it had this epoch"


def test_without_a_transaction_nothing_is_kept() -> None:
    fixture = MachineFixture()
    assert fixture.init(keeps=True) == ProducerResult(error=NONE, producer_id=101, epoch=0)


def test_an_exhausted_epoch_continues_with_another_producer_id() -> None:
    fixture = prepared()
    fixture.machine.transactions["x"] = fixture.state()._replace(producer_epoch=LAST_EPOCH)
    assert fixture.init(keeps=True) == kept(102, 0, (101, LAST_EPOCH))
    assert fixture.init(keeps=True) == kept(102, 1, (101, LAST_EPOCH))
    assert fixture.end_transaction((102, 1), True) == ProducerResult(error=NONE, producer_id=102, epoch=2)
    assert fixture.markers[0].marker.producer == (101, FENCED_EPOCH)
    fixture.write_markers()
    assert fixture.add((102, 2)) is NONE


def test_the_last_epoch_of_the_latest_producer() -> None:
    fixture = prepared()
    fixture.machine.transactions["x"] = fixture.state()._replace(
        next_producer_id=101, next_producer_epoch=LAST_EPOCH
    )
    ended = fixture.end_transaction((101, LAST_EPOCH), True)
    assert ended == ProducerResult(error=NONE, producer_id=102, epoch=0)
    fixture = fixture.restart()
    fixture.write_markers()
    assert fixture.end_transaction((101, LAST_EPOCH), True) == ended, "a repeated request"
    assert fixture.add((102, 0)) is NONE


def test_a_prepared_transaction_has_no_timeout() -> None:
    fixture = prepared()
    fixture.init(timeout_ms=NO_TIMEOUT_MS, keeps=True)
    fixture.now_ms += 10**10
    assert fixture.abort_timed_out() == 0
