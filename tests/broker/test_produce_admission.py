"""The table of refusals of Produce: the effect of each check, and their precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paths_bench import OFFSETS, PRODUCE, Bench, batch, bench_in, produce_request

from tidemill.broker.produce_admission import CHECKS
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import ZSTD

GOOD = batch(b"a")
PACKED = batch(b"a" * 100, codec=ZSTD)
NOWHERE = 9

EXPECTED = [
    ("transaction", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ("acks", ErrorCode.INVALID_REQUIRED_ACKS),
    ("unknown partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ("zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
]
"""Each check with its error, in the order of precedence."""


class Sent:
    """A request of version 6 that every check admits before a test changes it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.transactional_id: str | None = None
        self.acks = -1
        self.topic = "t"
        self.index = 0
        self.records = GOOD

    def code(self) -> ErrorCode:
        request = produce_request(6, {(self.topic, self.index): self.records}, self.acks)
        request.transactional_id = self.transactional_id
        (topic,) = self.bench.client().ask(PRODUCE, 6, request).responses
        (part,) = topic.partition_responses
        return ErrorCode(part.error_code)


def begin_transaction(sent: Sent) -> None:
    sent.transactional_id = "transaction"


def ask_for_seven_acks(sent: Sent) -> None:
    sent.acks = 7


def name_no_partition(sent: Sent) -> None:
    sent.index = NOWHERE


def name_internal_topic(sent: Sent) -> None:
    sent.topic = OFFSETS


def lead_elsewhere(sent: Sent) -> None:
    for name in ("t", OFFSETS):
        sent.bench.partition(name).apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)


def pack_with_zstd(sent: Sent) -> None:
    sent.records = PACKED


WRONG: list[Callable[[Sent], None]] = [
    begin_transaction,
    ask_for_seven_acks,
    name_no_partition,
    name_internal_topic,
    lead_elsewhere,
    pack_with_zstd,
]
"""A refused request for each check, in the order of the table."""


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    with bench_in(tmp_path) as bench:
        bench.put(OFFSETS, 1)
        yield Sent(bench)


def test_every_check_has_a_case() -> None:
    assert [check.name for check in CHECKS] == [name for name, _ in EXPECTED]
    assert len(WRONG) == len(EXPECTED)


def test_admitted_records_are_appended(sent: Sent) -> None:
    assert sent.code() == ErrorCode.NONE
    assert sent.bench.partition().log.end_offset == 1


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_each_check_refuses_alone(sent: Sent, number: int) -> None:
    WRONG[number](sent)
    assert sent.code() == EXPECTED[number][1]
    assert sent.bench.partition().log.end_offset == 0


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_the_first_check_of_the_table_determines_the_error(sent: Sent, number: int) -> None:
    for make_wrong in WRONG[number:]:
        make_wrong(sent)
    assert sent.code() == EXPECTED[number][1]


def test_framing_errors_precede_the_zstd_check_and_record_errors_follow_it(sent: Sent) -> None:
    sent.records = PACKED + GOOD
    assert sent.code() == ErrorCode.INVALID_RECORD
    sent.records = PACKED[:-1] + bytes([PACKED[-1] ^ 1])
    assert sent.code() == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
