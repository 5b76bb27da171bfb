"""Fetch in every version over a connection, with the generated codec: responses, errors, limits, delays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import (
    FETCH,
    FETCH_BYTES_MAX,
    IDS,
    NODE,
    NOW,
    Bench,
    HeldExecutor,
    batch,
    bench_in,
    fetch_request,
    parts_of,
    topic_name,
    values_of,
)

from tidemill.broker.delayed_fetch import DelayedFetch
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import ZSTD
from tidemill.replication.message_format import TopicMessageFormat
from tidemill.wire.header import encode_request
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

VERSIONS = range(4, 19)
LONG_MS = 60_000


@pytest.fixture(params=[False, True], ids=["at-once", "in-slices"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Two topics, and the handlers for them."""
    with bench_in(tmp_path, in_slices=request.param) as one:
        yield one


def part_at(offset: int, bytes_max: int = 1 << 20, **fields: Any) -> FetchPartition:
    """The requested fields of a partition."""
    return FetchPartition(fetch_offset=offset, partition_max_bytes=bytes_max, **fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_the_appended_records(bench: Bench, version: int) -> None:
    client = bench.client()
    client.append(b"a", b"b")
    client.append(b"c")
    client.append(b"d", index=2)
    client.append(b"e", topic="u")
    bench.partition("t", 2).log.advance_start(1)
    for isolation in (0, 1):
        number = client.fetch(
            version, {("t", 0): 1, ("t", 1): 0, ("t", 2): 1, ("u", 0): 0}, isolation_level=isolation
        )
        response = client.fetched(version, number)
        assert (response.throttle_time_ms, response.error_code, response.session_id) == (0, 0, 0)
        found = parts_of(response)
        assert list(found) == [("t", 0), ("t", 1), ("t", 2), ("u", 0)]
        assert [part.error_code for part in found.values()] == [0, 0, 0, 0]
        assert [part.high_watermark for part in found.values()] == [3, 0, 1, 1]
        assert [part.last_stable_offset for part in found.values()] == [3, 0, 1, 1]
        starts = [0, 0, 1, 0] if version >= 5 else [-1] * 4
        assert [part.log_start_offset for part in found.values()] == starts
        assert {part.preferred_read_replica for part in found.values()} == {-1}
        # The batch with the offset is complete; readers skip its earlier records.
        assert values_of(found["t", 0], 1) == [b"b", b"c"]
        assert found["t", 1].records == b""
        assert found["t", 2].records == b""
        assert values_of(found["u", 0]) == [b"e"]
        wanted: Any = [] if isolation else None
        assert all(part.aborted_transactions == wanted for part in found.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_zstd_requires_version_10(bench: Bench, version: int) -> None:
    client = bench.client()
    client.append(b"a")
    client.append(b"b", index=1)
    bench.partition("t", 1).message_format = TopicMessageFormat(codec=ZSTD)
    found = parts_of(client.ask(FETCH, version, fetch_request(version, {("t", 0): 0, ("t", 1): 0})))
    refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 10 else 0
    assert [part.error_code for part in found.values()] == [0, refused]
    assert values_of(found["t", 0]) == [b"a"]
    assert values_of(found["t", 1]) == ([] if refused else [b"b"])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_the_error_of_each_partition(bench: Bench, version: int) -> None:
    client = bench.client()
    client.append(b"a")
    client.append(b"b", index=1)
    bench.partition("t", 1).log.advance_start(1)
    offsets = {("t", 0): 0, ("t", 1): 0, ("t", 2): 1, ("t", 3): 0, ("nowhere", 0): 0, ("u", 0): -1}
    response = client.ask(
        FETCH, version, fetch_request(version, offsets, max_wait_ms=LONG_MS, min_bytes=1 << 20)
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    beyond = ErrorCode.OFFSET_OUT_OF_RANGE
    expected = [0, beyond, beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown, beyond]
    found = parts_of(response)
    assert [part.error_code for part in found.values()] == expected
    for part in found.values():
        if part.error_code:
            assert (part.high_watermark, part.log_start_offset, part.records) == (-1, -1, b"")
    assert bench.fetches.errors == {code: expected.count(code) for code in expected if code}


@pytest.mark.parametrize("version", range(9, 19))
def test_a_different_leader_epoch_is_an_error(bench: Bench, version: int) -> None:
    client = bench.client()
    bench.partition().apply_state(1, 5, (1,), (1,), partition_epoch=-1, now_ms=0)
    for epoch, code in (
        (-1, 0),
        (5, 0),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        client.fetch(version, {("t", 0): part_at(0, current_leader_epoch=epoch)})
        assert parts_of(client.fetched(version))["t", 0].error_code == code
    bench.partition().apply_state(2, 6, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    client.fetch(version, {("t", 0): 0})
    # From version 11 on consumers may read from followers; other followers may not.
    here = 0 if version >= 11 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert parts_of(client.fetched(version))["t", 0].error_code == here
    client.fetch(version, {("t", 0): part_at(0, current_leader_epoch=5)})
    here = ErrorCode.FENCED_LEADER_EPOCH if version >= 11 else here
    assert parts_of(client.fetched(version))["t", 0].error_code == here
    client.fetch(version, {("t", 0): 0}, **follower_fields(version))
    assert parts_of(client.fetched(version))["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def follower_fields(version: int) -> dict[str, Any]:
    """The request fields of follower 2."""
    if version < 15:
        return {"replica_id": 2}
    return {"replica_state": ReplicaState(replica_id=2, replica_epoch=1), "cluster_id": "c"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_fetches_above_the_high_watermark(tmp_path: Path, version: int) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        bench.partition().apply_state(NODE, 0, (NODE, 2), (NODE,), partition_epoch=-1, now_ms=0)
        writer, reader = bench.client(), bench.client()
        writer.produce(9, {("t", 0): batch(b"a")})
        bench.until(lambda: bench.partition().log.end_offset == 1)
        reader.fetch(version, {("t", 0): 0}, **follower_fields(version))
        assert values_of(parts_of(reader.fetched(version))["t", 0]) == [b"a"]
        reader.fetch(version, {("t", 0): 0})
        assert parts_of(reader.fetched(version))["t", 0].records == b""
        disk.run()
        assert writer.produced(9)[0].error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_request_closes_the_connection(bench: Bench, version: int) -> None:
    good = encode_request(FETCH, version, 1, "client", fetch_request(version, {("t", 0): 0, ("u", 0): 0}))
    for missing in (1, 7, len(good) // 2):
        client = bench.client()
        body = good[4 : len(good) - missing]
        client.send_bytes(len(body).to_bytes(4, "big") + body + good)
        assert client.is_closed()


# Limits


def test_the_first_batch_is_complete_despite_small_limits(bench: Bench) -> None:
    client = bench.client()
    client.append(b"x" * 5000)
    client.append(b"y")
    client.append(b"z", index=1)
    client.fetch(11, {("t", 0): part_at(0, 10), ("t", 1): part_at(0, 10)}, max_bytes=10)
    found = parts_of(client.fetched(11))
    assert values_of(found["t", 0]) == [b"x" * 5000]
    assert found["t", 1].records == b""


def test_the_first_batch_may_follow_an_empty_partition(bench: Bench) -> None:
    client = bench.client()
    client.append(b"x" * 5000, index=1)
    client.append(b"y", index=2)
    client.fetch(11, {("t", 0): 0, ("t", 1): part_at(0, 10), ("t", 2): part_at(0, 10)}, max_bytes=100)
    found = parts_of(client.fetched(11))
    assert [len(part.records) > 0 for part in found.values()] == [False, True, False]


def test_limits_end_the_records_between_batches(bench: Bench) -> None:
    client = bench.client()
    size = len(batch(b"x" * 1000))
    for index in range(3):
        for _ in range(5):
            client.append(b"x" * 1000, index=index)

    def counts(partition_bytes: int, bytes_max: int) -> list[int]:
        parts = {("t", index): part_at(0, partition_bytes) for index in range(3)}
        client.fetch(11, parts, max_bytes=bytes_max)
        return [len(values_of(part)) for part in parts_of(client.fetched(11)).values()]

    assert counts(1 << 20, 1 << 20) == [5, 5, 5]
    assert counts(2 * size, 1 << 20) == [2, 2, 2]
    assert counts(2 * size + 500, 1 << 20) == [2, 2, 2]
    assert counts(1 << 20, 7 * size) == [5, 2, 0]
    assert counts(3 * size, 7 * size) == [3, 3, 1]
    assert counts(0, 1 << 20) == [1, 0, 0]
    assert counts(-5, 1 << 20) == [1, 0, 0]
    assert counts(1 << 20, -5) == [1, 0, 0]
    assert counts(0x7FFFFFFF, 0x7FFFFFFF) == [5, 5, 5]


def test_fetch_max_bytes_of_the_broker_limits_the_response(bench: Bench) -> None:
    client = bench.client()
    for _ in range(6):
        client.append(b"x" * 500_000)
    client.fetch(11, {("t", 0): part_at(0, 0x7FFFFFFF)}, max_bytes=0x7FFFFFFF)
    records = parts_of(client.fetched(11))["t", 0].records
    assert FETCH_BYTES_MAX // 2 < len(records) <= FETCH_BYTES_MAX


def test_a_duplicate_partition_has_two_responses(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    request = fetch_request(11, {("t", 0): 0})
    request.topics = request.topics * 3
    response = client.ask(FETCH, 11, request)
    (topic,) = response.responses
    assert [values_of(part) for part in topic.partitions] == [[b"a"]] * 3


# Delayed fetches


def waits(bench: Bench, count: int = 1) -> None:
    """Runs the loop until ``count`` fetches wait."""
    bench.until(lambda: bench.fetches.waiting == count)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_waits_for_an_append(bench: Bench, version: int) -> None:
    reader, writer = bench.client(), bench.client()
    number = reader.fetch(version, {("t", 0): 0, ("t", 1): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    assert reader.is_silent()
    writer.append(b"other", topic="u")
    assert reader.is_silent()
    writer.append(b"a", index=1)
    found = parts_of(reader.fetched(version, number))
    assert values_of(found["t", 1]) == [b"a"]
    assert found["t", 0].records == b""
    assert bench.fetches.waiting == 0
    assert len(bench.partition().delayed.fetches) == len(bench.partition("t", 1).delayed.fetches) == 0


def test_appends_of_one_turn_are_in_one_response(bench: Bench) -> None:
    reader, writer = bench.client(), bench.client()
    reader.fetch(11, {("t", 0): 0, ("t", 1): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    for number in range(5):  # The peer receives all at once, in one turn of the loop.
        writer.produce(9, {("t", 0): batch(b"%d" % number), ("t", 1): batch(b"%d" % number)})
    found = parts_of(reader.fetched(11))
    assert values_of(found["t", 0]) == values_of(found["t", 1]) == [b"0", b"1", b"2", b"3", b"4"]
    assert reader.is_silent()


def test_a_fetch_waits_for_fetch_min_bytes(bench: Bench) -> None:
    reader, writer = bench.client(), bench.client()
    size = len(batch(b"x" * 100))
    reader.fetch(11, {("t", 0): 0, ("t", 1): 0}, max_wait_ms=LONG_MS, min_bytes=3 * size)
    waits(bench)
    writer.append(b"x" * 100)
    writer.append(b"x" * 100, index=1)
    assert reader.is_silent()
    writer.append(b"x" * 100)
    found = parts_of(reader.fetched(11))
    assert [len(values_of(part)) for part in found.values()] == [2, 1]
    # Available records count.
    reader.fetch(11, {("t", 0): 1, ("t", 1): 0}, max_wait_ms=LONG_MS, min_bytes=2 * size)
    assert [len(values_of(part, 1)) for part in parts_of(reader.fetched(11)).values()] == [1, 0]


def test_a_delayed_fetch_completes_at_its_deadline(bench: Bench) -> None:
    reader, writer = bench.client(), bench.client()
    writer.append(b"a")
    began = bench.loop.time()
    reader.fetch(11, {("t", 0): 0}, max_wait_ms=100, min_bytes=100_000)
    found = parts_of(reader.fetched(11))
    assert values_of(found["t", 0]) == [b"a"]
    assert 0.09 < bench.loop.time() - began < 5
    assert bench.fetches.waiting == 0
    assert len(bench.deadlines) == 0


@pytest.mark.parametrize("wait_ms", [0, -1, -(2**31)])
def test_a_fetch_without_max_wait_completes_at_once(bench: Bench, wait_ms: int) -> None:
    client = bench.client()
    client.fetch(11, {("t", 0): 0}, max_wait_ms=wait_ms, min_bytes=100)
    assert parts_of(client.fetched(11))["t", 0].error_code == 0


@pytest.mark.parametrize("bytes_min", [0, -1])
def test_a_fetch_with_no_min_bytes_completes_at_once(bench: Bench, bytes_min: int) -> None:
    client = bench.client()
    client.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=bytes_min)
    assert parts_of(client.fetched(11))["t", 0].records == b""


BIGGEST, LEAST = 0x7FFFFFFF, -0x80000000


@pytest.mark.parametrize("bytes_max", [BIGGEST, 0, -1, LEAST])
@pytest.mark.parametrize("part_bytes", [BIGGEST, 0, -1, LEAST])
@pytest.mark.parametrize("bytes_min", [BIGGEST, 0, LEAST])
@pytest.mark.parametrize("version", [4, 11, 17])
def test_extreme_limits_of_a_fetch_are_accepted(
    bench: Bench, version: int, bytes_max: int, part_bytes: int, bytes_min: int
) -> None:
    client = bench.client()
    client.append(b"one")
    client.append(b"two")
    bench.fetches.reader.bytes_max = BIGGEST
    client.fetch(
        version,
        {("t", 0): part_at(0, part_bytes), ("t", 1): part_at(0, part_bytes)},
        max_wait_ms=50,
        max_bytes=bytes_max,
        min_bytes=bytes_min,
    )
    found = parts_of(client.fetched(version))
    assert values_of(found["t", 0]) == [b"one", b"two"][: 2 if min(bytes_max, part_bytes) > 0 else 1]
    assert {one.error_code for one in found.values()} == {0}


@pytest.mark.parametrize(("bytes_max", "part_bytes"), [(5000, 1 << 20), (1 << 20, 2500), (4000, 4000)])
def test_a_fetch_with_equal_min_and_max_bytes_completes_with_whole_batches(
    bench: Bench, bytes_max: int, part_bytes: int
) -> None:
    client = bench.client()
    for index in (0, 1):
        for _ in range(10):
            client.append(b"x" * 700, index=index)
    client.fetch(
        11,
        {("t", index): part_at(0, part_bytes) for index in (0, 1)},
        max_wait_ms=LONG_MS,
        max_bytes=bytes_max,
        min_bytes=min(bytes_max, 2 * part_bytes),
    )
    assert values_of(parts_of(client.fetched(11))["t", 0])


def test_min_bytes_above_the_limits_do_not_delay_a_fetch(bench: Bench) -> None:
    client = bench.client()
    for _ in range(5):
        client.append(b"x" * 1000)
    client.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS, max_bytes=2000, min_bytes=BIGGEST)
    assert len(values_of(parts_of(client.fetched(11))["t", 0])) == 1


def test_a_fetch_from_an_inactive_segment_completes_at_once(bench: Bench) -> None:
    bench.put("t", 3, segment_bytes=3000)
    client = bench.client()
    for _ in range(5):
        client.append(b"x" * 1000)
    client.fetch(11, {("t", 0): part_at(0, BIGGEST)}, max_wait_ms=LONG_MS, max_bytes=BIGGEST, min_bytes=5000)
    assert len(values_of(parts_of(client.fetched(11))["t", 0])) == 2


def test_a_fetch_without_partitions_completes_at_once(bench: Bench) -> None:
    client = bench.client()
    client.fetch(11, {}, max_wait_ms=LONG_MS)
    assert client.fetched(11).responses == []


@pytest.mark.parametrize("version", [11, 17])
def test_the_deletion_of_a_topic_completes_delayed_fetches(bench: Bench, version: int) -> None:
    reader = bench.client()
    reader.fetch(version, {("t", 0): 0, ("u", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    list(bench.manager.deleting("t", IDS["t"]))
    found = parts_of(reader.fetched(version))
    unknown = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    assert found["t", 0].error_code in unknown
    assert found["u", 0].error_code == 0
    assert len(bench.partition("u").delayed.fetches) == 0


def test_a_new_leader_completes_delayed_fetches(bench: Bench) -> None:
    reader, knowing = bench.client(), bench.client()
    reader.fetch(10, {("t", 0): 0, ("u", 0): 0}, max_wait_ms=LONG_MS)
    knowing.fetch(11, {("t", 0): part_at(0, current_leader_epoch=0)}, max_wait_ms=LONG_MS)
    waits(bench, 2)
    bench.partition().apply_state(2, 6, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    assert parts_of(reader.fetched(10))["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert parts_of(knowing.fetched(11))["t", 0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(("version", "leader"), [(4, NODE), (11, NODE), (11, 2)])
def test_a_fetch_waits_above_the_high_watermark_but_not_above_the_log_end(
    bench: Bench, version: int, leader: int
) -> None:
    """After a change of the leader its offset may be above the high watermark of this broker."""
    writer, reader = bench.client(), bench.client()
    writer.append(b"a")
    bench.partition().apply_state(leader, 6, (NODE, 2), (NODE, 2), partition_epoch=-1, now_ms=0)
    bench.partition().high_watermark = 0
    reader.fetch(version, {("t", 0): 2}, max_wait_ms=LONG_MS)
    # A follower may lack records that the consumer has read from another broker.
    above = ErrorCode.OFFSET_OUT_OF_RANGE if leader == NODE else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert parts_of(reader.fetched(version))["t", 0].error_code == above
    reader.fetch(version, {("t", 0): 1}, max_wait_ms=LONG_MS)
    waits(bench)
    if leader == NODE:
        bench.partition().fetched_by(2, 1, 0, NOW)
    else:
        data = batch(b"b", base_offset=1, leader_epoch=6)
        bench.partition().append_from_leader(data, 2, 0, NOW)
    found = parts_of(reader.fetched(version))["t", 0]
    assert (found.error_code, found.high_watermark) == (0, 1 if leader == NODE else 2)
    assert values_of(found, 1) == ([] if leader == NODE else [b"b"])


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.NOT_LEADER_OR_FOLLOWER), (5, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    + [(version, ErrorCode.KAFKA_STORAGE_ERROR) for version in (6, 11)],
)
def test_a_storage_error_completes_delayed_fetches(bench: Bench, version: int, code: ErrorCode) -> None:
    reader = bench.client()
    reader.fetch(version, {("t", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    bench.partition().mark_offline("the disk is gone")
    assert parts_of(reader.fetched(version))["t", 0].error_code == code


def holds_nothing(fetch: DelayedFetch) -> bool:
    """Whether only a distant deadline refers to the fetch."""
    return not (fetch.request.partitions or fetch.results.partitions or fetch.registered_on)


def test_closing_the_connection_removes_a_delayed_fetch(bench: Bench) -> None:
    reader, other = bench.client(), bench.client()
    reader.fetch(11, {("t", 0): 0, ("u", 0): 0}, max_wait_ms=0x7FFFFFFF)
    other.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench, 2)
    reader.close()
    waits(bench, 1)
    assert len(bench.partition().delayed.fetches) == 1
    assert len(bench.partition("u").delayed.fetches) == 0
    kept = [entry[2] for entry in bench.deadlines._heap if entry[2].connection is reader.connection]
    assert [holds_nothing(one) for one in kept] == [True]
    bench.client().append(b"a")
    assert values_of(parts_of(other.fetched(11))["t", 0]) == [b"a"]


def test_closing_the_connection_cancels_a_scheduled_completion(bench: Bench) -> None:
    reader, writer = bench.client(), bench.client()
    reader.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    writer.produce(9, {("t", 0): batch(b"a")})
    reader.connection.close("gone") if bench.fetches._scheduled else None
    reader.close()
    assert writer.produced(9)[0].error_code == 0
    bench.turn()
    assert bench.fetches.waiting == 0


def test_a_produce_behind_a_delayed_fetch_is_handled_after_it(bench: Bench) -> None:
    client = bench.client()
    fetch = client.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench)
    produce = client.produce(9, {("t", 0): batch(b"mine")})
    assert client.is_silent()
    assert bench.client().append(b"a") == 0
    assert values_of(parts_of(client.fetched(11, fetch))["t", 0]) == [b"a"]
    assert client.produced(9, produce)[0].base_offset == 1


def test_a_fetch_behind_a_delayed_fetch_is_handled_after_it(bench: Bench) -> None:
    client = bench.client()
    first = client.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS)
    second = client.fetch(11, {("t", 1): 0}, max_wait_ms=0)
    waits(bench)
    assert client.is_silent()
    bench.client().append(b"a")
    assert values_of(parts_of(client.fetched(11, first))["t", 0]) == [b"a"]
    assert list(parts_of(client.fetched(11, second))) == [("t", 1)]


def test_hundreds_of_delayed_fetches_of_one_partition_complete(bench: Bench) -> None:
    readers = [bench.client() for _ in range(200)]
    for reader in readers:
        reader.fetch(11, {("t", 0): 0}, max_wait_ms=LONG_MS)
    waits(bench, 200)
    bench.client().append(b"a")
    for reader in readers:
        assert values_of(parts_of(reader.fetched(11))["t", 0]) == [b"a"]


def test_distant_deadlines_do_not_accumulate(bench: Bench) -> None:
    reader, writer = bench.client(), bench.client()
    for number in range(50):
        reader.fetch(11, {("t", 0): number}, max_wait_ms=0x7FFFFFFF)
        waits(bench)
        writer.append(b"%d" % number)
        reader.fetched(11)
    assert all(holds_nothing(entry[2]) for entry in bench.deadlines._heap)


def test_topics_are_found_by_id(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    client.fetch(17, {("t", 0): 0})
    response = client.fetched(17)
    assert [topic.topic_id for topic in response.responses] == [IDS["t"]]
    assert [topic_name(topic) for topic in response.responses] == ["t"]
    list(bench.manager.deleting("t", IDS["t"]))
    client.fetch(17, {("t", 0): 0})
    assert parts_of(client.fetched(17))["t", 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
