"""What old consumers read of a log in one reply after the other, and what is converted ahead of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker import down_conversion
from tidemill.broker.conversion import KEPT_MAX, Conversions
from tidemill.broker.down_conversion import INLINE_BYTES, KEPT_BYTES, PIECE_BYTES, DownRange, unpacked_bound
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.log.files import SystemFiles
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import GZIP, LZ4, NONE, RECORDS
from tidemill.records.builder import build_batch
from tidemill.records.compression import unpacked_bytes_bound
from tidemill.records.convert import down, whole_entries
from tidemill.records.cursor import EntryCursor
from tidemill.records.legacy import parse_entry
from tidemill.records.message_set import build_message_set

MAGIC = 1
Found = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def conversions() -> Iterator[Conversions]:
    made = Conversions(1)
    yield made
    made.close()


class Replica:
    """What a range asks of a partition."""

    def __init__(self) -> None:
        self.leader_epoch = 3
        self.fetch_conversions = 0
        self.log = SimpleNamespace(config=SimpleNamespace(message_downconversion_enable=True))


class Stage:
    """A log of batches, and the fetches of one consumer after the other."""

    def __init__(self, conversions: Conversions, path: Path, batches: list[bytes]) -> None:
        path.write_bytes(b"".join(batches))
        self.conversions = conversions
        self.file: Any = SystemFiles().open(str(path), read_only=True)
        self.size = path.stat().st_size
        self.partition: Any = Replica()

    def found(self, offset: int, stored_max: int) -> Slice:
        """What a fetch finds of the log."""
        scan = BatchScan(self.file, 0, self.size)
        while scan.step() and scan.last_offset < offset:
            pass
        position = int(scan.position)
        return Slice(self.file, position, min(stored_max, self.size - position), False)

    def range(self, offset: int, stored_max: int) -> DownRange:
        made = DownRange(self.conversions, self.found(offset, stored_max), MAGIC, offset, FetchPart(b"t", 0))
        further = self.found(offset, 2 * stored_max)
        made.further_end = int(further.position + further.size)
        made.partition = self.partition
        made.leader_epoch = self.partition.leader_epoch
        return made

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
                assert made.held <= KEPT_BYTES + PIECE_BYTES
        finally:
            os.close(reading)
            os.close(writing)
        return received

    def settle(self) -> None:
        """Returns when nothing is being converted."""
        self.conversions.executor.submit(int).result(60)


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


@pytest.mark.parametrize(("codec", "records"), [(NONE, 700), (NONE, 1), (GZIP, 700), (LZ4, 300)])
@pytest.mark.parametrize("waits", [True, False])
def test_replies_in_a_row_hold_every_record_once(
    conversions: Conversions, tmp_path: Path, codec: int, records: int, waits: bool
) -> None:
    log = batches(max(14_000 // records, 1) if records > 1 else 5000, records, codec)
    stage = Stage(conversions, tmp_path / "log", log)
    wanted = converted(log)
    found: Found = []
    taken = 0
    while len(found) < len(wanted):
        offset = found[-1][0] + 1 if found else 0
        taken += (stage.partition, MAGIC, offset) in conversions._kept
        more = read_whole(stage.reply(offset, 300_000), offset)
        assert more
        found += more
        if waits:
            stage.settle()
    assert found == wanted
    if codec == NONE and records > 1:
        # Others are not larger when they are converted: a reply has room for all that its range holds.
        assert taken >= 1


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("stored_max", [1, 17, 100, 3000])
def test_a_first_batch_that_is_larger_than_the_readers_limit_is_converted_whole(
    conversions: Conversions, tmp_path: Path, codec: int, stored_max: int
) -> None:
    log = batches(2, 400, codec)
    assert len(log[0]) > stored_max
    stage = Stage(conversions, tmp_path / "log", log)
    assert read_whole(stage.reply(0, stored_max), 0) == converted(log[:1])


def test_a_batch_behind_messages_that_the_reader_knows_is_converted(
    conversions: Conversions, tmp_path: Path
) -> None:
    old = build_message_set(MAGIC, [(1000, None, b"old")])
    new = build_batch([(1001, None, b"new", None)], NONE, base_offset=1)
    stage = Stage(conversions, tmp_path / "log", [old, new])
    assert read_whole(stage.reply(0, 1 << 20), 0) == [(0, None, b"old"), (1, None, b"new")]


def test_converted_messages_are_counted_for_their_partition(conversions: Conversions, tmp_path: Path) -> None:
    log = batches(3, 40, GZIP)
    stage = Stage(conversions, tmp_path / "log", log)
    reply = stage.reply(0, sum(map(len, log)))
    stage.settle()
    assert len(read_whole(reply, 0)) == 120
    assert stage.partition.fetch_conversions == 120


def first_reply(stage: Stage, log: list[bytes]) -> int:
    """Has one reply sent, after which the next was begun; the offset that it begins with."""
    found = read_whole(stage.reply(0, 300_000), 0)
    assert found == converted(log)[: len(found)]
    stage.settle()
    offset = found[-1][0] + 1
    assert list(stage.conversions._kept) == [(stage.partition, MAGIC, offset)]
    return offset


def test_what_was_converted_ahead_is_what_the_next_reply_begins_with(
    conversions: Conversions, tmp_path: Path
) -> None:
    log = batches(20, 700, NONE)
    stage = Stage(conversions, tmp_path / "log", log)
    offset = first_reply(stage, log)
    kept: Any = conversions._kept[stage.partition, MAGIC, offset]
    ahead = b"".join(kept._chunks)
    # As much as the reply before had: the next one asks for no conversion before it is sent.
    assert len(ahead) >= 300_000
    begun = stage.reply(offset, 300_000)
    assert begun.startswith(ahead[: len(begun)])


@pytest.mark.parametrize("what", ["epoch", "file", "range"])
def test_what_was_converted_of_another_log_is_not_taken(
    conversions: Conversions, tmp_path: Path, what: str
) -> None:
    log = batches(20, 700, NONE)
    stage = Stage(conversions, tmp_path / "log", log)
    offset = first_reply(stage, log)
    other = [build_batch([(1, b"other", b"%d" % n, None)], base_offset=n) for n in range(offset, offset + 50)]
    stored_max = 300_000
    if what == "epoch":
        stage.partition.leader_epoch += 1
    elif what == "file":
        stage.file = Stage(conversions, tmp_path / "new", other).file
        stage.size = sum(map(len, other))
    else:
        stored_max = 100
    made = stage.range(offset, stored_max)
    kept: Any = conversions._kept[stage.partition, MAGIC, offset]
    ahead = kept._chunks
    assert made.begin(PIECE_BYTES)
    assert not conversions._kept
    assert all(one is not two for one in made._chunks for two in ahead)
    wanted = converted(other if what == "file" else log)
    begun = read_whole(b"".join(made._chunks), offset)
    assert begun
    assert begun == [row for row in wanted if row[0] >= offset][: len(begun)]


def test_a_topic_that_converts_no_longer_serves_nothing_that_was_converted(
    conversions: Conversions, tmp_path: Path
) -> None:
    log = batches(20, 700, NONE)
    stage = Stage(conversions, tmp_path / "log", log)
    offset = first_reply(stage, log)
    stage.partition.log.config.message_downconversion_enable = False
    with pytest.raises(KafkaError) as told:
        stage.range(offset, 300_000).begin(PIECE_BYTES)
    assert told.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_little_is_kept_and_not_for_long(conversions: Conversions) -> None:
    for number in range(3 * KEPT_MAX):
        conversions.keep(number, number)
    assert conversions.take_kept(0) is None
    assert conversions.take_kept(3 * KEPT_MAX - 1) == 3 * KEPT_MAX - 1
    assert conversions.take_kept(3 * KEPT_MAX - 1) is None
    assert len(conversions._kept) == KEPT_MAX - 1
    conversions.reap(-1.0)
    assert conversions.take_kept(3 * KEPT_MAX - 2) is None


def test_what_is_kept_stays_while_processes_are_at_work(conversions: Conversions) -> None:
    process = conversions._take()
    conversions.keep(1, "one")
    conversions.reap(-1.0)
    assert conversions.take_kept(1) == "one"
    conversions.keep(1, "one")
    conversions._put_back(process)
    conversions.reap(-1.0)
    assert conversions.take_kept(1) is None


def test_whole_entries_end_before_one_that_is_cut() -> None:
    log = b"".join(batches(1, 3, NONE))
    data = down(log, 0, len(log), MAGIC, 0, 1 << 20).data
    size = int(parse_entry(data, 0, len(data)).size)
    assert whole_entries(data, size - 1) == (0, -1)
    assert whole_entries(data, size) == (size, 1)
    assert whole_entries(data, size + 1) == (size, 1)
    assert whole_entries(data, len(data)) == (len(data), 3)


def test_a_wrapper_without_room_is_next_from_its_first_message_on() -> None:
    rows = [(-1, None, b"%d" % number) for number in range(4)]
    stored = build_batch([(1, None, b"a", None)], NONE, base_offset=0) + build_message_set(
        0, rows, GZIP, base_offset=1
    )
    made = down(stored, 0, len(stored), 0, 0, 40)
    # A wrapper's own offset is that of its last message.
    assert (read_whole(made.data, 0), made.next_offset) == ([(0, None, b"a")], 1)
    rest = down(stored, int(made.next_position), len(stored), 0, 1, 40)
    assert [offset for offset, _, _ in read_whole(rest.data, 1)] == [1, 2, 3, 4]


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
def test_a_batch_is_taken_for_as_large_as_it_can_unpack(monkeypatch: pytest.MonkeyPatch, codec: int) -> None:
    monkeypatch.setattr(down_conversion, "INLINE_BYTES", 1 << 30)
    one = build_batch([(1, b"k", b"v" * 50, None)] * 9, codec)
    packed = 0 if codec == NONE else int(unpacked_bytes_bound(codec, one, RECORDS, len(one)))
    for count in (1, 2):
        data = one * count
        assert unpacked_bound(data) == count * (len(one) + packed)
        # What is cut counts as far as its header tells.
        assert unpacked_bound(data[:-1]) == (count - 1) * (len(one) + packed) + len(one)
    assert unpacked_bound(b"") == unpacked_bound(one[: RECORDS - 1]) == 0


@pytest.mark.parametrize(("codec", "factor"), [(NONE, 0), (GZIP, 1032), (LZ4, 255)])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_is_taken_for_as_large_as_its_codec_can_make_it(
    magic: int, codec: int, factor: int
) -> None:
    data = build_message_set(magic, [(1, b"k", b"v" * 100)], codec)
    assert unpacked_bound(data) == len(data) * (1 + factor)


def test_what_is_surely_too_large_is_not_added_up() -> None:
    one = build_batch([(1, b"k", bytes(INLINE_BYTES), None)])
    assert unpacked_bound(one) == len(one)
    assert unpacked_bound(one + one) == len(one)
