"""The table of refusals of Produce: the effect of each check, and their precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import NOW, OFFSETS, PRODUCE, Bench, batch, bench_in, checks_of, produce_request

from record_builders import build_message_set
from tidemill.broker import produce_admission_checks
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import GZIP, ZSTD
from tidemill.records.mirrored_batch import MIRRORED

GOOD = batch(b"a")
PACKED = batch(b"a" * 100, codec=ZSTD)
NOWHERE = 9

EXPECTED = [
    ("transaction", ErrorCode.INVALID_TXN_STATE),
    ("acks", ErrorCode.INVALID_REQUIRED_ACKS),
    ("unknown partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("mirror", ErrorCode.POLICY_VIOLATION),
    ("leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ("message format", ErrorCode.INVALID_RECORD),
    ("mirrored batch", ErrorCode.POLICY_VIOLATION),
    ("single batch", ErrorCode.INVALID_RECORD),
    ("zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("topic format", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("size", ErrorCode.MESSAGE_TOO_LARGE),
]
"""Each check with its error, in the order of precedence."""
CHECKS_OF_MIRRORED = ["acks", "internal topic", "leader", "no records"]
"""The checks of batches of the source of a mirror."""


class Sent:
    """A request of version 6 that every check admits before a test changes it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.version = 6
        self.transactional_id: str | None = None
        self.acks = -1
        self.topic = "t"
        self.index = 0
        self.magic = 2
        self.codec = 0
        self.producer: dict[str, int] = {}
        self.copies = 1
        self.leader_epoch = -1
        self.records: bytes | None = None
        """The records, if they are not built from the fields."""
        self.settings: dict[str, int | str] = {}
        """Settings of the topic "t"."""
        self.is_leader = True

    def part(self) -> Any:
        """Sends the request. Returns the response for its partition."""
        if self.settings:
            self.bench.put("t", 3, **self.settings)
        if not self.is_leader:
            for name in ("t", OFFSETS):
                self.bench.partition(name).apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
        records = self.records
        if records is None and self.magic < 2:
            records = build_message_set(self.magic, [(NOW, None, b"a")])
        elif records is None:
            header = {"leader_epoch": self.leader_epoch, **self.producer}
            records = batch(b"a" * 100, codec=self.codec, **header)
        parts = {(self.topic, self.index): records * self.copies}
        request = produce_request(self.version, parts, self.acks)
        request.transactional_id = self.transactional_id
        (topic,) = self.bench.client().ask(PRODUCE, self.version, request).responses
        (part,) = topic.partition_responses
        return part

    def code(self) -> ErrorCode:
        return ErrorCode(self.part().error_code)


def begin_transaction(sent: Sent) -> None:
    sent.producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def ask_for_seven_acks(sent: Sent) -> None:
    sent.acks = 7


def name_no_partition(sent: Sent) -> None:
    sent.index = NOWHERE


def name_internal_topic(sent: Sent) -> None:
    sent.topic = OFFSETS


def send_to_mirror(sent: Sent) -> None:
    sent.settings["mirror_state"] = "active"


def lead_elsewhere(sent: Sent) -> None:
    sent.is_leader = False


def send_message_set(sent: Sent) -> None:
    sent.magic = 1


def send_mirrored_batch(sent: Sent) -> None:
    sent.leader_epoch = MIRRORED


def send_two_batches(sent: Sent) -> None:
    sent.copies = 2


def pack_with_zstd(sent: Sent) -> None:
    sent.codec = ZSTD


def send_sequence_to_old_topic(sent: Sent) -> None:
    sent.settings["message_magic"] = 1
    sent.producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def lower_limit(sent: Sent) -> None:
    sent.settings["max_message_bytes"] = 70


WRONG: list[Callable[[Sent], None]] = [
    begin_transaction,
    ask_for_seven_acks,
    name_no_partition,
    name_internal_topic,
    send_to_mirror,
    lead_elsewhere,
    send_message_set,
    send_mirrored_batch,
    send_two_batches,
    pack_with_zstd,
    send_sequence_to_old_topic,
    lower_limit,
]
"""A refused request for each check, in the order of the table."""


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    with bench_in(tmp_path) as bench:
        bench.put(OFFSETS, 1)
        yield Sent(bench)


def test_every_check_has_a_case() -> None:
    names = [name for name, _ in EXPECTED]
    assert checks_of(produce_admission_checks) == names + CHECKS_OF_MIRRORED
    assert len(WRONG) == len(EXPECTED)


def test_admitted_records_are_appended(sent: Sent) -> None:
    assert sent.code() == ErrorCode.NONE
    assert sent.bench.partition().log.end_offset == 1


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_each_check_of_the_table_refuses(sent: Sent, number: int) -> None:
    WRONG[number](sent)
    assert sent.code() == EXPECTED[number][1]
    assert sent.bench.partition().log.end_offset == 0


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_the_first_check_of_the_table_determines_the_error(sent: Sent, number: int) -> None:
    for make_wrong in WRONG[number:]:
        # These two send no batch of a transaction.
        if number or make_wrong not in (send_message_set, send_sequence_to_old_topic):
            make_wrong(sent)
    assert sent.code() == EXPECTED[number][1]


def test_a_transaction_of_a_mirrors_source_is_sent_to_the_wrong_broker(sent: Sent) -> None:
    """The sender reads the metadata again, and does not take the error for a permanent one."""
    begin_transaction(sent)
    send_mirrored_batch(sent)
    name_no_partition(sent)
    sent.bench.produces.admission.inter_broker_listener = "PLAINTEXT"
    assert sent.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_header_errors_precede_the_checks_of_the_batch_and_record_errors_follow_them(sent: Sent) -> None:
    sent.records = PACKED[:-1]
    assert sent.code() == ErrorCode.CORRUPT_MESSAGE
    sent.records = PACKED[:-1] + bytes([PACKED[-1] ^ 1])
    assert sent.code() == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    sent.version = 7
    assert sent.code() == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [2, 3, 9])
@pytest.mark.parametrize("codec", ["producer", "gzip"])
def test_the_size_limit_is_that_of_the_batch_as_sent(sent: Sent, version: int, codec: str) -> None:
    sent.version, sent.records = version, GOOD
    sent.settings = {"compression_type": codec, "max_message_bytes": len(GOOD) - 1}
    refused = sent.part()
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    if version >= 8:
        assert refused.error_message == (
            f"the batch has {len(GOOD)} bytes, this topic accepts {len(GOOD) - 1} (max.message.bytes): "
            "lower batch.size of the producer, or raise the topic's limit"
        )
    sent.settings = {"compression_type": "producer", "max_message_bytes": len(GOOD)}
    assert sent.code() == ErrorCode.NONE


def test_a_costly_batch_that_is_too_large_is_refused_before_its_validation(sent: Sent) -> None:
    sent.records = batch(*[b"x" * 100] * 40_000, codec=GZIP)
    sent.settings = {"max_message_bytes": len(sent.records) - 1}
    assert sent.code() == ErrorCode.MESSAGE_TOO_LARGE
    assert sent.bench.preparation.submitted == 0


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (GOOD, ErrorCode.NONE),
        (PACKED, ErrorCode.NONE),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:10], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.NONE),
    ],
)
def test_a_batch_in_a_request_of_version_2(sent: Sent, records: bytes, code: ErrorCode) -> None:
    sent.version, sent.records = 2, records
    assert sent.code() == code
