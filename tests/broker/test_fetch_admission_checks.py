"""The table of refusals of Fetch: the effect of each check, and their precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import FETCH, IDS, Bench, bench_in, checks_of, fetch_request, parts_of

from tidemill.broker import fetch_admission_checks
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import ZSTD
from tidemill.replication.message_format import TopicMessageFormat
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

NOWHERE = 9
FOLLOWER = 2

EXPECTED = [
    ("unknown partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ("broker epoch", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ("zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
]
"""Each check with its error, in the order of precedence."""


class Sent:
    """A request of version 9 that every check admits before a test changes it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.version = 9
        self.index = 0
        self.offset = 0
        self.leader_epoch = -1
        self.replica = ReplicaState()

    def result(self) -> Any:
        requested = FetchPartition(
            fetch_offset=self.offset, current_leader_epoch=self.leader_epoch, partition_max_bytes=1 << 20
        )
        # Another partition shows that an error affects no other.
        request = fetch_request(self.version, {("t", self.index): requested, ("u", 0): 0})
        request.replica_state = self.replica
        found = parts_of(self.bench.client().ask(FETCH, self.version, request))
        if self.replica.replica_id < 0:
            assert found["u", 0].error_code == ErrorCode.NONE
        return found["t", self.index]

    def code(self) -> ErrorCode:
        return ErrorCode(self.result().error_code)


def name_no_partition(sent: Sent) -> None:
    sent.index = NOWHERE


def lead_elsewhere(sent: Sent) -> None:
    sent.bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)


def register_again(sent: Sent) -> None:
    """Names a broker epoch, which requests have from version 15 on, where all clients know zstd."""
    sent.version = 15
    sent.replica = ReplicaState(replica_id=FOLLOWER, replica_epoch=4)
    sent.bench.registered[FOLLOWER] = 5


def store_with_zstd(sent: Sent) -> None:
    sent.bench.partition().message_format = TopicMessageFormat(codec=ZSTD)


WRONG: list[Callable[[Sent], None]] = [name_no_partition, lead_elsewhere, register_again, store_with_zstd]
"""A refused partition for each check, in the order of the table."""


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Sent]:
    with bench_in(tmp_path) as bench:
        bench.client().append(b"a")
        yield Sent(bench)


def test_every_check_has_a_case() -> None:
    assert checks_of(fetch_admission_checks) == [name for name, _ in EXPECTED]
    assert len(WRONG) == len(EXPECTED)


def test_an_admitted_partition_is_read(sent: Sent) -> None:
    part = sent.result()
    assert (part.error_code, part.high_watermark) == (ErrorCode.NONE, 1)
    assert part.records


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_each_check_refuses_alone(sent: Sent, number: int) -> None:
    WRONG[number](sent)
    part = sent.result()
    assert (part.error_code, part.high_watermark) == (EXPECTED[number][1], -1)
    assert not part.records


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[name for name, _ in EXPECTED])
def test_the_first_check_of_the_table_determines_the_error(sent: Sent, number: int) -> None:
    for make_wrong in WRONG[number:]:
        make_wrong(sent)
    # The offset is outside of the log: all refusals precede OFFSET_OUT_OF_RANGE.
    sent.offset = 7
    assert sent.code() == EXPECTED[number][1]


def test_an_offset_out_of_range_is_a_result_of_the_read(sent: Sent) -> None:
    sent.offset = 7
    assert sent.code() == ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_unknown_topic_id_differs_from_an_unknown_partition(sent: Sent) -> None:
    sent.version = 13
    sent.index = NOWHERE
    assert sent.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    sent.index = 0
    list(sent.bench.manager.deleting("t", IDS["t"]))
    assert sent.code() == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("leader_epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_the_leader_check_includes_the_leader_epoch(sent: Sent, leader_epoch: int, code: ErrorCode) -> None:
    sent.bench.partition().apply_state(1, 5, (1,), (1,), partition_epoch=-1, now_ms=0)
    sent.leader_epoch = leader_epoch
    assert sent.code() == code


def test_an_offline_log_precedes_the_leader(sent: Sent) -> None:
    lead_elsewhere(sent)
    sent.bench.partition().offline_reason = "its disk failed"
    assert sent.code() == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [9, 11])
def test_consumers_read_from_a_follower_from_version_11_on(sent: Sent, version: int) -> None:
    lead_elsewhere(sent)
    sent.version = version
    assert (sent.code() == ErrorCode.NONE) == (version >= 11)
