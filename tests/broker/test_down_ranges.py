"""Ranges of a log that are converted for old consumers while they are sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from default_limits import EntryCursor, RecordLimits, down
from record_builders import build_batch, build_message_set
from tidemill.broker import down_conversion
from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.down_conversion import INLINE_BYTES, PIECE_BYTES, DownRange
from tidemill.log.batch_scan import BatchScan
from tidemill.log.log_segment import LogRange
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import GZIP, LZ4, NO_COMPRESSION, RECORDS
from tidemill.records.compression import unpacked_bytes_bound
from tidemill.records.format_conversion import unpacked_bytes_max
from tidemill.records.legacy_formats import parse_entry

MAGIC = 1
Found = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def conversions() -> Iterator[ConversionWorkers]:
    made = ConversionWorkers(1)
    yield made
    made.close()


class Replica:
    """What a range asks of a partition."""

    def __init__(self) -> None:
        self.topic = "t"
        self.fetch_conversions = 0
        self.validation_limits = RecordLimits()
        self.log = SimpleNamespace(config=SimpleNamespace(message_downconversion_enable=True))


class Stage:
    """A log of batches, and the fetches of one consumer after the other."""

    def __init__(self, conversions: ConversionWorkers, path: Path, batches: list[bytes]) -> None:
        path.write_bytes(b"".join(batches))
        self.conversions = conversions
        self.file: Any = SystemFiles().open(str(path), read_only=True)
        self.size = path.stat().st_size
        self.partition: Any = Replica()

    def found(self, offset: int, stored_max: int) -> LogRange:
        """What a fetch finds of the log."""
        scan = BatchScan(self.file, 0, self.size)
        while scan.step() and scan.last_offset < offset:
            pass
        position = int(scan.position)
        return LogRange(self.file, position, min(stored_max, self.size - position), False)

    def range(self, offset: int, stored_max: int) -> DownRange:
        return DownRange(self.conversions, self.found(offset, stored_max), MAGIC, offset, self.partition)

    def reply(self, offset: int, stored_max: int) -> bytes:
        """All bytes of one reply, as they are sent."""
        made = self.range(offset, stored_max)
        assert made.begin(down_conversion.FIRST_BYTES)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        received = b""
        try:
            while len(received) < made.count:
                count = min(PIECE_BYTES, made.count - len(received))
                if not made.is_cached(len(received), count):
                    assert made.read_at(len(received), count)
                sent = made.send_to(writing, len(received), min(count, 4096))
                received += os.read(reading, sent)
                assert made.held <= down_conversion.FIRST_BYTES + PIECE_BYTES
        finally:
            os.close(reading)
            os.close(writing)
        return received


def read_whole(data: bytes, offset: int) -> Found:
    """The whole messages from ``offset`` on."""
    found: Found = []
    position = 0
    while position + 12 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        cursor = EntryCursor(parse_entry(data, position, len(data)))
        while cursor.step():
            if cursor.offset >= offset:
                found.append((int(cursor.offset), cursor.key, cursor.value))
        position += size
    return found


def batches(count: int, records: int, codec: int, size: int = 90) -> list[bytes]:
    made = []
    for first in range(0, count * records, records):
        rows = [(1000 + n, b"%d" % n, (b"%d" % n) * (size // 6), None) for n in range(first, first + records)]
        made.append(build_batch(rows, codec, base_offset=first))
    return made


def converted(log: list[bytes]) -> Found:
    data = b"".join(log)
    return read_whole(down(data, 0, len(data), MAGIC, 0, 1 << 30).data, 0)


@pytest.mark.parametrize(
    ("codec", "records"), [(NO_COMPRESSION, 700), (NO_COMPRESSION, 1), (GZIP, 700), (LZ4, 300)]
)
def test_successive_responses_have_every_record_once(
    conversions: ConversionWorkers, tmp_path: Path, codec: int, records: int
) -> None:
    log = batches(max(14_000 // records, 1) if records > 1 else 5000, records, codec)
    stage = Stage(conversions, tmp_path / "log", log)
    wanted = converted(log)
    found: Found = []
    while len(found) < len(wanted):
        offset = found[-1][0] + 1 if found else 0
        more = read_whole(stage.reply(offset, 300_000), offset)
        assert more
        found += more
    assert found == wanted


def test_a_reply_converts_no_more_than_it_sends(conversions: ConversionWorkers, tmp_path: Path) -> None:
    log = batches(40, 700, NO_COMPRESSION)
    stage = Stage(conversions, tmp_path / "log", log)
    reply = stage.reply(0, 1_200_000)
    assert len(reply) == 1_200_000
    sent = len(read_whole(reply, 0))
    # The last message may be cut.
    assert sent <= stage.partition.fetch_conversions <= sent + 1


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP])
@pytest.mark.parametrize("stored_max", [1, 17, 100, 3000])
def test_a_first_batch_above_the_clients_limit_is_converted_as_a_whole(
    conversions: ConversionWorkers, tmp_path: Path, codec: int, stored_max: int
) -> None:
    log = batches(2, 400, codec)
    assert len(log[0]) > stored_max
    stage = Stage(conversions, tmp_path / "log", log)
    assert read_whole(stage.reply(0, stored_max), 0) == converted(log[:1])


def test_a_batch_behind_messages_in_a_known_format_is_converted(
    conversions: ConversionWorkers, tmp_path: Path
) -> None:
    old = build_message_set(MAGIC, [(1000, None, b"old")])
    new = build_batch([(1001, None, b"new", None)], NO_COMPRESSION, base_offset=1)
    stage = Stage(conversions, tmp_path / "log", [old, new])
    assert read_whole(stage.reply(0, 1 << 20), 0) == [(0, None, b"old"), (1, None, b"new")]


def test_converted_messages_are_counted_for_their_partition(
    conversions: ConversionWorkers, tmp_path: Path
) -> None:
    log = batches(3, 40, GZIP)
    stage = Stage(conversions, tmp_path / "log", log)
    reply = stage.reply(0, sum(map(len, log)))
    assert len(read_whole(reply, 0)) == 120
    assert stage.partition.fetch_conversions == 120


def test_a_topic_with_down_conversion_disabled_is_refused(
    conversions: ConversionWorkers, tmp_path: Path
) -> None:
    stage = Stage(conversions, tmp_path / "log", batches(1, 700, NO_COMPRESSION))
    stage.partition.log.config.message_downconversion_enable = False
    with pytest.raises(KafkaError) as told:
        stage.range(0, 300_000).begin(PIECE_BYTES)
    assert told.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_wrapper_without_room_is_returned_next_from_its_first_message() -> None:
    rows = [(-1, None, b"%d" % number) for number in range(4)]
    stored = build_batch([(1, None, b"a", None)], NO_COMPRESSION, base_offset=0) + build_message_set(
        0, rows, GZIP, base_offset=1
    )
    made = down(stored, 0, len(stored), 0, 0, 40)
    # A wrapper's own offset is that of its last message.
    assert (read_whole(made.data, 0), made.next_offset) == ([(0, None, b"a")], 1)
    rest = down(stored, int(made.next_position), len(stored), 0, 1, 40)
    assert [offset for offset, _, _ in read_whole(rest.data, 1)] == [1, 2, 3, 4]


LIMIT = 1 << 30


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP, LZ4])
def test_the_size_bound_of_a_batch_is_its_largest_unpacked_size(codec: int) -> None:
    one = build_batch([(1, b"k", b"v" * 50, None)] * 9, codec)
    unpacked = int(unpacked_bytes_bound(codec, one, RECORDS, len(one)))
    for count in (1, 2):
        data = one * count
        assert unpacked_bytes_max(data, LIMIT) == count * unpacked
        # A batch that is cut off is not converted.
        assert unpacked_bytes_max(data[:-1], LIMIT) == (count - 1) * unpacked
    assert unpacked_bytes_max(b"", LIMIT) == unpacked_bytes_max(one[: RECORDS - 1], LIMIT) == 0


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_the_size_bound_of_a_wrapper_is_that_of_its_value(magic: int, codec: int) -> None:
    data = build_message_set(magic, [(1, b"k", b"v" * 100)], codec)
    wrapper = parse_entry(data, 0, len(data))
    value = int(wrapper.value_position), int(wrapper.value_position + wrapper.value_length)
    assert unpacked_bytes_max(data, LIMIT) == unpacked_bytes_bound(codec, data, *value) > 100


@pytest.mark.parametrize("magic", [0, 1])
def test_the_size_bound_of_uncompressed_messages_is_their_size(magic: int) -> None:
    data = build_message_set(magic, [(1, b"k", b"v" * 100)] * 3, NO_COMPRESSION)
    assert unpacked_bytes_max(data, LIMIT) == len(data)


def test_the_size_bound_counts_the_first_large_batch_only() -> None:
    one = build_batch([(1, b"k", bytes(INLINE_BYTES), None)])
    assert unpacked_bytes_max(one + one, INLINE_BYTES) == len(one) - RECORDS


def test_the_size_bound_counts_no_batch_after_an_invalid_one() -> None:
    one = build_batch([(1, b"k", b"v", None)])
    invalid = one[:8] + (-1).to_bytes(4, "big", signed=True) + one[12:]
    assert unpacked_bytes_max(one + invalid + one, LIMIT) == len(one) - RECORDS
