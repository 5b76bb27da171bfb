"""Cleaning of a log: kept and removed records, and times; against a dict, and rule by rule."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import pytest
from compaction_model import APPENDED, Model
from compaction_stage import (
    NOW,
    clean,
    end_transaction,
    opened,
    put,
    rows,
    values,
    write,
    write_old,
)
from faulty_files import FaultyFiles
from hypothesis import given, settings
from hypothesis import strategies as st
from log_stage import batches, flip, stored

from record_builders import build_batch
from tidemill.log.clean_batch import BatchCleaner
from tidemill.log.log import Log
from tidemill.log.log_cleaner_manager import CleanerSettings, candidate, choose
from tidemill.log.offset_map import OffsetMap
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import CorruptMessage
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import ATTRIBUTES, CRC, parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.records.checksum import crc32c

DAY = 24 * 60 * 60 * 1000

keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"k" * 33, b"k" * 32]))
fields = st.tuples(st.integers(0, 50), keys, st.one_of(st.none(), st.binary(max_size=8)))
contents = st.lists(fields, min_size=1, max_size=6)
batch_steps = st.tuples(st.just("batch"), contents, st.integers(0, 4), st.booleans())
old_steps = st.tuples(st.just("old"), contents, st.integers(0, 3), st.integers(0, 1), st.booleans())
clean_steps = st.tuples(st.just("clean"), st.integers(0, DAY), st.booleans(), st.integers(0, 2))
steps = st.lists(st.one_of(batch_steps, batch_steps, old_steps, clean_steps, st.just(("roll",))), max_size=25)


def append_step(log: Log, model: Model, step: Any) -> None:
    records = [(NOW + timestamp, key, value) for timestamp, key, value in step[1]]
    if step[0] == "batch":
        model.append(write(log, records, codec=step[2]), records)
    else:
        codec, magic, append_time = step[2:]
        base = write_old(log, magic, records, codec, APPENDED if append_time else -1)
        model.append_old(base, magic, append_time, records)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, DAY))
def test_compaction_of_any_history_follows_the_rules(history: list[Any], retention_ms: int) -> None:
    files = FaultyFiles()
    files.make_directory("/d/t-0")
    options = {"settings": {"delete_retention_ms": retention_ms}}
    log = opened(files, "/d/t-0", **options)
    model = Model()
    now_ms = NOW
    for step in history:
        files.now_ms = now_ms
        if step[0] in ("batch", "old"):
            append_step(log, model, step)
            if step[0] == "batch" and step[3]:
                log.roll(NOW)
        elif step[0] == "roll":
            log.roll(NOW)
        else:
            now_ms += step[1]
            first_dirty = max(int(log.clean_end), 0)
            written = [(int(one.base_offset), files.modified_ms(one.path)) for one in log.segments]
            clean(log, now_ms, chunk_bytes=100 if step[2] else 4096)
            model.clean(first_dirty, int(log.clean_end), now_ms, retention_ms, written)
            if step[3] == 1:
                clean_end = log.clean_end
                files.kill()
                log = opened(files, "/d/t-0", **options)
                log.clean_end = clean_end
        assert rows(log) == model.rows
    for offset in range(int(log.end_offset)):
        found = [row for row in rows(log) if row[0] >= offset]
        part = log.read(offset, 1 << 20, log.end_offset, True)
        assert (part is not None) or not found
    for row in model.rows:
        if row[1] >= 0:
            at = log.offset_for_timestamp(row[1])
            assert at is not None
            assert at[1] <= row[0]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    (tmp_path / "t-0").mkdir()
    return opened(SystemFiles(), str(tmp_path / "t-0"))


def test_the_last_value_of_each_key_keeps_its_offset(log: Log) -> None:
    for number in range(100):
        put(log, (f"k{number % 7}", f"v{number}"), (f"x{number % 3}", f"w{number}"))
        if number % 10 == 9:
            log.roll(NOW)
    before = rows(log)
    counts = clean(log)
    assert values(log) == {f"k{number % 7}": f"v{number}" for number in range(100)} | {
        f"x{number % 3}": f"w{number}" for number in range(100)
    }
    assert rows(log) == [row for row in before if row in rows(log)]
    assert (len(log.segments), counts.records_kept, counts.records_read) == (2, 10, 200)
    assert log.start_offset == 0
    assert log.end_offset == 200


def test_the_documented_example_is_correct(log: Log) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compaction.md").read_text("utf-8")
    tables = page[page.index("before ") :].split("```")[0].split("\n\n")
    (before, active), (after, still_active) = (
        [list(zip(*[one.split()[-count:] for one, count in part], strict=True)) for part in halves(table)]
        for table in tables
    )
    for _, key, value in before:
        put(log, (key, None if value == "-" else value))
    log.roll(NOW)
    for _, key, value in active:
        put(log, (key, None if value == "-" else value))
    clean(log)
    found = [(str(row[0]), (row[2] or b"").decode(), (row[3] or b"-").decode()) for row in rows(log)]
    assert found == after + still_active
    assert active == still_active


def halves(table: str) -> list[list[tuple[str, int]]]:
    """Returns the rows of a table before and after its bar, each with the number of its cells."""
    lines = [line.split("|") for line in table.strip().splitlines()[1:]]
    counts = [len(lines[0][0].split()) - 1, len(lines[0][1].split())]
    return [[(line[at], counts[at]) for line in lines] for at in range(2)]


def test_the_active_segment_and_records_above_the_high_watermark_are_not_cleaned(log: Log) -> None:
    for number in range(4):
        put(log, ("k", f"v{number}"))
        log.roll(NOW)
    put(log, ("k", "active"))
    log.flush(NOW)
    assert candidate(log, 2, NOW).upper_bound == 2
    assert candidate(log, 5, NOW).upper_bound == 4
    clean(log)
    assert [row[0] for row in rows(log)] == [3, 4]


def test_unsynced_records_do_not_replace_older_records(log: Log) -> None:
    put(log, ("k", "on the disk"))
    log.roll(NOW)
    log.flush(NOW)
    put(log, ("k", "in the page cache"))
    log.roll(NOW)
    put(log, ("k", "active"))
    assert candidate(log, 3, NOW).upper_bound == 1
    job = log.begin_flush(whole=False)
    job.run()
    log.finish_flush(job, NOW)
    assert candidate(log, 3, NOW).upper_bound == 2


def test_segments_younger_than_min_compaction_lag_are_not_cleaned(log: Log) -> None:
    log.set_config(log.config._replace(min_compaction_lag_ms=1000))
    for number in range(4):
        put(log, ("k", f"v{number}"), timestamp=NOW + number * 1000)
        log.roll(NOW)
    log.flush(NOW)
    assert candidate(log, 4, NOW + 2500).upper_bound == 2


def test_a_log_past_max_compaction_lag_is_cleaned_at_any_dirty_ratio(log: Log) -> None:
    log.set_config(log.config._replace(max_compaction_lag_ms=1000))
    for number in range(20):
        put(log, (f"k{number}", "v"))
    log.roll(NOW)
    clean(log)
    put(log, ("k1", "w"), timestamp=NOW)
    log.roll(NOW)
    log.flush(NOW)
    assert choose([candidate(log, 99, NOW + 1000)]) is None
    found = choose([candidate(log, 99, NOW + 1001)])
    assert found is not None
    assert found.overdue


def test_the_log_with_the_highest_dirty_ratio_is_chosen(tmp_path: Path) -> None:
    logs = []
    for at, dirty in enumerate([3, 30, 9]):
        directory = tmp_path / f"{at}" / "t-0"
        directory.mkdir(parents=True)
        one = opened(SystemFiles(), str(directory))
        put(one, *[(f"k{number}", "v" * 50) for number in range(10)])
        one.roll(NOW)
        clean(one)
        put(one, *[(f"k{number}", "v" * 50) for number in range(dirty)])
        one.roll(NOW)
        one.flush(NOW)
        logs.append(one)
    candidates = [candidate(one, 99, NOW) for one in logs]
    found = choose(candidates)
    assert found is not None
    assert found.log is logs[1]
    assert [one.is_cleanable for one in candidates] == [False, True, False]


def test_a_tombstone_is_kept_until_the_delete_horizon_of_its_batch(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"))
    log.roll(NOW)
    clean(log)
    assert values(log) == {"b": "1", "a": None, "c": "1"}
    horizons = [int(one.base_timestamp) for one in batches(log) if one.has_delete_horizon]
    assert horizons == [NOW + DAY]
    assert [row[1] for row in rows(log)] == [NOW, NOW, NOW]
    put(log, ("d", "1"))
    log.roll(NOW)
    clean(log, NOW + DAY - 1)
    assert "a" in values(log)
    put(log, ("d", "2"))
    log.roll(NOW)
    clean(log, NOW + DAY)
    assert values(log) == {"b": "1", "c": "1", "d": "2"}


def test_a_batch_cleaned_again_keeps_its_delete_horizon(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"), ("e", "1"))
    log.roll(NOW)
    clean(log)
    put(log, ("c", "2"))
    log.roll(NOW)
    clean(log, NOW + DAY // 2)
    assert values(log) == {"b": "1", "a": None, "e": "1", "c": "2"}
    horizons = [int(one.base_timestamp) for one in batches(log) if one.has_delete_horizon]
    assert horizons == [NOW + DAY]
    assert [row[1] for row in rows(log)] == [NOW] * 4


def test_records_without_a_key_are_removed(log: Log) -> None:
    write(log, [(NOW, None, b"lost"), (NOW, b"k", b"v")])
    log.roll(NOW)
    assert clean(log).records_without_key == 1
    assert [row[2] for row in rows(log)] == [b"k"]


@pytest.mark.parametrize("codec", range(5))
def test_a_rewritten_batch_keeps_codec_offsets_sequence_and_epoch(log: Log, codec: int) -> None:
    producer = {"producer_id": 9, "producer_epoch": 3, "base_sequence": 40}
    put(log, ("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), codec=codec, **producer)
    put(log, ("b", "5"))
    log.roll(NOW)
    clean(log)
    first = next(iter(batches(log)))
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 3, 2)
    assert (first.codec, first.base_sequence, first.last_sequence) == (codec, 40, 43)
    assert (first.producer_id, first.producer_epoch, first.leader_epoch) == (9, 3, 0)


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_keep_format_codec_offsets_and_times(
    log: Log, magic: int, codec: int
) -> None:
    write_old(log, magic, [(NOW + at, b"k%d" % (at % 3), b"v%d" % at) for at in range(8)], codec)
    write_old(log, magic, [(NOW, b"k1", b"last"), (NOW, b"k2", None)], codec)
    log.roll(NOW)
    counts = clean(log)
    times = [NOW + 6, NOW, NOW] if magic else [-1, -1, -1]
    assert rows(log) == [
        (6, times[0], b"k0", b"v6"),
        (8, times[1], b"k1", b"last"),
        (9, times[2], b"k2", None),
    ]
    assert (counts.records_read, counts.records_kept) == (10, 3)
    found = list(stored(log))
    assert [(int(one.magic), int(one.codec)) for one in found] == [(magic, codec)] * len(found)
    assert [int(one.last_offset) for one in found] == ([6, 9] if codec else [6, 8, 9])
    assert log.segments[0].max_timestamp() == (NOW + 6 if magic else -1)


def test_tombstones_of_old_formats_are_removed_with_the_age_of_their_segment() -> None:
    files = FaultyFiles()
    files.make_directory("/d/t-0")
    files.now_ms = NOW
    log = opened(files, "/d/t-0")
    log.set_config(
        log.config._replace(segment_bytes=1)
    )  # merged segments would have the later modification time
    write_old(log, 1, [(NOW, b"a", b"1"), (NOW, b"b", None)])
    log.roll(NOW)
    clean(log)
    assert values(log) == {"a": "1", "b": None}
    for later_ms, expected in ((DAY, {"a": "1", "b": None, "c": "1"}), (2 * DAY, {"a": "1", "c": "1"})):
        files.now_ms = NOW + later_ms
        put(log, ("c", "1"))
        log.roll(NOW)
        clean(log, NOW + later_ms)
        assert values(log) == expected


def test_keys_are_compacted_across_message_formats(log: Log) -> None:
    write_old(log, 0, [(NOW, b"a", b"0"), (NOW, b"b", b"0"), (NOW, b"c", b"0")], 1)
    write_old(log, 1, [(NOW, b"b", b"1"), (NOW, b"c", b"1")])
    put(log, ("c", "2"))
    log.roll(NOW)
    clean(log)
    assert values(log) == {"a": "0", "b": "1", "c": "2"}


def test_the_last_batch_of_a_producer_is_kept_without_records(log: Log) -> None:
    for number in range(3):
        put(log, ("k", f"v{number}"), producer_id=5, producer_epoch=0, base_sequence=number)
    put(log, ("k", "other"))
    put(log, ("k", "last"))
    log.roll(NOW)
    clean(log)
    assert [(int(one.base_offset), int(one.record_count)) for one in batches(log)] == [(2, 0), (4, 1)]
    again = opened(log.segment_list.files, log.directory)
    assert again.producer_state.entries[5].last_sequence == 2
    assert again.end_offset == 5


def test_the_cleaner_checkpoint_survives_the_removal_of_its_records(log: Log) -> None:
    put(log, ("k", "1"))
    write(log, [(NOW, None, b"no key")])
    log.roll(NOW)
    put(log, ("k", "2"))
    clean(log)
    assert [(int(one.base_offset), int(one.record_count)) for one in batches(log)] == [(0, 1), (1, 0), (2, 1)]


def test_aborted_records_are_removed_and_markers_are_kept_until_their_transaction_is_empty(log: Log) -> None:
    put(log, ("k", "old"))
    put(log, ("k", "aborted"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    marker = end_transaction(log, 7, committed=False)
    put(log, ("c", "committed"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 8, committed=True)
    put(log, ("z", "1"))
    log.roll(NOW)
    log.producer_state.entries.clear()
    clean(log)
    assert values(log) == {"k": "old", "c": "committed", "z": "1"}
    assert [int(one.base_offset) for one in batches(log) if one.is_control] == [marker, marker + 2]
    index = Path(log.directory, "00000000000000000000.txnindex")
    assert index.stat().st_size == 34
    # No record of the aborted transaction remains: the marker gets a delete horizon and is removed later.
    put(log, ("z", "2"))
    log.roll(NOW)
    clean(log)
    assert [bool(one.has_delete_horizon) for one in batches(log) if one.is_control] == [True, False]
    assert not index.exists()
    put(log, ("z", "3"))
    log.roll(NOW)
    clean(log, NOW + DAY)
    assert [int(one.base_offset) for one in batches(log) if one.is_control] == [marker + 2]


def test_the_marker_with_the_latest_producer_epoch_is_kept_and_older_markers_are_removed(log: Log) -> None:
    put(log, ("k", "1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    old = end_transaction(log, 7, committed=True)
    bump = int(log.end_offset)
    marker = build_end_marker(True, NOW, 7, 1, 0, leader_epoch=0, base_offset=bump)
    log.append_copied(marker, NOW)
    put(log, ("k", "2"))
    log.roll(NOW)
    clean(log)
    assert [int(one.base_offset) for one in batches(log) if one.is_control] == [old, bump]
    for days in (1, 2):
        put(log, ("z", str(days)))
        log.roll(NOW)
        clean(log, NOW + days * DAY)
    found = [(int(one.base_offset), int(one.producer_epoch)) for one in batches(log) if one.producer_id == 7]
    assert found == [(bump, 1)]
    # It has no records, and a start still reads it.
    again = opened(log.segment_list.files, log.directory)
    assert (again.end_offset, rows(again)) == (log.end_offset, rows(log))


def test_an_abort_before_the_dirty_section_does_not_affect_later_transactions(log: Log) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    put(log, ("k", "aborted"), **producer)
    end_transaction(log, 7, committed=False)
    log.roll(NOW)
    clean(log)
    log.producer_state.entries.clear()
    put(log, ("k", "1"), ("k", "2"), **producer)
    end_transaction(log, 7, committed=True)
    log.roll(NOW)
    clean(log)
    assert [row[3] for row in rows(log)] == [b"2"]


def test_a_log_with_more_keys_than_the_map_holds_is_cleaned_in_several_runs(log: Log) -> None:
    for number in range(3000):
        put(log, (f"key-{number % 1500}", f"v{number}"))
        if number % 500 == 499:
            log.roll(NOW)
    log.flush(NOW)
    runs = 0
    while candidate(log, 3000, NOW).dirty_bytes:
        clean(log, settings=CleanerSettings(0, 0.9, 4096))
        runs += 1
    assert runs > 1
    assert values(log) == {f"key-{number % 1500}": f"v{number}" for number in range(3000)}
    assert len(rows(log)) == 1500


def test_segments_are_merged_up_to_the_segment_size(log: Log) -> None:
    log.set_config(log.config._replace(segment_bytes=3000))
    for number in range(12):
        put(log, *[(f"{number}-{at}", "v" * 50) for at in range(10)])
        log.roll(NOW)
    put(log, ("x", "1"))
    clean(log)
    assert all(one.size <= 3000 for one in log.segments)
    assert 4 <= len(log.segments) < 8
    assert len(rows(log)) == 121


def test_the_number_of_merged_segments_is_limited_by_open_files(log: Log) -> None:
    for number in range(130):
        put(log, (f"k{number}", "v"))
        log.roll(NOW)
    clean(log)
    assert [int(one.base_offset) for one in log.segments] == [0, 100, 130]
    assert len(rows(log)) == 130


def test_a_damaged_batch_stops_cleaning_and_leaves_the_log_unchanged(log: Log) -> None:
    put(log, ("k", "1"))
    put(log, ("k", "2"))
    log.roll(NOW)
    path = Path(log.segments[0].path)
    flip(path, -3, 1)
    data = path.read_bytes()
    with pytest.raises(CorruptMessage, match="has checksum"):
        clean(log)
    assert path.read_bytes() == data
    assert not [one for one in Path(log.directory).iterdir() if one.suffix == ".cleaned"]


@pytest.mark.parametrize("delta", [0, -1, 2])
def test_a_batch_with_wrong_offset_deltas_is_rejected(delta: int) -> None:
    """Consumers reject it as well."""
    data = bytearray(build_batch([(NOW, b"a", b"1", None), (NOW, b"b", b"2", None)]))
    data[-6] = (delta << 1) ^ (delta >> 7)
    struct.pack_into(">I", data, CRC, crc32c(bytes(data[ATTRIBUTES:])))
    batch = parse_batch(bytes(data), 0, len(data))
    cleaner = BatchCleaner(OffsetMap(1 << 16, 0.9, 0), NOW, DAY, UNPACKED_BYTES_MAX)
    with pytest.raises(CorruptMessage, match=f"record 1 has offset delta {delta}"):
        cleaner.index(batch)
    with pytest.raises(CorruptMessage, match=f"record 1 has offset delta {delta}"):
        cleaner.clean(batch, keep_all=False, marker_may_go=False)


def test_damage_in_the_clean_section_is_detected_even_in_obsolete_records(log: Log) -> None:
    for number in range(20):
        put(log, (f"k{number}", "1"))
    log.roll(NOW)
    clean(log)
    path = Path(log.segments[0].path)
    flip(path, -2, 1)
    data = path.read_bytes()
    for number in range(20):
        put(log, (f"k{number}", "2"))
    log.roll(NOW)
    with pytest.raises(CorruptMessage, match="has checksum"):
        clean(log)
    assert path.read_bytes() == data


@pytest.mark.parametrize("size", [1, 255, 257])
def test_a_map_filled_within_a_batch_covers_the_batches_before_it(log: Log, size: int) -> None:
    for first in range(0, 2200, size):
        put(log, *[(f"key-{number % 1100}", f"v{number}") for number in range(first, first + size)])
    count = int(log.end_offset)
    log.roll(NOW)
    log.flush(NOW)
    ends = []
    while candidate(log, count, NOW).dirty_bytes:
        before = {row[0]: row for row in rows(log)}
        ends.append(clean(log, settings=CleanerSettings(0, 0.9, 4096)).end_offset)
        assert {row[0]: row for row in rows(log)}.items() <= before.items()
    assert len(ends) > 1
    assert all(end % size == 0 for end in ends)
    assert values(log) == {f"key-{number % 1100}": f"v{number}" for number in range(count)}


def test_a_full_disk_stops_cleaning_and_leaves_the_log_unchanged() -> None:
    ended = []
    for room in range(12):
        files = FaultyFiles()
        files.make_directory("/d/t-0")
        log = opened(files, "/d/t-0", settings={"segment_bytes": 12_000})
        for number in range(40):
            put(log, (f"k{number % 30}", f"v{number} " * 100))
            if number % 10 == 9:
                log.roll(NOW)
        before = values(log)
        files.space_bytes = 1 << 30
        files.space_bytes += room * 4096 - files.free_bytes("/")
        try:
            clean(log)
        except OSError as problem:
            ended.append(problem.errno)
        assert values(log) == before
        assert not [name for name in files.list("/d/t-0") if name.endswith(".cleaned")]
    assert 0 < len(ended) < 12
    assert set(ended) == {errno.ENOSPC}


def test_a_reader_continues_in_the_old_files_after_a_swap(log: Log) -> None:
    for number in range(50):
        put(log, ("k", f"v{number}"))
    log.roll(NOW)
    part = log.read(0, 1 << 20, log.end_offset, True)
    assert part is not None
    before = part.read()
    clean(log)
    assert part.read() == before
    assert len(rows(log)) == 1


def test_a_truncation_cancels_a_pending_swap(log: Log) -> None:
    for number in range(4):
        put(log, ("k", f"v{number}"))
        log.roll(NOW)
    swap = log.begin_swap([0, 1], 10)
    assert swap is not None
    log.truncate_to(3, NOW)
    assert not swap.run()
    assert not log.finish_swap(swap, NOW)
    assert [row[0] for row in rows(log)] == [0, 1, 2]


@pytest.mark.parametrize("cut", [3, 0])
def test_a_deleted_key_stays_deleted_when_the_cleaned_section_is_truncated(log: Log, cut: int) -> None:
    for key in "abcdef":
        put(log, (key, "1"))
    log.roll(NOW)
    assert clean(log).end_offset == 6
    if cut:
        log.truncate_to(cut, NOW)
    else:
        log.truncate_fully_and_start_at(0, NOW)
        put(log, ("a", "1"))
    assert log.clean_end == cut
    put(log, ("a", None))
    log.roll(NOW)
    for now_ms in (NOW, NOW + 2 * DAY):
        clean(log, now_ms)
        log.clean_end = 0  # the delete horizon is set by the first cleaning and has passed at the second
    assert "a" not in values(log)
    assert [row[2] for row in rows(log)] == ([b"b", b"c"] if cut else [])


def test_deleting_a_log_cancels_a_pending_swap(log: Log) -> None:
    put(log, ("k", "1"))
    log.roll(NOW)
    swap = log.begin_swap([0], 10)
    assert swap is not None
    log.closed = True
    log.close_handlers()
    assert not swap.run()


def test_a_swap_completed_before_a_truncation_is_kept(log: Log) -> None:
    for number in range(4):
        put(log, ("k", f"v{number}"))
        log.roll(NOW)
    for suffix in ("log", "index", "timeindex"):
        Path(log.directory, f"{0:020d}.{suffix}.cleaned").write_bytes(b"")
    swap = log.begin_swap([0, 1], 0)
    assert swap is not None
    assert swap.run()
    log.truncate_to(3, NOW)
    assert [row[0] for row in rows(log)] == [2]
    assert [int(one.base_offset) for one in log.segments] == [0, 2, 3]
