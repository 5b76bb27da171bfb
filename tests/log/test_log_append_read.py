"""Appends to a log and reads from it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from log_stage import NOW, MakeBatch, MakeLog

from log_start import open_log
from record_builders import build_message_set, parse_batches
from tidemill.log.batch_scan import WINDOW_BYTES
from tidemill.log.errors import OffsetOutOfRange
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import RECENT
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import RECORDS, Batch


def stored(log: Log, offset: int, bytes_max: int = 1 << 20, limit: int | None = None) -> list[Batch]:
    part = log.read(offset, bytes_max, log.end_offset if limit is None else limit, True)
    if part is None:
        return []
    data = part.read()
    return parse_batches(data, 0, len(data))


def test_offsets_are_assigned_in_order(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    first = log.append(batch(3), 7, NOW)
    second = log.append(batch(2), 7, NOW)
    assert (first.base_offset, first.last_offset, second.base_offset, second.last_offset) == (0, 2, 3, 4)
    assert (log.start_offset, log.end_offset) == (0, 5)
    assert [(b.base_offset, b.leader_epoch, b.record_count) for b in stored(log, 0)] == [(0, 7, 3), (3, 7, 2)]


def test_a_read_starts_at_the_batch_that_contains_the_offset(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    for _ in range(4):
        log.append(batch(10), 0, NOW)
    assert [b.base_offset for b in stored(log, 25)] == [20, 30]
    assert [b.base_offset for b in stored(log, 30)] == [30]


def test_a_read_at_the_end_is_empty_and_a_read_beyond_it_raises_an_error(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    log.append(batch(2), 0, NOW)
    assert log.read(2, 100, 2, True) is None
    with pytest.raises(OffsetOutOfRange, match="holds offsets 0 to 2, not 3") as caught:
        log.read(3, 100, 2, True)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_read_stops_before_the_limit(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    for _ in range(5):
        log.append(batch(2), 0, NOW)
    for _ in range(2):
        assert [b.base_offset for b in stored(log, 0, limit=6)] == [0, 2, 4]
    assert stored(log, 6, limit=6) == []


def test_the_same_limit_applies_to_the_active_and_to_older_segments(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    for _ in range(5):
        log.append(batch(2), 0, NOW)
    log.roll(NOW)
    for _ in range(3):
        log.append(batch(2), 0, NOW)
    for offset, limit, expected in (
        (10, 12, [10]),
        (0, 12, [0, 2, 4, 6, 8]),
        (10, 14, [10, 12]),
        (4, 14, [4, 6, 8]),
        (0, 4, [0, 2]),
        (10, 14, [10, 12]),
        (8, 10, [8]),
    ):
        assert [b.base_offset for b in stored(log, offset, limit=limit)] == expected, (offset, limit)


def test_a_read_reports_whether_its_bytes_were_written_recently(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(2), 0, NOW)
    log.roll(NOW)
    for _ in range(RECENT + 1):
        log.append(batch(2), 0, NOW)

    def is_recent(offset: int) -> bool:
        part = log.read(offset, 1 << 20, log.end_offset, True)
        assert part is not None
        return bool(part.recent)

    end = int(log.end_offset)
    # The offset is within a batch, in the batch before the last 64, or in an older segment: a search follows.
    assert [is_recent(at) for at in (0, 2, 4, 5, 6, end - 2, end - 1)] == [
        *(False, False, True, False, True, True, False)
    ]
    log.close(NOW)
    assert not is_recent(end - 2)


@pytest.mark.parametrize("appends", [0, 1, 2, RECENT - 1, RECENT, RECENT + 1, 3 * RECENT + 5])
def test_each_recent_batch_is_found_by_its_first_offset(
    log_of: MakeLog, batch: MakeBatch, appends: int
) -> None:
    log = log_of()
    positions: dict[int, int] = {}
    for number in range(appends):
        positions[int(log.end_offset)] = int(log.active.size)
        log.append(batch(2 + number % 2), 0, NOW)
    recent = dict(list(positions.items())[-RECENT:])
    offsets = range(int(log.end_offset) + 2)
    assert [log.active.recent_position(at) for at in offsets] == [recent.get(at, -1) for at in offsets]


def test_a_limit_in_a_later_segment_reads_no_files(batch: MakeBatch) -> None:
    files = FaultyFiles()
    files.make_directory("/t-0")
    config = LogConfig(segment_bytes=1000, index_interval_bytes=100, segment_index_bytes=400)
    log = open_log(files, "/t-0", TopicPartition("t", 0), config, now_ms=NOW)
    for _ in range(60):
        log.append(batch(1), 0, NOW)
    assert len(log.segments) > 4
    for limit in (60, 59, 55):
        for offset in (0, 13, 2, 25):
            log.read(offset, 1 << 20, limit, True)
            files.operations.clear()
            piece = log.read(offset, 1 << 20, limit, True)
            assert piece is not None
            assert len([name for name, _ in files.operations if name == "read_at"]) <= 1
            assert piece.position + piece.size == log.segments[int(log.segment_list.at(offset))].size
    assert stored(log, 50, limit=53)[-1].last_offset <= 52


def test_a_lookup_among_large_batches_reads_headers_only(batch: MakeBatch) -> None:
    files = FaultyFiles()
    files.make_directory("/t-0")
    config = LogConfig(index_interval_bytes=1 << 30)
    log = open_log(files, "/t-0", TopicPartition("t", 0), config, now_ms=NOW)
    places = []
    for size in [10_000] * 70 + [1, 1, 10_000]:
        places.append(int(log.active.size))
        log.append(batch(1, value=bytes(size)), 0, NOW)
    counts: list[int] = []
    file = log.active.file()
    read_at = file.read_at

    def counted(position: int, count: int) -> bytes:
        counts.append(count)
        return read_at(position, count)

    file.read_at = counted  # type: ignore[method-assign]
    assert [log.active.translate_offset(offset) for offset in range(73)] == places
    counts.clear()
    assert log.active.translate_offset(72) == places[72]
    assert sum(counts) <= 3 * WINDOW_BYTES + 73 * RECORDS


def test_the_first_batch_may_exceed_the_requested_size_only_if_allowed(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    log.append(batch(1, value=bytes(5000)), 0, NOW)
    log.append(batch(1), 0, NOW)
    whole = log.read(0, 100, 2, True)
    part = log.read(0, 100, 2, False)
    assert whole is not None
    assert part is not None
    assert (whole.size > 5000, part.size) == (True, 0)


def test_a_read_ends_at_a_batch_boundary(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    for _ in range(200):
        log.append(batch(1, value=bytes(1000)), 0, NOW)
    offset = 0
    while offset < 200:
        read = stored(log, offset, 50_000)
        assert read
        assert read[0].base_offset == offset
        offset = read[-1].last_offset + 1


def test_every_offset_is_found_across_segments(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_bytes": 20_000, "index_interval_bytes": 1000})
    for _ in range(300):
        log.append(batch(3, value=bytes(100)), 0, NOW)
    assert len(log.segments) > 5
    for reader in (log, None):
        if reader is None:
            log.close(NOW)
            reader = log_of({"segment_bytes": 20_000, "index_interval_bytes": 1000}, clean=True)
        assert reader.end_offset == 900
        for offset in range(900):
            assert stored(reader, offset, 1)[0].base_offset == offset // 3 * 3


def test_a_segment_is_filled_to_its_size_and_rolls_before_exceeding_it(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    size = batch(1).size
    log = log_of({"segment_bytes": 3 * size})
    for _ in range(3):
        log.append(batch(1), 0, NOW)
    assert [(int(one.base_offset), int(one.size)) for one in log.segments] == [(0, 3 * size)]
    for _ in range(2):
        log.append(batch(1), 0, NOW)
    longer = batch(1, value=b"v" * 21)
    assert longer.size == size + 1
    log.append(longer, 0, NOW)
    assert [(int(one.base_offset), int(one.size)) for one in log.segments] == [
        (0, 3 * size),
        (3, 2 * size),
        (5, size + 1),
    ]


def test_a_batch_of_exactly_the_size_of_a_segment_is_stored(log_of: MakeLog, batch: MakeBatch) -> None:
    made = batch(1, value=bytes(2000))
    log = log_of({"segment_bytes": made.size})
    assert log.append(batch(1), 0, NOW).base_offset == 0
    assert log.append(made, 0, NOW).base_offset == 1
    assert [int(one.base_offset) for one in log.segments] == [0, 1]
    with pytest.raises(KafkaError, match="exceeds the segment size"):
        log.append(batch(1, value=bytes(2001)), 0, NOW)


def test_a_segment_rolls_when_it_is_too_old_or_its_index_is_full(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_ms": 1000, "segment_index_bytes": 36, "index_interval_bytes": 0})
    log.append(batch(1), 0, NOW)
    log.append(batch(1, timestamp=NOW + 1000), 0, NOW)
    assert len(log.segments) == 1
    log.append(batch(1, timestamp=NOW + 1001), 0, NOW)
    assert [s.base_offset for s in log.segments] == [0, 2]
    # The first batch of a segment is not indexed. The next four fill the offset index.
    for _ in range(5):
        log.append(batch(1, timestamp=NOW + 1001), 0, NOW)
    assert [s.base_offset for s in log.segments] == [0, 2, 7]


def test_jitter_spreads_segment_rolls_and_never_delays_a_roll(tmp_path: Path, batch: MakeBatch) -> None:
    config = LogConfig(segment_ms=10_000, segment_jitter_ms=4_000)
    rolled: dict[int, int] = {}
    for partition in range(40):
        directory = tmp_path / f"t-{partition}"
        directory.mkdir()
        key = TopicPartition("t", partition)
        log = open_log(SystemFiles(), str(directory), key, config, now_ms=NOW)
        for after in range(0, 12_000, 100):
            if after == 5_000:
                # A restart does not change this.
                log.close(NOW)
                log = open_log(SystemFiles(), str(directory), key, config, now_ms=NOW + after, clean=True)
            log.append(batch(1, timestamp=NOW + after), 0, NOW + after)
            if len(log.segments) == 2:
                rolled[partition] = after
                break
    assert len(rolled) == 40
    assert all(6_000 < after <= 10_100 for after in rolled.values())
    assert len(set(rolled.values())) > 15


def test_a_jitter_above_segment_ms_is_limited_to_segment_ms(tmp_path: Path, batch: MakeBatch) -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=10**9)
    for partition in range(10):
        directory = tmp_path / f"t-{partition}"
        directory.mkdir()
        log = open_log(SystemFiles(), str(directory), TopicPartition("t", partition), config, now_ms=NOW)
        for _ in range(3):
            log.append(batch(1), 0, NOW)
        assert len(log.segments) == 1, "no negative wait"
        log.append(batch(1, timestamp=NOW + 1001), 0, NOW + 1001)
        assert len(log.segments) == 2


def test_a_batch_larger_than_a_segment_is_rejected(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_bytes": 1000})
    with pytest.raises(KafkaError, match=r"exceeds the segment size \(segment.bytes=1000\)") as caught:
        log.append(batch(1, value=bytes(2000)), 0, NOW)
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.append(batch(1), 0, NOW).base_offset == 0


def test_a_follower_stores_batches_larger_than_a_reduced_segment_size(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of({"segment_bytes": 1000})
    large = bytes(2000)
    data = b"".join(
        batch(2, value=value, base_offset=base, leader_epoch=0).to_bytes()
        for base, value in ((10, large), (12, b""), (14, large), (16, large), (18, b""))
    )
    assert log.append_copied(data, NOW) == 20
    log.truncate_fully_and_start_at(11, NOW)
    assert log.append_copied(data, NOW) == 20, "the log may start within a large one"
    assert [(int(one.base_offset), int(one.size) > 1000) for one in log.segments] == [
        (10, True),
        (12, False),
        (14, True),
        (16, True),
        (18, False),
    ]
    log.close(NOW)
    log = log_of({"segment_bytes": 1000}, clean=True, start_offset=11)
    assert [stored(log, offset)[0].base_offset for offset in range(11, 20)] == [
        10,
        12,
        12,
        14,
        14,
        16,
        16,
        18,
        18,
    ]
    with pytest.raises(KafkaError, match="exceeds the segment size"):
        log.append(batch(1, value=large), 0, NOW)


def test_log_append_time_is_set_and_the_checksum_is_updated(log_of: MakeLog, batch: MakeBatch) -> None:
    from tidemill.records.batch import check_crc

    log = log_of({"message_timestamp_type": "LogAppendTime"})
    result = log.append(batch(2, timestamp=5), 0, NOW)
    assert result.append_time_ms == NOW
    (read,) = stored(log, 0)
    check_crc(read)
    assert (read.append_time, read.max_timestamp) == (True, NOW)


def test_a_follower_keeps_the_offsets_and_leader_epochs_of_batches(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    data = b"".join(
        batch(2, base_offset=base, leader_epoch=epoch).to_bytes()
        for base, epoch in ((10, 3), (12, 3), (20, 5))
    )
    assert log.append_copied(data + data[:30], NOW) == 22
    assert [(b.base_offset, b.leader_epoch) for b in stored(log, 11)] == [(10, 3), (12, 3), (20, 5)]
    known = (log.leader_epochs.epochs, log.leader_epochs.starts)
    assert known == ([3, 5], [0, 14]), "an epoch starts at the end of the previous batch"
    assert [b.base_offset for b in stored(log, 15)] == [20]
    with pytest.raises(KafkaError, match="the leader sent offset 10, but the log ends at 22"):
        log.append_copied(data, NOW)


@pytest.mark.parametrize("base", [1, 2])
def test_a_follower_rejects_overlapping_batches_in_one_fetch_response(
    log_of: MakeLog, batch: MakeBatch, base: int
) -> None:
    log = log_of()
    data = b"".join(batch(3, base_offset=at, leader_epoch=0).to_bytes() for at in (0, base))
    with pytest.raises(KafkaError, match=f"the leader sent offset {base}, but the log ends at 3") as caught:
        log.append_copied(data, NOW)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (log.end_offset, [b.base_offset for b in stored(log, 0)]) == (3, [0])
    assert log.append_copied(batch(3, base_offset=3, leader_epoch=0).to_bytes(), NOW) == 6


@pytest.mark.parametrize("held", [0, 1])
def test_a_batch_of_an_earlier_epoch_is_appended_on_a_retry_after_a_failed_append(
    log_of: MakeLog, batch: MakeBatch, held: int
) -> None:
    files = FaultyFiles()
    files.make_directory("/d/events-0")
    log = log_of(files=files, directory="/d/events-0")
    for at in range(held):
        log.append_copied(batch(1, base_offset=at, leader_epoch=2).to_bytes(), NOW)
    files.fail("append", ".log", errno.ENOSPC)
    data = batch(1, base_offset=held, leader_epoch=5).to_bytes()
    with pytest.raises(StorageError):
        log.append_as_follower(data, 0, len(data), 5, NOW)
    earlier = batch(1, base_offset=held, leader_epoch=3).to_bytes()
    with pytest.raises(CorruptMessage, match="it may come from the next leader"):
        log.append_as_follower(earlier, 0, len(earlier), 5, NOW)
    assert log.append_as_follower(earlier, 0, len(earlier), 5, NOW) == held + 1


FAR = 1 << 32
"""Farther from a segment's first offset than its indexes reach."""


@pytest.mark.parametrize("start", [5, 7, 9])
@pytest.mark.parametrize("stop", ["clean", "kill", "none"])
def test_a_follower_appends_a_first_batch_that_begins_before_its_log_start_offset(
    log_of: MakeLog, batch: MakeBatch, start: int, stop: str
) -> None:
    log = log_of()
    log.truncate_fully_and_start_at(start, NOW)
    first = batch(5, base_offset=5, leader_epoch=3, producer_id=8, producer_epoch=0, base_sequence=0)
    second = batch(2, base_offset=10, leader_epoch=4)
    assert log.append_copied(first.to_bytes() + second.to_bytes(), NOW) == 12
    if stop == "clean":
        log.close(NOW)
    if stop != "none":
        log = log_of(clean=stop == "clean", start_offset=start)
    assert (log.start_offset, log.end_offset, log.segments[0].base_offset) == (start, 12, 5)
    assert [b.base_offset for b in stored(log, start)] == [5, 10]
    assert (log.leader_epochs.epochs, log.leader_epochs.starts[1:]) == ([3, 4], [10])
    assert log.producer_state.entries[8].last_sequence == 4
    with pytest.raises(OffsetOutOfRange):
        log.read(start - 1, 100, 12, True)
    if start > 5:
        assert log.offset_for_timestamp(0) == (NOW, start)


def test_only_the_first_batch_of_a_log_may_begin_before_the_log_end_offset(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    log.truncate_fully_and_start_at(7, NOW)
    with pytest.raises(CorruptMessage, match="the leader sent offset 2, but the log ends at 7"):
        log.append_copied(batch(5, base_offset=2).to_bytes(), NOW)
    assert log.append_copied(batch(5, base_offset=5).to_bytes(), NOW) == 10
    with pytest.raises(CorruptMessage, match="the leader sent offset 8, but the log ends at 10"):
        log.append_copied(batch(5, base_offset=8).to_bytes(), NOW)
    assert (log.start_offset, log.end_offset) == (7, 10)


def test_a_first_batch_is_appended_on_a_retry_after_the_disk_was_full(batch: MakeBatch) -> None:
    files = FaultyFiles()
    files.make_directory("/t-0")
    log = open_log(files, "/t-0", TopicPartition("t", 0), LogConfig())
    log.truncate_fully_and_start_at(7, NOW)
    data = batch(5, base_offset=5).to_bytes()
    for operation, path in (("append", "00005.log"), ("open", "00005.index")):
        files.fail(operation, path, errno.ENOSPC)
        with pytest.raises(StorageError):
            log.append_copied(data, NOW)
        assert (log.start_offset, log.end_offset) == (7, 7)
    assert log.append_copied(data, NOW) == 10
    assert (log.start_offset, [b.base_offset for b in stored(log, 7)]) == (7, [5])


@pytest.mark.parametrize("before", [0, 3])
def test_a_follower_rolls_a_segment_after_a_fully_compacted_offset_range(
    log_of: MakeLog, batch: MakeBatch, directory: str, before: int
) -> None:
    log = log_of({"index_interval_bytes": 0})
    for _ in range(before):
        log.append(batch(1), 0, NOW)
    for at in range(3):
        made = batch(2, base_offset=FAR + 2 * at, leader_epoch=0, timestamp=NOW + at)
        assert log.append_copied(made.to_bytes(), NOW) == FAR + 2 * at + 2
    assert [segment.base_offset for segment in log.segments] == [0, FAR]
    log.roll(NOW)
    again = open_log(SystemFiles(), directory, log.topic_partition, log.config, now_ms=NOW)
    for one in (log, again):
        assert (one.start_offset, one.end_offset) == (0, FAR + 6)
        assert [b.base_offset for b in stored(one, before)] == [FAR, FAR + 2, FAR + 4]
        assert [b.base_offset for b in stored(one, FAR + 3)] == [FAR + 2, FAR + 4]
        assert one.offset_for_timestamp(NOW + 2) == (NOW + 2, FAR + 4)


@pytest.mark.parametrize("offset", [2, 7, FAR])
def test_a_log_is_truncated_to_an_offset_in_a_gap_between_segments(
    log_of: MakeLog, batch: MakeBatch, offset: int
) -> None:
    log = log_of()
    for base in (0, FAR):
        log.append_copied(batch(2, base_offset=base, leader_epoch=0).to_bytes(), NOW)
    assert log.truncate_to(offset, NOW)
    assert (log.end_offset, [b.base_offset for b in stored(log, 0)]) == (offset, [0])
    log.append_copied(batch(1, base_offset=offset, leader_epoch=0).to_bytes(), NOW)
    assert [b.base_offset for b in stored(log, 0) + stored(log, offset)][-1] == offset


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_a_log_truncated_within_a_batch_ends_at_the_start_of_the_batch(
    log_of: MakeLog, batch: MakeBatch, offset: int
) -> None:
    log = log_of()
    for _ in range(2):
        log.append(batch(3), 0, NOW)
    assert log.truncate_to(offset, NOW)
    assert (log.end_offset, [b.base_offset for b in stored(log, 0)]) == (3, [0])
    log.append(batch(2), 0, NOW)
    assert [(b.base_offset, b.last_offset) for b in stored(log, 0)] == [(0, 2), (3, 4)]


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_follower_stores_messages_of_old_formats_after_a_gap(
    log_of: MakeLog, magic: int, codec: int
) -> None:
    log = log_of({"index_interval_bytes": 0})
    records = [(NOW, b"k", b"v")] * 3
    log.append_copied(build_message_set(magic, records, codec, None, FAR), NOW)
    log.append_copied(build_message_set(magic, records, codec, None, FAR + 3), NOW)
    assert log.end_offset == FAR + 6
    log.roll(NOW)
    part = log.read(FAR + 1, 1 << 20, log.end_offset, True)
    assert part is not None
    assert all(segment.index.damage(segment.size) == "" for segment in log.segments[:-1])


def test_a_failed_roll_over_a_gap_leaves_the_log_unchanged(batch: MakeBatch) -> None:
    files = FaultyFiles()
    files.make_directory("/var/t-0")
    log = open_log(files, "/var/t-0", TopicPartition("t", 0), LogConfig(), now_ms=NOW)
    log.append(batch(1), 0, NOW)
    far = batch(1, base_offset=FAR, leader_epoch=0).to_bytes()
    files.fail("open", f"{FAR:020d}.index", errno.ENOSPC)
    with pytest.raises(StorageError):
        log.append_copied(far, NOW)
    assert (log.end_offset, log.producer_state.end_offset, len(log.segments)) == (1, 1, 1)
    assert log.append_copied(far, NOW) == FAR + 1


@pytest.mark.parametrize("size", [-5, 3])
def test_a_follower_rejects_an_invalid_batch_length(log_of: MakeLog, batch: MakeBatch, size: int) -> None:
    log = log_of()
    good = batch(1, base_offset=0, leader_epoch=0).to_bytes()
    bad = good[:8] + size.to_bytes(4, "big", signed=True) + good[12:]
    with pytest.raises(CorruptMessage, match="says that it has"):
        log.append_copied(good + bad, NOW)
    assert log.end_offset == 1


def sync(log: Log) -> None:
    job = log.begin_flush()
    job.run()
    log.finish_flush(job, NOW)


def test_unsynced_bytes_are_counted_exactly(log_of: MakeLog, batch: MakeBatch) -> None:
    size = int(batch(1).size)
    log = log_of({"segment_bytes": 3 * size})
    assert log.unsynced_bytes == 0
    for count in range(1, 6):
        log.append(batch(1), 0, NOW)
        assert log.unsynced_bytes == count * size
    sync(log)
    assert log.unsynced_bytes == 0
    log.append(batch(1), 0, NOW)
    assert log.unsynced_bytes == size
    log.append(batch(1), 0, NOW)
    assert log.unsynced_bytes == 2 * size
    log.truncate_to(6, NOW)
    assert log.unsynced_bytes == size


@pytest.mark.parametrize(("recovery_point", "unsynced"), [(0, 3), (1, 3), (3, 0)])
def test_a_start_counts_bytes_of_unknown_state_as_unsynced(
    log_of: MakeLog, batch: MakeBatch, recovery_point: int, unsynced: int
) -> None:
    log = log_of()
    for _ in range(3):
        log.append(batch(1), 0, NOW)
    size = int(log.active.size) // 3
    log.close_handlers()
    again = log_of(recovery_point=recovery_point)
    assert again.unsynced_bytes == unsynced * size
    again.append(batch(1), 0, NOW)
    assert again.unsynced_bytes == (unsynced + 1) * size
    sync(again)
    assert again.unsynced_bytes == 0
