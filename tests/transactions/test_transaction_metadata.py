"""The transitions between the states of a transactional id, and the example of the format page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.model.types import TopicPartition
from tidemill.transactions import transaction_metadata
from tidemill.transactions.transaction_log import TransactionRecord, decode_record
from tidemill.transactions.transaction_metadata import (
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

PAGE = Path(__file__).parents[2] / "docs/formats/transaction-state.md"
HEX = re.compile(r"[0-9a-f]+( [0-9a-f]+)*(?=  |$)")
P0, P2 = TopicPartition("t", 0), TopicPartition("t", 2)
STATES = list(TransactionState)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, _, _ = STATES
IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)


def end(before: TransactionMetadata, is_commit: bool) -> TransactionMetadata:
    return transaction_metadata.prepare_end(
        before, is_commit=is_commit, client_version=2, next_producer_id=NO_PRODUCER_ID, now_ms=2
    )


EVENTS: dict[str, Callable[[TransactionMetadata], TransactionMetadata]] = {
    "a producer begins": lambda before: transaction_metadata.increment_epoch(before, 60_000, None, 2),
    "a producer begins with another id": lambda before: transaction_metadata.rotate_producer_id(
        before, 8, 60_000, 2, keeps_last_epoch=False
    ),
    "a prepared transaction is kept": lambda before: transaction_metadata.keep_prepared(
        before, NO_PRODUCER_ID, 60_000, 2
    ),
    "partitions are added": lambda before: transaction_metadata.add_partitions(before, frozenset({P2}), 2, 2),
    "commit": lambda before: end(before, True),
    "abort": lambda before: end(before, False),
    "the markers are written": lambda before: transaction_metadata.complete(before, 2),
}
PERMITTED: dict[str, dict[TransactionState, TransactionState]] = {
    "a producer begins": dict.fromkeys(IDLE, EMPTY),
    "a producer begins with another id": dict.fromkeys(IDLE, EMPTY),
    "a prepared transaction is kept": {ONGOING: ONGOING},
    "partitions are added": dict.fromkeys((*IDLE, ONGOING), ONGOING),
    "commit": {ONGOING: PREPARE_COMMIT},
    "abort": dict.fromkeys((*IDLE, ONGOING), PREPARE_ABORT),
    "the markers are written": {PREPARE_COMMIT: COMPLETE_COMMIT, PREPARE_ABORT: COMPLETE_ABORT},
}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
@pytest.mark.parametrize("event", EVENTS)
def test_other_transitions_than_those_of_the_table_raise(event: str, state: TransactionState) -> None:
    before = TransactionMetadata(7, 1, 60_000, state, frozenset({P0}), 1)
    following = PERMITTED[event].get(state)
    if following is None:
        with pytest.raises(RuntimeError, match="cannot handle"):
            EVENTS[event](before)
    else:
        assert EVENTS[event](before).state is following


def test_the_example_of_the_page_is_an_open_transaction() -> None:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    key, value = (
        bytes.fromhex("".join(match.group() for line in block.splitlines() if (match := HEX.match(line))))
        for block in blocks
    )
    record = TransactionRecord(
        "load",
        TransactionMetadata(
            producer_id=7,
            producer_epoch=1,
            timeout_ms=60_000,
            state=ONGOING,
            partitions=frozenset({P0, P2}),
            update_ms=1_700_000_000_001,
            start_ms=1_700_000_000_000,
            previous_producer_id=7,
            client_version=2,
        ),
    )
    assert decode_record(key, value) == record
    assert (record.key_bytes(), record.value_bytes()) == (key, value)
