"""READ_COMMITTED consumers read up to the first open transaction, and wait for its marker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import NODE, NOW, Bench, Client, bench_in, parts_of

from record_builders import build_batch
from tidemill.broker.handlers.list_offsets import look_up
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.wire.list_offset_timestamps import LATEST, MAX_TIMESTAMP
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest

LONG_MS = 60_000
VERSIONS = (4, 7, 13, 17)


@pytest.fixture(params=[False, True], ids=["at-once", "in-slices"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_in(tmp_path, in_slices=request.param) as one:
        yield one


def write(bench: Bench, producer: int, *, size: int = 10) -> int:
    """Appends a batch of a transaction, as its coordinator would admit it. Returns its offset."""
    rows = [(NOW, None, bytes(size), None)]
    entry = bench.partition().log.producer_state.entries.get(producer)
    sequence = 0 if entry is None else int(entry.last_sequence) + 1
    data = build_batch(
        rows, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    return int(bench.partition().append(parse_batch(data, 0, len(data)), 1, NOW).base_offset)


def end(bench: Bench, producer: int, *, committed: bool) -> None:
    data = build_end_marker(committed, NOW, producer, 0, 0)
    bench.partition().append(parse_batch(data, 0, len(data)), 1, NOW)


def ask(client: Client, version: int, offset: int, isolation: int, **fields: Any) -> Any:
    number = client.fetch(version, {("t", 0): offset}, isolation_level=isolation, **fields)
    return parts_of(client.fetched(version, number))["t", 0]


@pytest.mark.parametrize("version", VERSIONS)
def test_read_committed_ends_at_the_first_open_transaction(bench: Bench, version: int) -> None:
    client = bench.client()
    client.append(b"plain")
    write(bench, 7)
    client.append(b"behind")
    for offset, isolation, count in ((0, 1, 1), (0, 0, 3), (1, 1, 0), (2, 1, 0), (2, 0, 1)):
        part = ask(client, version, offset, isolation)
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 1)
        assert len(part.records) == 0 if count == 0 else len(part.records) > 0
        last = parse_batch(part.records, 0, len(part.records)).base_offset if part.records else -1
        assert last == (offset if count else -1)
    end(bench, 7, committed=False)
    part = ask(client, version, 0, 1)
    assert (part.high_watermark, part.last_stable_offset) == (4, 4)
    assert [(one.producer_id, one.first_offset) for one in part.aborted_transactions] == [(7, 1)]


@pytest.mark.parametrize("bytes_min", [1, 600])
def test_a_delayed_read_committed_fetch_completes_with_the_transaction(bench: Bench, bytes_min: int) -> None:
    reader, other = bench.client(), bench.client()
    reader.fetch(11, {("t", 0): 0}, isolation_level=1, max_wait_ms=LONG_MS, min_bytes=bytes_min)
    other.fetch(11, {("t", 0): 0}, isolation_level=1, max_wait_ms=LONG_MS, min_bytes=bytes_min)
    bench.until(lambda: len(bench.partition().delayed.fetches) == 2)
    write(bench, 7, size=500)
    write(bench, 8, size=500)
    assert reader.is_silent()
    end(bench, 8, committed=False)
    assert reader.is_silent()
    end(bench, 7, committed=True)
    for client in (reader, other):
        part = parts_of(client.fetched(11))["t", 0]
        assert (part.last_stable_offset, part.high_watermark) == (4, 4)
        assert len(part.records) > 1000
        assert [(one.producer_id, one.first_offset) for one in part.aborted_transactions] == [(8, 1)]


def test_read_committed_returns_no_partial_transaction_below_the_high_watermark(bench: Bench) -> None:
    partition = bench.partition()
    write(bench, 7)
    partition.apply_state(NODE, 0, (NODE, 2), (NODE, 2), partition_epoch=-1, now_ms=0)
    write(bench, 7)
    end(bench, 7, committed=False)
    client = bench.client()
    for fetched, stable in ((1, 0), (2, 0), (3, 3)):
        partition.fetched_by(2, fetched, 0, NOW)
        part = ask(client, 11, 0, 1)
        assert (part.high_watermark, part.last_stable_offset) == (fetched, stable)


@pytest.mark.parametrize(("isolation", "latest"), [(0, 3), (1, 1)])
def test_the_latest_offset_depends_on_the_isolation_level(bench: Bench, isolation: int, latest: int) -> None:
    bench.client().append(b"plain")
    write(bench, 7)
    write(bench, 7)
    wanted = ListOffsetsPartition(timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation)
    assert look_up(bench.partition(), wanted, request, 7, None).offset == latest


def test_a_record_above_the_limit_is_not_found_by_timestamp(bench: Bench) -> None:
    def look(timestamp: int, isolation: int) -> int:
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation)
        return look_up(bench.partition(), ListOffsetsPartition(timestamp=timestamp), request, 7, None).offset

    partition = bench.partition()
    for at in range(3):
        data = build_batch([(NOW + at, None, b"v", None)])
        if at == 1:
            partition.apply_state(NODE, 0, (NODE, 2), (NODE, 2), partition_epoch=-1, now_ms=0)
            partition.fetched_by(2, 1, 0, NOW)
        partition.append(parse_batch(data, 0, len(data)), 1, NOW)
    assert partition.high_watermark == 1
    assert [look(NOW + at, 0) for at in range(3)] == [0, -1, -1]
    assert look(MAX_TIMESTAMP, 0) == -1
    partition.fetched_by(2, 2, 0, NOW)
    assert [look(NOW + at, 0) for at in range(3)] == [0, 1, -1]
    partition.fetched_by(2, 3, 0, NOW)
    assert [look(NOW + at, 0) for at in range(3)] == [0, 1, 2]
    assert look(MAX_TIMESTAMP, 0) == 2


def test_a_record_of_an_open_transaction_is_not_found_by_timestamp(bench: Bench) -> None:
    bench.client().append(b"plain")
    write(bench, 7)
    wanted = ListOffsetsPartition(timestamp=NOW)
    found = [
        look_up(bench.partition(), wanted, ListOffsetsRequest(replica_id=-1, isolation_level=level), 7, None)
        for level in (0, 1)
    ]
    first = [one.offset for one in found]
    bench.partition().log.advance_start(1)
    found = [
        look_up(bench.partition(), wanted, ListOffsetsRequest(replica_id=-1, isolation_level=level), 7, None)
        for level in (0, 1)
    ]
    assert (first, [one.offset for one in found]) == ([0, 0], [1, -1])


def test_any_replica_returns_its_log_end_and_epoch_to_a_debugging_replica_id(bench: Bench) -> None:
    """Kafka's replica id for debuggers is -2; controllers use it before elections."""
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE, 2), (NODE, 2), partition_epoch=-1, now_ms=0)
    data = build_batch([(NOW, None, b"v", None)])
    partition.append(parse_batch(data, 0, len(data)), 1, NOW)
    partition.apply_state(2, 8, (NODE, 2), (2,), partition_epoch=-1, now_ms=0)
    wanted = ListOffsetsPartition(timestamp=LATEST, current_leader_epoch=-1)
    found = look_up(partition, wanted, ListOffsetsRequest(replica_id=-2, isolation_level=0), 9, None)
    assert (found.offset, found.leader_epoch) == (1, 3)
    for replica_id in (-1, 2):
        with pytest.raises(KafkaError) as refused:
            look_up(partition, wanted, ListOffsetsRequest(replica_id=replica_id, isolation_level=0), 9, None)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.mark_offline("the disk is gone")
    with pytest.raises(KafkaError) as offline:
        look_up(partition, wanted, ListOffsetsRequest(replica_id=-2, isolation_level=0), 9, None)
    assert offline.value.code == ErrorCode.KAFKA_STORAGE_ERROR
