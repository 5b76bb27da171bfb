"""Produce in every version over a connection, with the generated codec: responses, errors, delays, order."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths_bench import (
    IDS,
    NOW,
    OFFSETS,
    PRODUCE,
    Bench,
    HeldExecutor,
    batch,
    bench_in,
    produce_request,
    topic_name,
)

from default_limits import iter_records
from tidemill.broker.produce_codec import TEXTS_BYTES_MAX, Refused
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.records import batch as layout
from tidemill.records.batch import GZIP, parse_batch
from tidemill.records.checksum import crc32c
from tidemill.replication.partition import Partition
from tidemill.wire.header import decode_response, encode_request

VERSIONS = range(3, 14)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two topics, and the handlers for them."""
    with bench_in(tmp_path) as one:
        yield one


def stored(bench: Bench, topic: str = "t", index: int = 0) -> list[bytes]:
    """Returns the values in a log."""
    partition = bench.partition(topic, index)
    found: list[bytes] = []
    while True:
        offset = len(found)
        part = partition.log.read(offset, 1 << 24, partition.log.end_offset, True)
        if part is None:
            return found
        records = list(iter_records(part.read(), offset))
        assert [one.offset for one in records] == list(range(offset, offset + len(records)))
        found += [one.value or b"" for one in records]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_and_responds(bench: Bench, version: int) -> None:
    client = bench.client()
    bench.partition("u").log.append(parse_batch(batch(b"x"), 0, len(batch(b"x"))), 0, NOW)
    parts = {("t", 0): batch(b"a", b"b"), ("t", 2): batch(b"c"), ("u", 0): batch(b"d")}
    number = client.produce(version, parts)
    response = client.answer(PRODUCE, version, number)
    assert response.throttle_time_ms == 0
    assert [topic_name(topic) for topic in response.responses] == ["t", "u"]
    answers = {
        (topic_name(topic), part.index): part
        for topic in response.responses
        for part in topic.partition_responses
    }
    assert list(answers) == list(parts)
    for (topic, _), part in answers.items():
        assert part.error_code == 0
        assert part.base_offset == (1 if topic == "u" else 0)
        assert part.log_append_time_ms == -1
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert part.record_errors == []
        assert part.error_message is None
    assert stored(bench) == [b"a", b"b"]
    assert stored(bench, "t", 2) == [b"c"]
    assert stored(bench, "u") == [b"x", b"d"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_the_error_of_each_partition(bench: Bench, version: int) -> None:
    client = bench.client()
    damaged = bytearray(batch(b"damaged"))
    damaged[-1] ^= 1
    parts = {
        ("t", 0): batch(b"good"),
        ("t", 1): bytes(damaged),
        ("t", 3): batch(b"no such partition"),
        ("nowhere", 0): batch(b"no such topic"),
        ("u", 0): batch(b"good too"),
    }
    client.produce(version, parts)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    expected = [0, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown, 0]
    answers = client.produced(version)
    assert [part.error_code for part in answers] == expected
    assert [part.base_offset for part in answers] == [0, -1, -1, -1, 0]
    # One text for each topic, that of its first partition with an error.
    has_text = [part.error_message is not None for part in answers]
    assert has_text == ([False, True, False, True, False] if version >= 8 else [False] * 5)
    assert bench.produces.errors == {code: expected.count(code) for code in expected if code}


@pytest.mark.parametrize("version", VERSIONS)
def test_refused_records_are_listed(bench: Bench, version: int) -> None:
    bench.put("t", 3, cleanup_policy=("compact",))
    client = bench.client()
    client.produce(version, {("t", 0): batch(b"a", b"b"), ("t", 1): b""})
    first, second = client.produced(version)
    assert first.error_code == ErrorCode.INVALID_RECORD
    assert second.error_code == ErrorCode.INVALID_RECORD
    if version >= 8:
        assert [one.batch_index for one in first.record_errors] == [0, 1]
        assert all("key" in one.batch_index_error_message for one in first.record_errors)
        assert "key" in first.error_message
        assert second.error_message is None  # One text for each topic.
    else:
        assert first.record_errors == []


@pytest.mark.parametrize("version", [8, 9, 12])
def test_the_response_to_thousands_of_unknown_partitions_is_small(bench: Bench, version: int) -> None:
    client = bench.client()
    parts = {("t", index): b"" for index in range(1000, 3000)}
    parts |= {("no such topic", index): b"" for index in range(2_000)}
    request = produce_request(version, parts)
    # A repeated topic is one topic.
    for _ in range(2):
        request.topic_data += produce_request(version, {("again", 7): b""}).topic_data
    sent = len(encode_request(PRODUCE, version, 1, "client", request))
    client.send(PRODUCE, version, request)
    frame = client.frame()
    assert len(frame) < 6 * sent
    response = decode_response(PRODUCE, version, frame)[1]
    texts = [[part.error_message for part in topic.partition_responses] for topic in response.responses]
    assert [sum(text is not None for text in topic) for topic in texts] == [1, 1, 1, 0]
    assert texts[0][0] == "t-1000 does not exist"
    codes = {part.error_code for topic in response.responses for part in topic.partition_responses}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_texts_of_refused_records_are_limited(bench: Bench) -> None:
    bench.put("t", 200, cleanup_policy=("compact",))
    client = bench.client()
    data = batch(*[b""] * 100, codec=GZIP)
    request = produce_request(9, {("t", index): data for index in range(200)})
    client.send(PRODUCE, 9, request)
    frame = client.frame()
    assert len(frame) < 2 * TEXTS_BYTES_MAX
    (topic,) = decode_response(PRODUCE, 9, frame)[1].responses
    assert {part.error_code for part in topic.partition_responses} == {ErrorCode.INVALID_RECORD}
    assert [len(part.record_errors) for part in topic.partition_responses[:3]] == [100, 100, 100]
    assert topic.partition_responses[-1].record_errors == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_log_append_time_is_returned_and_stored(bench: Bench, version: int) -> None:
    bench.put("t", 3, message_timestamp_type="LogAppendTime")
    bench.clock.now_ms = NOW + 5000
    client = bench.client()
    client.produce(version, {("t", 0): batch(b"a", b"b")})
    (part,) = client.produced(version)
    assert (part.error_code, part.log_append_time_ms) == (0, NOW + 5000)
    found = bench.partition().log.read(0, 1 << 20, 2, True)
    assert found is not None
    assert {(one.timestamp, int(one.timestamp_type)) for one in iter_records(found.read())} == {
        (NOW + 5000, 1)
    }


@pytest.mark.parametrize("version", [8, 9, 13])
@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_invalid_acks_are_refused(bench: Bench, version: int, acks: int) -> None:
    client = bench.client()
    client.produce(version, {("t", 0): batch(b"a")}, acks)
    (part,) = client.produced(version)
    assert (part.error_code, part.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert stored(bench) == []


@pytest.mark.parametrize("version", range(14))
def test_a_transactional_batch_without_a_transactional_id_is_refused(bench: Bench, version: int) -> None:
    client = bench.client()
    data = bytearray(batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
    data[layout.ATTRIBUTES + 1] |= layout.TRANSACTIONAL_FLAG
    data[layout.CRC : layout.CRC + 4] = struct.pack(">I", crc32c(bytes(data[layout.ATTRIBUTES :])))
    client.produce(version, {("t", 0): bytes(data), ("u", 0): batch(b"b")})
    answers = client.produced(version)
    assert {part.error_code for part in answers} == {ErrorCode.INVALID_TXN_STATE}
    assert stored(bench) == stored(bench, "u") == []
    client.append(b"c")
    client.fetch(11, {("t", 0): 0}, isolation_level=1)
    (part,) = client.fetched(11).responses[0].partitions
    assert (part.last_stable_offset, part.high_watermark) == (1, 1)


@pytest.mark.parametrize("version", range(14))
def test_a_produce_to_an_internal_topic_is_refused(bench: Bench, version: int) -> None:
    bench.put(OFFSETS, 1, cleanup_policy=("compact",))
    client = bench.client()
    client.produce(version, {(OFFSETS, 0): batch(b"forged"), ("t", 0): batch(b"a")})
    refused, stored_beside = client.produced(version)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert (stored_beside.error_code, stored_beside.base_offset) == (0, 0)
    assert stored(bench, OFFSETS) == []
    # Also on a follower: no broker admits writes of clients to the topic.
    bench.partition(OFFSETS).apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    client.produce(version, {(OFFSETS, 0): batch(b"forged")})
    assert client.produced(version)[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_acks_0_has_no_response(bench: Bench) -> None:
    client = bench.client()
    for number in range(5):
        client.produce(9, {("t", 0): batch(b"%d" % number)}, acks=0)
    last = client.produce(9, {("t", 0): batch(b"last")}, acks=1)
    (part,) = client.produced(9, last)
    assert part.base_offset == 5
    assert client.is_silent()


def test_an_error_with_acks_0_closes_the_connection(bench: Bench) -> None:
    client = bench.client()
    client.produce(9, {("t", 0): batch(b"a"), ("t", 9): batch(b"b")}, acks=0)
    assert client.is_closed()
    assert stored(bench) == [b"a"]
    assert bench.others.closed == [
        "a Produce request with acks=0 failed: partition 9 of 't': UNKNOWN_TOPIC_OR_PARTITION"
    ]


@pytest.mark.parametrize(
    ("version", "change"),
    [
        (3, lambda data: data[:-1]),
        (3, lambda data: data[:-10]),
        (9, lambda data: data[:-1]),
        (9, lambda data: data[:-20]),
        (13, lambda data: data[:-1] + b"\1"),
    ],
)
def test_a_request_that_exceeds_its_frame_appends_nothing(bench: Bench, version: int, change: object) -> None:
    client = bench.client()
    good = encode_request(PRODUCE, version, 1, "client", produce_request(version, {("t", 0): batch(b"a")}))
    body = change(good[4:])  # type: ignore[operator]
    # The next frame follows: the missing bytes must not be read from it.
    client.send_bytes(struct.pack(">i", len(body)) + body + good)
    assert client.is_closed()
    assert stored(bench) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_the_request_in_its_frame_are_ignored(bench: Bench, version: int) -> None:
    client = bench.client()
    good = encode_request(PRODUCE, version, 1, "client", produce_request(version, {("t", 0): batch(b"a")}))
    client.correlation_id = 1
    client.send_bytes(struct.pack(">i", len(good) - 4 + 3) + good[4:] + b"\0\1\2")
    assert client.produced(version)[0].error_code == 0
    assert client.append(b"b") == 1


@pytest.mark.parametrize("version", [3, 9])
def test_a_topic_without_a_name_is_malformed(bench: Bench, version: int) -> None:
    client = bench.client()
    good = encode_request(PRODUCE, version, 1, None, produce_request(version, {("t", 0): batch(b"a")}))
    name = b"\2t" if version == 9 else b"\0\1t"
    at = good.index(name)
    body = good[4:at] + (b"\0" if version == 9 else b"\xff\xff") + good[at + len(name) :]
    client.send_bytes(struct.pack(">i", len(body)) + body)
    assert client.is_closed()
    assert "name is null" in bench.others.closed[0]


def test_a_partition_may_have_one_batch_only(bench: Bench) -> None:
    client = bench.client()
    old = bytearray(batch(b"a"))
    old[layout.MAGIC] = 1
    for records, code in (
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (batch(b"a") + b"\0", ErrorCode.INVALID_RECORD),
        (bytes(old), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:60], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (batch(b"a" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    ):
        client.produce(9, {("t", 0): records})
        (part,) = client.produced(9)
        assert part.error_code == code, (part, len(records))
    assert stored(bench) == []


def test_wrong_record_counts_with_a_valid_checksum_are_refused(bench: Bench) -> None:
    client = bench.client()
    for position, value in (
        (layout.RECORD_COUNT, 1),
        (layout.RECORD_COUNT, 3),
        (layout.RECORD_COUNT, 2_000_000_000),
        (layout.RECORD_COUNT, -1),
        (layout.LAST_OFFSET_DELTA, 0),
        (layout.LAST_OFFSET_DELTA, 2),
        (layout.LAST_OFFSET_DELTA, 0x7FFFFFFF),
    ):
        data = bytearray(batch(b"a", b"b"))
        data[position : position + 4] = struct.pack(">i", value)
        data[layout.CRC : layout.CRC + 4] = struct.pack(">I", crc32c(bytes(data[layout.ATTRIBUTES :])))
        client.produce(9, {("t", 0): bytes(data)})
        (part,) = client.produced(9)
        assert part.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), (position, value)
    assert stored(bench) == []


def test_duplicates_of_an_idempotent_producer_get_the_first_response(bench: Bench) -> None:
    client = bench.client()
    first = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    second = batch(b"c", producer_id=7, producer_epoch=0, base_sequence=2)
    gap = batch(b"d", producer_id=7, producer_epoch=0, base_sequence=5)
    answers = []
    for data in (first, second, first, second, gap):
        client.produce(9, {("t", 0): data})
        (part,) = client.produced(9)
        answers.append((part.error_code, part.base_offset))
    assert answers == [(0, 0), (0, 2), (0, 0), (0, 2), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert stored(bench) == [b"a", b"b", b"c"]


def test_acks_all_is_refused_below_min_insync_replicas(bench: Bench) -> None:
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    client = bench.client()
    for acks, code in ((-1, ErrorCode.NOT_ENOUGH_REPLICAS), (1, 0)):
        client.produce(9, {("t", 0): batch(b"%d" % acks)}, acks)
        (part,) = client.produced(9)
        assert part.error_code == code
    assert stored(bench) == [b"1"]


def test_a_follower_returns_not_leader(bench: Bench) -> None:
    bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    client = bench.client()
    client.produce(9, {("t", 0): batch(b"a"), ("t", 1): batch(b"b")})
    assert [part.error_code for part in client.produced(9)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


def test_the_deletion_of_a_topic_fails_delayed_produces(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client = bench.client()
        client.produce(9, {("t", 0): batch(b"a"), ("u", 0): batch(b"b")})
        assert client.is_silent()
        list(bench.manager.deleting("t", IDS["t"]))
        assert [(part.error_code, part.base_offset) for part in client.produced(9)] == [
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (0, 0),
        ]
        disk.run()


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_response_waits_for_the_flush_of_flush_messages(tmp_path: Path, acks: int) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client, reader = bench.client(), bench.client()
        client.produce(9, {("t", 0): batch(b"a"), ("t", 1): batch(b"b")}, acks)
        reader.fetch(11, {("t", 0): 0})
        assert reader.fetched(11).responses[0].partitions[0].high_watermark == 0
        assert client.is_silent()
        disk.run()
        assert [part.error_code for part in client.produced(9)] == [0, 0]
        reader.fetch(11, {("t", 0): 0})
        assert reader.fetched(11).responses[0].partitions[0].high_watermark == 1
        assert bench.partition().delayed.append_count == 0


def test_a_response_with_acks_1_waits_for_the_flush_only(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        bench.partition().apply_state(1, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
        client, both = bench.client(), bench.client()
        client.produce(9, {("t", 0): batch(b"a")}, acks=1)
        bench.turn()
        both.produce(9, {("t", 0): batch(b"b")}, acks=-1)
        assert client.is_silent()
        disk.run()
        assert [part.error_code for part in client.produced(9)] == [0]
        assert bench.partition().high_watermark == 0
        client.produce(9, {("t", 0): batch(b"c")}, acks=1)
        bench.turn()
        bench.partition().apply_state(2, 6, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
        for one in (client, both):
            assert [part.error_code for part in one.produced(9)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        while disk.jobs:
            disk.run()
            bench.turn()
        assert bench.partition().delayed.append_count == 0


def test_a_response_does_not_wait_for_other_flushes(tmp_path: Path) -> None:
    """With flush.messages=3 the third record waits for the flush, and later records too."""
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=3)
        bench.partition().apply_state(1, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
        client = bench.client()
        for number in range(2):
            client.produce(9, {("t", 0): batch(b"%d" % number)}, acks=1)
            assert client.produced(9)[0].error_code == 0
        third = client.produce(9, {("t", 0): batch(b"2")}, acks=1)
        bench.turn()
        fourth = client.produce(9, {("t", 0): batch(b"3")}, acks=1)
        assert client.is_silent()
        disk.run()
        assert [client.produced(9, number)[0].base_offset for number in (third, fourth)] == [2, 3]
        assert not disk.jobs


def test_a_delayed_produce_holds_no_records(bench: Bench) -> None:
    bench.partition().apply_state(1, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    client = bench.client()
    value, waiting = bytes(700_000), 10
    client.produce(9, {("t", 0): batch(b"a")})
    assert client.is_silent()
    tracemalloc.start()
    try:
        for number in range(waiting):
            client.produce(9, {("t", 0): batch(value)})
            bench.until(lambda wanted=2 + number: bench.partition().delayed.append_count == wanted)  # type: ignore[misc]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(value)


def test_a_refused_result_holds_no_stack_frames() -> None:
    try:
        try:
            raise OSError("disk full")
        except OSError as problem:
            raise KafkaError("not stored") from problem
    except KafkaError as error:
        refused = Refused(0, error)
    error = refused.error
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # with a socket
def test_a_stopped_broker_with_a_delayed_produce_leaks_no_partition(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        bench.partition().apply_state(1, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
        client = bench.client()
        client.produce(9, {("t", 0): batch(b"a")})
        assert client.is_silent()
        assert bench.partition().delayed.append_count == 1
        where = bench.partition().log.directory
    del bench, client
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Partition) and one.log.directory == where]
    assert len(left) == 0


def test_produces_behind_delayed_ones_are_appended_and_answered_in_order(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client = bench.client()
        numbers = []
        for number in range(10):
            # Every second one is for a topic whose appends do not wait.
            where = ("t", 0) if number % 2 == 0 else ("u", 0)
            numbers.append(client.produce(9, {where: batch(b"%d" % number)}))
        assert client.is_silent()
        assert len(stored(bench)) == len(stored(bench, "u")) == 5
        while disk.jobs:
            disk.run()
            bench.turn()
        offsets = [client.produced(9, number)[0].base_offset for number in numbers]
        assert offsets == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_the_response_to_a_duplicate_waits_for_the_commit_of_the_original(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        first, second = bench.client(), bench.client()
        data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        first.produce(9, {("t", 0): data})
        bench.turn()
        second.produce(9, {("t", 0): data})
        assert first.is_silent()
        assert second.is_silent()
        disk.run()
        assert first.produced(9)[0].base_offset == second.produced(9)[0].base_offset == 0


def test_a_timeout_completes_a_delayed_produce_in_order(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client = bench.client()
        number = client.produce(9, {("t", 0): batch(b"a")}, timeout_ms=60_000)
        hasty = client.produce(9, {("t", 0): batch(b"b"), ("u", 0): batch(b"c")}, timeout_ms=20)
        bench.until(lambda: bench.partition().delayed.append_count == 2)
        bench.turn(0.1)
        assert not client.has_answer()
        disk.run()
        (part,) = client.produced(9, number)
        assert (part.error_code, part.base_offset) == (0, 0)
        timed_out, done = client.produced(9, hasty)
        assert (timed_out.error_code, timed_out.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert (timed_out.log_append_time_ms, timed_out.log_start_offset) == (-1, -1)
        assert (done.error_code, done.base_offset) == (0, 0)
        while disk.jobs:
            disk.run()
            bench.turn()


def test_closing_the_connection_releases_a_delayed_produce(tmp_path: Path) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client, other = bench.client(), bench.client()
        client.produce(9, {("t", 0): batch(b"a")}, timeout_ms=0x7FFFFFFF)
        bench.turn()
        other.produce(9, {("t", 0): batch(b"b")})
        client.close()
        bench.turn()
        while disk.jobs:
            disk.run()
            bench.turn()
        assert other.produced(9)[0].base_offset == 1
        assert bench.partition().delayed.append_count == 0
        (waiting,) = [entry[2] for entry in bench.deadlines._heap if entry[2].connection is client.connection]
        # Its deadline refers to it, but not to the records.
        assert (waiting.response, waiting.awaited) == (None, [])


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    + [(version, ErrorCode.KAFKA_STORAGE_ERROR) for version in (4, 9)],
)
def test_a_failed_flush_fails_all_delayed_produces(tmp_path: Path, version: int, code: ErrorCode) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        client = bench.client()
        numbers = [client.produce(version, {("t", 0): batch(b"%d" % number)}) for number in range(3)]
        bench.turn()
        for future, _, _ in disk.jobs:
            future.set_exception(StorageError("the disk is gone"))
        for number in numbers:
            (part,) = client.produced(version, number)
            assert part.error_code == code
        disk.jobs.clear()


def test_a_costly_batch_is_appended_before_later_requests_of_its_connection(bench: Bench) -> None:
    client, other = bench.client(), bench.client()
    slow = client.produce(9, {("t", 0): batch(*[b"x" * 100] * 40_000, codec=4)})
    quick = [client.produce(9, {("t", 0): batch(b"%d" % number)}) for number in range(5)]
    other.produce(9, {("t", 1): batch(b"beside")})
    assert other.produced(9)[0].base_offset == 0
    assert bench.preparation.submitted == 1
    assert client.produced(9, slow)[0].base_offset == 0
    assert [client.produced(9, number)[0].base_offset for number in quick] == [40_000 + n for n in range(5)]


@pytest.mark.parametrize("is_congested", [False, True])
def test_requests_behind_a_blocking_one_are_appended_right_after_it(
    tmp_path: Path, *, is_congested: bool
) -> None:
    disk = HeldExecutor()
    with bench_in(tmp_path, syncers=disk) as bench:
        bench.put("t", 3, flush_messages=1)
        bench.produces.set_congested(is_congested)
        client = bench.client()
        values = [b"a"] if is_congested else [b"x" * 100] * 40_000
        blocking = client.produce(9, {("t", 0): batch(*values, codec=0 if is_congested else 4)})
        quick = [client.produce(9, {("t", 0): batch(b"%d" % number)}) for number in range(2)]
        bench.turn()
        bench.produces.set_congested(False)
        # They are appended before the first request is flushed, and without further bytes.
        bench.until(lambda: bench.partition().delayed.append_count == 3)
        assert not client.has_answer()
        while disk.jobs:
            disk.run()
            bench.turn()
        numbers = [blocking, *quick]
        offsets = [0, len(values), len(values) + 1]
        assert [client.produced(9, number)[0].base_offset for number in numbers] == offsets


def test_a_fetch_behind_a_costly_batch_returns_it(bench: Bench) -> None:
    client = bench.client()
    slow = client.produce(9, {("t", 0): batch(*[b"x" * 100] * 40_000, codec=3)}, acks=1)
    fetch = client.fetch(11, {("t", 0): 0})
    assert client.produced(9, slow)[0].error_code == 0
    assert client.fetched(11, fetch).responses[0].partitions[0].high_watermark == 40_000


def test_an_invalid_costly_batch_with_acks_0_closes_the_connection(bench: Bench) -> None:
    client = bench.client()
    damaged = bytearray(batch(*[b"x" * 100] * 40_000, codec=4))
    damaged[-1] ^= 1
    client.produce(9, {("t", 0): bytes(damaged)}, acks=0)
    bench.until(lambda: bool(client.connection.closed))
    assert stored(bench) == []


def test_closing_the_connection_during_the_validation_drops_the_batch(bench: Bench) -> None:
    client = bench.client()
    client.produce(9, {("t", 0): batch(*[b"x" * 100] * 40_000, codec=4)})
    bench.until(lambda: bench.preparation.submitted == 1)
    client.close()
    bench.until(lambda: not bench.preparation.tasks)
    assert client.is_closed()
    bench.client().append(b"after")


def test_a_congested_disk_holds_one_request_of_each_connection(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    bench.produces.set_congested(True)
    numbers = [first.produce(9, {("t", 0): batch(b"%d" % number)}) for number in range(3)]
    second.produce(9, {("t", 1): batch(b"other")})
    assert first.is_silent()
    assert len(bench.produces.congested_requests) == 2
    assert stored(bench) == []
    bench.produces.set_congested(False)
    assert [first.produced(9, number)[0].base_offset for number in numbers] == [0, 1, 2]
    assert second.produced(9)[0].base_offset == 0


def test_requests_that_wait_for_the_disk_are_counted_after_the_connection_is_closed(bench: Bench) -> None:
    bench.produces.set_congested(True)
    for number in range(3):
        client = bench.client()
        client.produce(9, {("t", 0): batch(b"%d" % number)}, acks=0)
        bench.until(lambda wanted=number + 1: len(bench.produces.congested_requests) == wanted)  # type: ignore[misc]
        client.connection.close("gone")
    assert (
        bench.memory.reserved == sum(len(one.data) for one in bench.produces.congested_requests.values()) > 0
    )
    held = bench.memory.reserved
    waiting = bench.client()
    waiting.produce(9, {("t", 0): batch(b"to be sent again")}, acks=1)
    bench.until(lambda: len(bench.produces.congested_requests) == 4)
    waiting.connection.close("gone")
    assert len(bench.produces.congested_requests) == 3
    assert bench.memory.reserved == held
    bench.produces.set_congested(False)
    assert bench.memory.reserved == 0
    assert bench.client().append(b"after") == 3


def test_topic_names_that_are_not_utf8_are_unknown(bench: Bench) -> None:
    client = bench.client()
    good = encode_request(PRODUCE, 9, 1, None, produce_request(9, {("t", 0): batch(b"a")}))
    at = good.index(b"\2t")
    body = good[4:at] + b"\3\xff\xfe" + good[at + 2 :]
    client.correlation_id = 1
    client.send_bytes(struct.pack(">i", len(body)) + body)
    frame = client.frame()
    assert b"\3\xff\xfe" in frame  # The response has the name that was sent.
    assert struct.pack(">ih", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) in frame


def test_topics_are_found_by_id_in_version_13(bench: Bench) -> None:
    client = bench.client()
    client.produce(13, {("u", 0): batch(b"a")})
    response = client.answer(PRODUCE, 13)
    assert response.responses[0].topic_id == IDS["u"]
    assert stored(bench, "u") == [b"a"]
