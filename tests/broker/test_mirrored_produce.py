"""Produce requests to a mirror: which requests have batches of its source, and what the others get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import IDS, NOW, PRODUCE, Bench, batch, bench_in, produce_request

from record_builders import build_message_set
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import GZIP, parse_batch
from tidemill.records.mirrored_batch import as_mirrored, empty_batches
from tidemill.replication.partition import PROMOTED_AT_ONCE

PRODUCER = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
TRANSACTIONAL = {**PRODUCER, "transactional": True}
VERSION = 12


def mirrored(base: int, gap: int = 0, **built: Any) -> bytes:
    """A batch of the source."""
    return as_mirrored(batch(b"value", base_offset=base, **built), gap)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """The topic "t" is a mirror, and the clients are at the inter-broker listener."""
    with bench_in(tmp_path) as bench:
        bench.produces.admission.inter_broker_listener = "PLAINTEXT"
        bench.put("t", 3, mirror_state="active")
        yield bench


def send(
    bench: Bench, parts: Any, version: int = VERSION, transactional_id: str | None = None
) -> list[tuple[ErrorCode, int]]:
    """Error and base offset of each partition."""
    request = produce_request(version, parts)
    request.transactional_id = transactional_id
    response = bench.client().ask(PRODUCE, version, request)
    return [
        (ErrorCode(part.error_code), part.base_offset)
        for topic in response.responses
        for part in topic.partition_responses
    ]


def code(bench: Bench, records: bytes, version: int = VERSION) -> ErrorCode:
    ((found, _),) = send(bench, {("t", 0): records}, version)
    return found


@pytest.mark.parametrize("version", [3, 12, 13])
def test_the_inter_broker_listener_accepts_batches_of_the_source(bench: Bench, version: int) -> None:
    assert send(bench, {("t", 0): mirrored(5, 5) + mirrored(6)}, version) == [(ErrorCode.NONE, 5)]
    assert bench.partition().log.end_offset == 7
    assert send(bench, {("t", 0): mirrored(5, 5)}, version) == [(ErrorCode.NONE, 5)]
    assert bench.partition().log.end_offset == 7


def test_gaps_are_not_counted_as_messages(bench: Bench) -> None:
    base = 5_000_000_000
    data = mirrored(0) + empty_batches(1, base) + mirrored(base + 3, 3)
    for _ in range(2):
        assert code(bench, data) is ErrorCode.NONE
    partition = bench.partition()
    assert partition.messages_in == 2
    assert partition.bytes_in == len(data)


def test_other_listeners_refuse_batches_of_the_source(bench: Bench) -> None:
    bench.produces.admission.inter_broker_listener = "REPLICATION"
    assert code(bench, mirrored(0)) is ErrorCode.POLICY_VIOLATION
    assert bench.partition().log.end_offset == 0


@pytest.mark.parametrize("epoch", [-1, 0, 3])
@pytest.mark.parametrize("stored", [0, 1], ids=["empty", "duplicate"])
def test_a_batch_of_an_ordinary_producer_is_refused_at_the_same_listener(
    bench: Bench, epoch: int, stored: int
) -> None:
    if stored:
        assert code(bench, mirrored(0)) is ErrorCode.NONE
    assert code(bench, batch(b"a", leader_epoch=epoch)) is ErrorCode.POLICY_VIOLATION
    assert bench.partition().log.end_offset == stored


def test_a_transactional_producer_is_refused_at_once(bench: Bench) -> None:
    parts = {("t", 0): batch(b"a", **TRANSACTIONAL)}
    assert send(bench, parts, transactional_id="id") == [(ErrorCode.POLICY_VIOLATION, -1)]
    assert bench.partition().log.producers() == []


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_an_old_client_are_refused_and_those_of_the_source_are_not(
    bench: Bench, magic: int
) -> None:
    old = build_message_set(magic, [(NOW, None, b"a")], base_offset=4)
    for version in (0, 1, 2):
        assert code(bench, old, version) is ErrorCode.POLICY_VIOLATION
        assert code(bench, mirrored(4, 4), version) is ErrorCode.POLICY_VIOLATION
    assert bench.partition().log.end_offset == 0
    assert code(bench, old, 3) is ErrorCode.NONE
    assert bench.partition().log.end_offset == 5


def test_transactions_of_the_source_need_no_transactional_id(bench: Bench) -> None:
    parts = {("t", 0): mirrored(0, **TRANSACTIONAL), ("u", 0): batch(b"a", **TRANSACTIONAL)}
    assert send(bench, parts) == [(ErrorCode.NONE, 0), (ErrorCode.INVALID_TXN_STATE, -1)]


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (mirrored(1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (mirrored(0) + mirrored(2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (mirrored(0)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (mirrored(0)[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_request_is_refused_as_a_whole(bench: Bench, records: bytes, error: ErrorCode) -> None:
    assert code(bench, records) is error
    assert bench.partition().log.end_offset == 0


def test_a_request_with_another_acks_is_refused(bench: Bench) -> None:
    (part,) = (
        bench.client()
        .ask(PRODUCE, VERSION, produce_request(VERSION, {("t", 0): mirrored(0)}, 2))
        .responses[0]
        .partition_responses
    )
    assert part.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_follower_refuses_batches_of_the_source(bench: Bench) -> None:
    bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    assert code(bench, mirrored(0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_request_that_waits_is_refused_once_the_mirror_has_ended(bench: Bench) -> None:
    client = bench.client()
    costly = batch(*[b"x" * 100] * 40_000, codec=GZIP)
    client.produce(VERSION, {("t", 0): mirrored(0), ("u", 0): costly})
    bench.until(lambda: bench.preparation.submitted == 1)
    bench.put("t", 3, mirror_state="promoting")
    mirror, ordinary = client.produced(VERSION)
    assert (mirror.error_code, ordinary.error_code) == (ErrorCode.POLICY_VIOLATION, 0)
    assert bench.partition().log.end_offset == 0


def test_a_leader_that_does_not_know_of_the_promotion_yet_refuses_batches_after_its_end(bench: Bench) -> None:
    log = bench.partition().log
    log.append_mirror_end(0, NOW)
    for base in (0, 1):
        assert code(bench, mirrored(base)) is ErrorCode.POLICY_VIOLATION
    assert log.end_offset == 1


def test_a_refused_batch_of_the_source_does_not_hold_back_a_producer_of_the_same_id(bench: Bench) -> None:
    partition = bench.partition()
    partition.set_min_insync_replicas(2, 0)
    partition.apply_state(1, 0, (1, 2), (1,), partition_epoch=1, now_ms=0)
    assert code(bench, mirrored(0, **PRODUCER)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.produces.rejected.rejections == {}


@pytest.mark.parametrize("state", ["active", "promoting"])
def test_an_ordinary_topic_is_one_after_the_promotion(bench: Bench, state: str) -> None:
    bench.put("t", 3, mirror_state=state)
    assert code(bench, batch(b"a")) is ErrorCode.POLICY_VIOLATION
    bench.put("t", 3)
    assert code(bench, batch(b"a")) is ErrorCode.NONE
    # A task of the mirror that has not learned of the promotion would append the records of its source.
    assert code(bench, mirrored(1)) is ErrorCode.POLICY_VIOLATION


# Promotion


def promote(bench: Bench) -> None:
    bench.loop.run_until_complete(bench.manager.promotions.run())


def transactional(producer_id: int, base: int) -> bytes:
    return mirrored(base, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def test_a_promotion_aborts_all_open_transactions_and_ends_each_partition_once(bench: Bench) -> None:
    count = 2 * PROMOTED_AT_ONCE + 7
    assert code(bench, b"".join(transactional(number, number) for number in range(count))) is ErrorCode.NONE
    promote(bench)
    assert bench.partition().log.end_offset == count, "it is not promoted yet"
    bench.put("t", 3, mirror_state="promoting")
    for _ in range(3):
        promote(bench)
    log = bench.partition().log
    assert log.end_offset == 2 * count + 1
    assert log.aborts_recorded == count
    assert (log.producers(), log.mirror_has_ended) == ([], True)
    assert log.last_stable_offset(log.end_offset) == log.end_offset
    assert [int(bench.partition(index=index).log.end_offset) for index in (1, 2)] == [1, 1]


def test_a_follower_does_not_end_a_mirror(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidemill.replication")
    bench.put("t", 3, mirror_state="promoting")
    bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    promote(bench)
    assert bench.partition().log.end_offset == 0
    assert caplog.messages == [], "it is no problem"


def test_a_promotion_waits_for_enough_replicas_and_says_so_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidemill.replication")
    assert code(bench, transactional(1, 0)) is ErrorCode.NONE
    bench.put("t", 3, mirror_state="promoting", min_insync_replicas=2)
    bench.partition().apply_state(1, 0, (1, 2), (1,), partition_epoch=1, now_ms=0)
    for _ in range(3):
        promote(bench)
    assert bench.partition().log.end_offset == 1
    (text,) = [one for one in caplog.messages if "t-0" in one]
    assert text.startswith("the mirror t-0 is not promoted yet: t-0 has 1 in-sync replicas")
    bench.partition().apply_state(1, 0, (1, 2), (1, 2), partition_epoch=2, now_ms=0)
    promote(bench)
    assert bench.partition().log.mirror_has_ended


def test_a_promotion_reports_a_failed_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code(bench, mirrored(0)) is ErrorCode.NONE
    bench.put("t", 3, mirror_state="promoting", segment_bytes=100)
    failed: list[int] = []
    monkeypatch.setattr(bench.manager, "on_storage_error", lambda one, problem: failed.append(int(one.index)))
    directory = Path(bench.partition().log.directory)
    gone = directory.rename(directory.with_name("gone"))
    promote(bench)
    gone.rename(directory)
    assert failed == [0], "there is no directory for the next segment"
    assert bench.partition(index=1).log.mirror_has_ended


def test_a_promotion_aborts_no_transaction_of_this_cluster(bench: Bench) -> None:
    """The setting is removed while a promotion has paused."""
    partition = bench.partition()
    partition.set_mirror_state("promoting")
    partition.set_mirror_state("none")
    data = batch(b"a", **TRANSACTIONAL)
    partition.append(parse_batch(data, 0, len(data)), -1, NOW)
    assert partition.promote(NOW)
    assert partition.log.end_offset == 1


def test_a_deleted_topic_is_not_promoted_any_more(bench: Bench) -> None:
    bench.put("t", 3, mirror_state="promoting")
    for _ in bench.manager.deleting("t", IDS["t"]):
        pass
    promote(bench)
    assert bench.manager.promotions.entries == {}
