"""Fetch 0 to 3 and Produce 0 to 2 over a real broker: limits, truncated messages, long conversions."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_peers import Peer, check_log, make_topic, normal_client, peak_mb, under_attack

from default_limits import EntryCursor
from record_builders import build_batch, build_message_set
from tidemill.broker.down_conversion import SOURCE_BYTES
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import GZIP, LZ4, NO_COMPRESSION, SNAPPY, ZSTD
from tidemill.records.legacy_formats import parse_entry
from tidemill.records.message_set import wrap
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

OLD = (0, 1, 2, 3)
GROWTH_MB_MAX = 120
WORKER_MB_MAX = 400
"""The memory of a process that unpacks a batch of the largest allowed size, in plain Python."""
KILLED_MIN, KILLED_MAX = 5, 12
ALL = 1 << 25
CUT = bytes.fromhex("ffffffffffffffff")
REFUSED = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"message.max.bytes": "1048588", "log.retention.ms": "-1"}) as one:
        yield one
        check_log(one)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic for this test."""
    return f"old-{abs(hash(request.node.name))}"


def produce(broker: Broker, topic: str, records: bytes, version: int = 2) -> Any:
    with Peer(broker, 60) as peer:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
        asked = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        return peer.ask(ApiKey.PRODUCE, version, asked).responses[0].partition_responses[0]


def asked(topic: str, offset: int, bytes_max: int, partitions: int = 1, **fields: Any) -> FetchRequest:
    parts = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
        for index in range(partitions)
    ]
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": ALL, **fields}
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=parts)], **values)


def fetch(broker: Broker, version: int, topic: str, offset: int, bytes_max: int = ALL) -> Any:
    with Peer(broker, 60) as peer:
        return peer.ask(ApiKey.FETCH, version, asked(topic, offset, bytes_max)).responses[0].partitions[0]


def stored(broker: Broker, topic: str) -> bytes:
    return (Path(broker.data_dir) / f"{topic}-0" / "00000000000000000000.log").read_bytes()


def read_whole(data: bytes) -> tuple[list[tuple[int, bytes | None, bytes | None]], bytes]:
    """Returns offset, key and value of the whole messages, also of those in wrappers, and the rest."""
    found = []
    position = 0
    while position + 12 <= len(data):
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < 14 or position + 12 + size > len(data):
            break
        cursor = EntryCursor(parse_entry(data, position, len(data)))
        while cursor.step():
            found.append((int(cursor.offset), cursor.key, cursor.value))
        position += 12 + size
    return found, data[position:]


def read_on(broker: Broker, version: int, topic: str, end: int, bytes_max: int = 1 << 20) -> list[Any]:
    """Fetches all records up to ``end``, as consumers of these versions do."""
    found: list[Any] = []
    while not found or found[-1][0] < end - 1:
        offset = found[-1][0] + 1 if found else 0
        part = fetch(broker, version, topic, offset, bytes_max)
        assert part.error_code == 0
        more = [one for one in read_whole(part.records)[0] if one[0] >= offset]
        assert more, f"no whole message from offset {offset} on"
        found += more
    return found


def records(first: int, count: int, size: int = 100) -> list[tuple[int, bytes, bytes]]:
    noise = random.Random(first)
    return [(1000 + n, b"%d" % n, noise.randbytes(size)) for n in range(first, first + count)]


def batch(first: int, count: int, codec: int = NO_COMPRESSION, size: int = 100) -> bytes:
    return build_batch([(*one, [("h", b"1")]) for one in records(first, count, size)], codec)


def said(first: int, count: int, size: int = 100) -> list[tuple[int, bytes, bytes]]:
    return [(first + at, key, value) for at, (_, key, value) in enumerate(records(first, count, size))]


# -- limits, and truncated messages


@pytest.mark.parametrize("version", OLD)
def test_the_last_message_is_truncated_at_the_limit(broker: Broker, topic: str, version: int) -> None:
    make_topic(broker, topic, message_format_version="0.9.0")
    assert produce(broker, topic, build_message_set(0, records(0, 10))).error_code == 0
    log = stored(broker, topic)
    first = 12 + struct.unpack_from(">i", log, 8)[0]
    for bytes_max in (0, 1, 11, 12, first - 1, first, first + 1, 3 * first - 5, len(log) - 1, len(log), ALL):
        part = fetch(broker, version, topic, 0, bytes_max)
        kept = max(bytes_max, first) if version == 3 else bytes_max
        assert part.records == log[:kept]
        assert part.high_watermark == 10


def test_only_the_first_partition_with_records_has_a_whole_first_message(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 3, message_format_version="0.9.0")
    with Peer(broker) as peer:
        parts = [PartitionProduceData(index=at, records=build_message_set(0, records(0, 5))) for at in (1, 2)]
        data = TopicProduceData(name=topic, partition_data=parts)
        peer.ask(ApiKey.PRODUCE, 2, ProduceRequest(acks=1, timeout_ms=9000, topic_data=[data]))
        for version, sizes in ((2, [0, 20, 20]), (3, [0, 127, 20])):
            answer = peer.ask(ApiKey.FETCH, version, asked(topic, 0, 20, 3)).responses[0]
            assert [len(part.records) for part in answer.partitions][1:] == sizes[1:]
            assert answer.partitions[0].records == b""


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP, SNAPPY, LZ4])
def test_a_batch_larger_than_the_limit_is_converted_whole(
    broker: Broker, topic: str, version: int, codec: int
) -> None:
    make_topic(broker, topic)
    assert produce(broker, topic, batch(0, 200, codec), 8).error_code == 0
    part = fetch(broker, version, topic, 0, 500)
    found, rest = read_whole(part.records)
    assert found == said(0, 200)
    assert not rest


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("header_bytes", [0, 500])
def test_a_response_has_the_announced_size(
    broker: Broker, topic: str, version: int, header_bytes: int
) -> None:
    """The size is sent before the conversion ends. Converted messages are longer, or lose headers."""
    make_topic(broker, topic)
    count, batches = 2 * SOURCE_BYTES // 1000, 4
    written = [said(first, count, 500) for first in range(0, batches * count, count)]
    for messages in written:
        fields = [(1000, key, value, [("h", bytes(header_bytes))]) for _, key, value in messages]
        assert produce(broker, topic, build_batch(fields, NO_COMPRESSION), 8).error_code == 0
    part = fetch(broker, version, topic, 0)
    found, rest = read_whole(part.records)
    expected = [one for messages in written for one in messages]
    assert len(part.records) == len(stored(broker, topic))
    assert rest
    if header_bytes:
        assert found == expected
        offset, size = struct.unpack_from(">qi", rest)
        assert offset == -1
        assert size > len(rest) - 12
    else:
        assert len(found) > len(expected) * 0.9
        assert found == expected[: len(found)]
    assert read_on(broker, version, topic, len(expected), ALL) == expected


@pytest.mark.parametrize("version", OLD)
def test_a_delayed_fetch_returns_converted_records(broker: Broker, topic: str, version: int) -> None:
    make_topic(broker, topic)
    with Peer(broker, 60) as peer:
        answer: list[Any] = []
        request = asked(topic, 0, ALL, max_wait_ms=30_000)
        reader = threading.Thread(target=lambda: answer.append(peer.ask(ApiKey.FETCH, version, request)))
        reader.start()
        assert produce(broker, topic, batch(0, 30), 8).error_code == 0
        reader.join(30)
        assert read_whole(answer[0].responses[0].partitions[0].records)[0] == said(0, 30)


@pytest.mark.parametrize("version", OLD)
def test_offsets_beside_the_log_are_out_of_range(broker: Broker, topic: str, version: int) -> None:
    make_topic(broker, topic)
    assert produce(broker, topic, batch(0, 3), 8).error_code == 0
    for offset in (-1, 4, 1 << 40):
        part = fetch(broker, version, topic, offset)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    part = fetch(broker, version, topic, 3)
    assert (part.error_code, part.records, part.high_watermark) == (0, b"", 3)


@pytest.mark.parametrize("version", OLD)
def test_old_fetch_versions_end_before_a_zstd_batch(broker: Broker, topic: str, version: int) -> None:
    make_topic(broker, topic)
    assert produce(broker, topic, batch(0, 20, GZIP), 8).error_code == 0
    assert produce(broker, topic, batch(20, 20, ZSTD), 8).error_code == 0
    part = fetch(broker, version, topic, 0)
    assert part.error_code == 0
    assert read_whole(part.records)[0] == said(0, 20)
    assert fetch(broker, version, topic, 20).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", OLD)
def test_a_topic_without_down_conversion_serves_known_formats(
    broker: Broker, topic: str, version: int
) -> None:
    make_topic(broker, topic, message_format_version="0.9.0", message_downconversion_enable="false")
    assert produce(broker, topic, build_message_set(0, records(0, 4), GZIP)).error_code == 0
    assert read_whole(fetch(broker, version, topic, 0).records)[0] == said(0, 4)
    made = f"{topic}-new"
    make_topic(broker, made, message_downconversion_enable="false")
    assert produce(broker, made, batch(0, 4), 8).error_code == 0
    part = fetch(broker, version, made, 0)
    assert (part.error_code, part.records) == (ErrorCode.UNSUPPORTED_VERSION, b"")


# -- long conversions


def children(pid: int) -> list[int]:
    """Returns the child processes of ``pid``."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(one) for one in (task / "children").read_text().split()]
    return found


@contextlib.contextmanager
def killing(broker: Broker) -> Iterator[list[int]]:
    """Kills conversion processes, some of them during a job, a few of them two in a row."""
    ending = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while len(killed) < KILLED_MAX and not ending.wait(0.05 if len(killed) % 4 == 3 else 0.2):
            for pid in children(broker.pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        ending.set()
        killer.join()


@pytest.mark.parametrize("version", [0, 2, 3])
def test_consumers_lose_no_record_when_conversion_processes_are_killed(
    broker: Broker, topic: str, version: int
) -> None:
    make_topic(broker, topic)
    batches = 24
    for number in range(batches):
        assert produce(broker, topic, batch(200 * number, 200, GZIP, 1000), 8).error_code == 0
    expected = [one for number in range(batches) for one in said(200 * number, 200, 1000)]
    with normal_client(broker), killing(broker) as killed:
        while len(killed) < KILLED_MIN:
            found: list[Any] = []
            while len(found) < len(expected):
                found += read_patiently(broker, version, topic, len(found))
            assert found == expected


def read_patiently(broker: Broker, version: int, topic: str, offset: int) -> list[Any]:
    """Returns the records of one fetch, or none if it fails because two processes were killed."""
    try:
        part = fetch(broker, version, topic, offset, 1 << 20)
    except ConnectionError:
        return []
    if part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return []
    assert part.error_code == 0, offset
    return [one for one in read_whole(part.records)[0] if one[0] >= offset]


@pytest.mark.parametrize("magic", [0, 1])
def test_producers_lose_no_record_when_conversion_processes_are_killed(
    broker: Broker, topic: str, magic: int
) -> None:
    make_topic(broker, topic)
    taken: list[Any] = []
    with killing(broker):
        for number in range(30):
            sent = build_message_set(magic, records(100 * number, 100, 4000), GZIP)
            answer = produce(broker, topic, sent)
            assert answer.error_code in (0, ErrorCode.UNKNOWN_SERVER_ERROR)
            if answer.error_code == 0:
                assert answer.base_offset == len(taken)
                taken += [(key, value) for _, key, value in said(100 * number, 100, 4000)]
    assert [(key, value) for _, key, value in read_on(broker, 2, topic, len(taken))] == taken


def test_other_requests_are_handled_during_conversions(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    for number in range(10):
        assert produce(broker, topic, batch(500 * number, 500, GZIP, 1500), 8).error_code == 0
    with under_attack(broker, GROWTH_MB_MAX) as client:
        before = client.rounds
        readers = [
            threading.Thread(target=read_on, args=(broker, version, topic, 5000, ALL))
            for version in (0, 2, 2, 3)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(90)
        assert client.rounds > before + 10


def test_a_slow_consumer_uses_little_memory(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    for number in range(40):
        assert produce(broker, topic, batch(0, 900, NO_COMPRESSION, 1000), 8).error_code == 0, number
    with under_attack(broker, GROWTH_MB_MAX):
        peers = [Peer(broker, 60) for _ in range(8)]
        for peer in peers:
            peer.socket.sendall(framed_fetch(topic))
        sizes = [struct.unpack(">i", peer.receive_exactly(4))[0] for peer in peers]
        assert min(sizes) > 20 << 20
        for peer in peers:
            peer.close()


def framed_fetch(topic: str) -> bytes:
    """A fetch of all records, in version 2."""
    from tidemill.wire.header import encode_request

    return encode_request(ApiKey.FETCH, 2, 1, "slow", asked(topic, 0, 1 << 30))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("stored_as", ["0.9.0", "0.10.2", "3.0"])
def test_wrappers_above_the_unpacked_limit_are_refused(
    broker: Broker, topic: str, magic: int, codec: int, stored_as: str
) -> None:
    make_topic(broker, topic, message_format_version=stored_as)
    bomb = bomb_of(magic, codec)
    with under_attack(broker, GROWTH_MB_MAX):
        for _ in range(2):
            answer = produce(broker, topic, bomb)
            assert answer.error_code in REFUSED, answer
        for pid in children(broker.pid):
            assert peak_mb(pid) < WORKER_MB_MAX
    assert fetch(broker, 2, topic, 0).high_watermark == 0


def bomb_of(magic: int, codec: int) -> bytes:
    """A wrapper of less than a megabyte with the highest compression ratio of its codec."""
    from tidemill.records.legacy_formats import pack

    piece = pack(magic, codec, bytes(4 << 20))
    wrapper = bytearray(wrap(magic, codec, b"", 0, 1))
    data = piece * max(1, min(256, 900_000 // len(piece)))
    at = wrapper.index(pack(magic, codec, b""), 17) - 4
    body = bytes(wrapper[16:at]) + struct.pack(">i", len(data)) + data
    import zlib

    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
