"""Offset index and time index: layout, lookups, and state after a crash."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log.offset_index import OffsetIndex
from tidemill.log.system_files import SystemFiles
from tidemill.log.time_index import TimeIndex

BASE = 1000
MakeIndex = Callable[..., OffsetIndex]


@pytest.fixture
def index(tmp_path: Path) -> MakeIndex:
    def make(bytes_max: int = 800, create: bool = True) -> OffsetIndex:
        made = OffsetIndex(SystemFiles(), str(tmp_path / "i.index"), BASE, bytes_max)
        if create:
            made.create()
        return made

    return make


@pytest.fixture
def time_index(tmp_path: Path) -> TimeIndex:
    made = TimeIndex(SystemFiles(), str(tmp_path / "i.timeindex"), BASE, 120)
    made.create()
    return made


def test_offset_index_entries_have_kafkas_layout(index: MakeIndex, tmp_path: Path) -> None:
    made = index()
    made.append(BASE + 3, 497)
    made.append(BASE + 259, 66_000)
    data = (tmp_path / "i.index").read_bytes()
    assert len(data) == 800
    assert data[:16] == bytes.fromhex("00000003 000001f1 00000103 000101d0")
    assert data[16:] == bytes(784)


def test_time_index_entries_have_kafkas_layout(time_index: TimeIndex, tmp_path: Path) -> None:
    time_index.append(1524709879130, BASE + 5)
    assert (tmp_path / "i.timeindex").read_bytes()[:12] == bytes.fromhex("00000162ffca6d5a 00000005")


def test_entry_3_497_maps_the_fourth_message_to_byte_497(index: MakeIndex) -> None:
    made = index()
    made.append(BASE + 3, 497)
    assert [made.lookup(BASE + relative) for relative in (0, 2, 3, 4)] == [0, 0, 497, 497]


@given(
    entries=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=60),
    probe=st.integers(0, 4000),
)
def test_a_lookup_finds_the_last_entry_at_or_before_the_offset(
    entries: list[tuple[int, int]], probe: int
) -> None:
    made = OffsetIndex(FaultyFiles(), "/i.index", BASE, 4096)
    made.create()
    offset, position, model = BASE, 0, []
    for step, size in entries:
        offset, position = offset + step, position + size
        made.append(offset, position)
        model.append((offset, position))
    fresh = OffsetIndex(made.files, "/i.index", BASE, 4096)
    for tried in (made, fresh):
        assert tried.lookup(BASE + probe) == max((p for o, p in model if o <= BASE + probe), default=0)
        assert tried.position_floor(probe * 10) == max((p for o, p in model if p <= probe * 10), default=0)
        columns = [tried.columns(slot) for slot in range(tried.entries)]
        assert [(BASE + offset, position) for offset, position in columns] == model


def test_trailing_zeros_are_not_entries(index: MakeIndex) -> None:
    made = index()
    for step in range(1, 11):
        made.append(BASE + step, step * 100)
    made.close_handlers()
    again = index(create=False)
    assert again.lookup(BASE + 99) == 1000
    assert again.entries == 10
    assert again.damage(2000) == ""
    again.append(BASE + 20, 1500)
    assert again.lookup(BASE + 99) == 1500


def test_appends_continue_after_trimming_to_the_entries(index: MakeIndex, tmp_path: Path) -> None:
    made = index()
    made.append(BASE + 1, 50)
    made.trim_to_valid_size()
    assert (tmp_path / "i.index").stat().st_size == 8
    again = index(create=False)
    again.append(BASE + 2, 90)
    assert (again.lookup(BASE + 1), again.lookup(BASE + 2)) == (50, 90)
    assert (tmp_path / "i.index").stat().st_size == 800


def test_an_index_is_full_at_its_maximum_size(index: MakeIndex) -> None:
    made = index(bytes_max=25)
    for step in (1, 2, 3):
        assert not made.is_full
        made.append(BASE + step, step)
    assert made.is_full


@pytest.mark.parametrize(("kind", "bytes_max"), [(OffsetIndex, 3 * 8), (TimeIndex, 4 * 12)])
def test_a_full_index_is_full_after_a_restart(kind: type[OffsetIndex | TimeIndex], bytes_max: int) -> None:
    """Three entries fill it: one more of the time index is reserved for its end."""
    files = FaultyFiles()
    made = kind(files, "/i", BASE, bytes_max)
    made.create()
    for step in range(1, 4):
        assert not kind(files, "/i", BASE, bytes_max).is_full
        if isinstance(made, TimeIndex):
            made.append(step, BASE + step)
        else:
            made.append(BASE + step, step)
    assert kind(files, "/i", BASE, bytes_max).is_full


def test_truncation_removes_entries_from_a_position(index: MakeIndex) -> None:
    made = index()
    for step in range(1, 6):
        made.append(BASE + step, step * 100)
    made.truncate_to(300)
    assert (made.entries, made.lookup(BASE + 9)) == (2, 200)
    made.append(BASE + 7, 300)
    assert made.lookup(BASE + 9) == 300


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"\0" * 7, "its size 7 is not a multiple of 8"),
        (
            bytes.fromhex("00000005 00000064 00000003 000000c8"),
            "entry 1 (3, 200) does not follow (5, 100)",
        ),
        (
            bytes.fromhex("00000003 000000c8 00000005 00000064"),
            "entry 1 (5, 100) does not follow (3, 200)",
        ),
        (bytes.fromhex("00000003 00002710"), "its last entry points to byte 10000, but the log has 5000"),
        (bytes.fromhex("80000003 00000064"), "entry 0 (-2147483645, 100) does not follow (-1, 0)"),
    ],
)
def test_a_damaged_index_is_reported_with_its_cause(
    index: MakeIndex, tmp_path: Path, content: bytes, damage: str
) -> None:
    (tmp_path / "i.index").write_bytes(content)
    assert index(create=False).damage(5000) == damage


def test_the_time_index_accepts_increasing_timestamps_only(time_index: TimeIndex) -> None:
    for timestamp, offset in ((50, 1), (40, 2), (50, 3), (60, 4)):
        time_index.append(timestamp, BASE + offset)
    assert [time_index.columns(slot) for slot in range(time_index.entries)] == [(50, 1), (60, 4)]
    assert [time_index.lookup(probe) - BASE for probe in (49, 50, 59, 60, 99)] == [0, 1, 1, 4, 4]
    assert (time_index.last_timestamp(), time_index.last_offset()) == (60, BASE + 4)


def test_the_time_index_reserves_one_entry_for_the_roll(time_index: TimeIndex) -> None:
    for step in range(9):
        assert not time_index.is_full
        time_index.append(step + 1, BASE + step)
    assert time_index.is_full
    time_index.append(100, BASE + 10)
    assert time_index.entries == 10


def index_of(files: FaultyFiles, entries: int) -> OffsetIndex:
    """An offset index of at most four pages with this number of entries; 512 fill a page."""
    made = OffsetIndex(files, "/i.index", 0, 16384)
    made.create()
    for step in range(entries):
        made.append(step + 1, step + 1)
    return made


def test_an_index_on_a_full_disk_raises_an_error_and_does_not_kill_the_process() -> None:
    files = FaultyFiles(space_bytes=4096)
    made = index_of(files, 512)
    with pytest.raises(OSError, match="No space left"):
        made.append(600, 600)
    assert made.lookup(9999) == 512
    files.space_bytes = 8192
    made.append(600, 600)
    assert made.lookup(9999) == 600


def test_an_entry_at_the_end_of_a_page_allocates_no_further_page() -> None:
    files = FaultyFiles(space_bytes=4096)
    made = index_of(files, 511)
    made.close_handlers()
    again = OffsetIndex(files, "/i.index", 0, 16384)
    again.append(512, 512)
    assert (again.entries, again.lookup(9999)) == (512, 512)
    with pytest.raises(OSError, match="No space left"):
        again.append(513, 513)


def test_a_clean_restart_keeps_the_index_interval(log_of: MakeLog, batch: MakeBatch, tmp_path: Path) -> None:
    settings = {"index_interval_bytes": 1000}
    made: list[list[int]] = []
    for restarts in (False, True):
        directory = tmp_path / f"restarts-{restarts}"
        directory.mkdir()
        log = log_of(settings, directory=str(directory))
        entries = []
        for _ in range(30):
            log.append(batch(1, value=bytes(150)), 0, NOW)
            if restarts:
                log.close(NOW)
                log = log_of(settings, directory=str(directory), clean=True)
            entries.append(int(log.active.index.entries))
        made.append(entries)
    assert made[0] == made[1]
    assert made[0][-1] > 4


def test_an_index_finds_the_remaining_entries_after_a_partial_truncation() -> None:
    files = FaultyFiles()
    made = OffsetIndex(files, "/i.index", BASE, 4096)
    made.create()
    for number in range(1, 4):
        made.append(BASE + 10 * number, 100 * number)
    files.fail("truncate", "/i.index", errno.ENOSPC, after=1)
    with pytest.raises(OSError, match="No space left"):
        made.truncate_to(300)
    assert made.lookup(BASE + 100) == 200
    made.append(BASE + 40, 350)
    assert [made.lookup(BASE + offset) for offset in (19, 29, 39, 49)] == [100, 200, 200, 350]
