"""Opening a log after an unclean shutdown, with various kinds of damage."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from log_stage import NOW, MakeBatch, MakeLog, flip, stored

from log_start import open_log
from tidemill.log import lost_records
from tidemill.log.checkpoint_files import CheckpointDamaged
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.system_files import SystemFiles
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition

SMALL = {"segment_bytes": 3000, "index_interval_bytes": 300, "segment_index_bytes": 480}
FIRST = "00000000000000000000"


def opening(
    directory: str,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    files: Files | None = None,
    lost_unsynced: bool = False,
    start_offset: int = 0,
    **settings: object,
) -> tuple[Log, list[str]]:
    one = LogLoader(
        files or SystemFiles(),
        directory,
        TopicPartition("events", 0),
        LogConfig(**{**SMALL, **settings}),  # type: ignore[arg-type]
        removals=DelayedFileRemoval(),
        now_ms=NOW,
        clean=clean,
        recovery_point=recovery_point,
        lost_unsynced=lost_unsynced,
        start_offset=start_offset,
    )
    return one.open(), one.warnings


def offsets(log: Log) -> list[int]:
    """Returns every batch's base offset, read through the log."""
    return [int(one.base_offset) for one in stored(log, 700)]


@pytest.fixture
def filled(log_of: MakeLog, batch: MakeBatch) -> Log:
    """60 batches of two records, 120 offsets, in several segments; not closed."""
    log = log_of(SMALL)
    for number in range(60):
        log.append(
            batch(2, timestamp=NOW + number, producer_id=5, producer_epoch=0, base_sequence=number * 2),
            number // 25,
            NOW,
        )
    assert len(log.segments) > 2
    return log


def path_of(log: Log, at: int, suffix: str = ".log") -> Path:
    return Path(log.segments[at].path).with_suffix(suffix)


def test_an_unclean_shutdown_without_damage_loses_no_record(filled: Log, directory: str) -> None:
    log, warnings = opening(directory)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])
    assert log.producer_state.entries[5].last_sequence == 119
    assert len(log.producer_state.entries[5].batches) == 5


def test_appends_continue_after_recovery(filled: Log, directory: str, batch: MakeBatch) -> None:
    log, _ = opening(directory)
    assert log.append(batch(3), 2, NOW).base_offset == 120
    again, warnings = opening(directory)
    assert (again.end_offset, warnings) == (123, [])


def first_batch(data: bytes) -> bytes:
    return data[: 12 + int.from_bytes(data[8:12], "big")]


@pytest.mark.parametrize(
    ("damage", "end", "reported"),
    [
        pytest.param(
            lambda data: data[:-7],
            118,
            ["truncation at byte", "(offset 118)", "events-0: the end from offset 118 on is truncated"],
            id="an incomplete last batch",
        ),
        pytest.param(
            lambda data: data + b"\x07garbage" * 20,
            120,
            ["corruption at byte", "160 bytes are truncated"],
            id="garbage after the last batch",
        ),
        pytest.param(
            lambda data: data + bytes(5000), 120, ["truncation at byte"], id="zeros after the last batch"
        ),
        pytest.param(
            lambda data: data + first_batch(data), 120, ["expected 120 or later"], id="decreasing offsets"
        ),
        pytest.param(
            lambda data: data[:8] + (0x7FFFFFF0).to_bytes(4, "big") + data[12:],
            None,
            ["length is 2147483644 bytes"],
            id="a wrong length of the first batch",
        ),
        pytest.param(
            lambda data: data[:16] + b"\x09" + data[17:],
            None,
            ["magic byte 9 is unknown"],
            id="an unknown magic byte of the first batch",
        ),
    ],
)
def test_damage_in_the_last_segment_truncates_the_log(
    filled: Log, directory: str, damage: Callable[[bytes], bytes], end: int | None, reported: list[str]
) -> None:
    """Without ``end`` no batch of the segment is valid."""
    path = path_of(filled, -1)
    path.write_bytes(damage(path.read_bytes()))
    log, (warning,) = opening(directory)
    assert log.end_offset == (filled.active.base_offset if end is None else end)
    assert offsets(log) == list(range(0, int(log.end_offset), 2))
    assert [text for text in reported if text not in warning] == []


def test_a_flipped_bit_truncates_the_log_and_removes_later_segments(filled: Log, directory: str) -> None:
    path = path_of(filled, 1)
    base = filled.segments[1].base_offset
    flip(path, 100)
    log, warnings = opening(directory)
    assert log.end_offset == base
    assert offsets(log) == list(range(0, base, 2))
    assert len(warnings) == 1
    assert f"events-0: the records of offsets {base} to 119 are truncated" in warnings[0]
    assert "has checksum" in warnings[0]
    assert f"; {len(filled.segments) - 2} later segments are kept as .cut files" in warnings[0]
    assert list(Path(directory).glob("*.index.deleted"))


def position_in(data: bytes, number: int) -> int:
    """Returns the position of a batch in the bytes of a segment."""
    position = 0
    for _ in range(number):
        position += len(first_batch(data[position:]))
    return position


def wrong_checksum(data: bytearray, at: int) -> None:
    data[at + 80] ^= 1


def wrong_length(data: bytearray, at: int) -> None:
    data[at + 8] ^= 0x40


def zeros(data: bytearray, at: int) -> None:
    data[at : at + 100] = bytes(100)


def wrong_offset(data: bytearray, at: int) -> None:
    data[at + 6] ^= 0x10


@pytest.mark.parametrize("damage", [wrong_checksum, wrong_length, zeros, wrong_offset])
@pytest.mark.parametrize("at_segment", [1, -1])
def test_valid_batches_after_damage_are_kept(
    filled: Log, directory: str, damage: Callable[[bytearray, int], None], at_segment: int
) -> None:
    path = path_of(filled, at_segment)
    data = bytearray(path.read_bytes())
    at = position_in(data, 2)
    damage(data, at)
    path.write_bytes(data)
    later = {
        path_of(filled, number): path_of(filled, number).read_bytes()
        for number in range(len(filled.segments))
        if filled.segments[number].base_offset > int(path.stem)
    }
    log, (warning,) = opening(directory)
    assert log.end_offset == int(path.stem) + 4
    cut = path.with_name(f"{path.name}.{at}.cut")
    assert cut.read_bytes() == data[at:]
    assert f"they are kept in {cut}" in warning
    assert [Path(f"{one}.0.cut").read_bytes() for one in later] == list(later.values())
    assert (f"{len(later)} later segments are kept as .cut files" in warning) == bool(later)
    assert Path(directory, "records-lost").exists()


def test_a_last_batch_behind_inserted_bytes_is_kept(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    data = path.read_bytes()
    at = position_in(data, 2)
    last = first_batch(data[at:])
    path.write_bytes(data[:at] + b"garbage" + last)
    opening(directory, recovery_point=int(path.stem))
    (cut,) = Path(directory).glob("*.cut")
    assert cut.read_bytes() == b"garbage" + last


def test_the_damaged_end_below_the_recovery_point_is_kept(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    log, (warning,) = opening(directory, recovery_point=120)
    assert log.end_offset == 118
    (cut,) = Path(directory).glob("*.cut")
    assert data[:-7].endswith(cut.read_bytes())
    assert f"they are kept in {cut}" in warning


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-7],
        lambda data: data + bytes(5000),
        lambda data: data + b"\x07garbage" * 20,
        lambda data: data[:-100] + bytes(100),
        lambda data: data + first_batch(data),
    ],
    ids=["incomplete", "zeros", "garbage", "a partly written batch", "an earlier batch"],
)
def test_the_end_of_an_interrupted_write_is_not_kept(
    filled: Log, directory: str, damage: Callable[[bytes], bytes]
) -> None:
    path = path_of(filled, -1)
    path.write_bytes(damage(path.read_bytes()))
    opening(directory, recovery_point=118)
    assert not list(Path(directory).glob("*.cut"))


def test_a_long_damaged_end_is_kept_without_a_search_of_all_its_bytes(
    filled: Log, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_records, "SEARCHED_BYTES_MAX", 3000)
    path = path_of(filled, -1)
    path.write_bytes(path.read_bytes() + b"\x07garbage" * 500)
    opening(directory)
    (cut,) = Path(directory).glob("*.cut")
    assert cut.read_bytes() == b"\x07garbage" * 500


def test_a_flipped_bit_before_the_recovery_point_is_not_detected(filled: Log, directory: str) -> None:
    flip(path_of(filled, 0), 100)
    log, warnings = opening(directory, recovery_point=110)
    assert (log.end_offset, warnings) == (120, [])


@pytest.mark.parametrize("offset", [1 << 33, 1 << 60, 0])
def test_an_offset_outside_the_index_range_truncates_a_log_without_index(
    offset: int, directory: str, log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of(SMALL)
    log.roll_over_gap(1000, NOW)
    for _ in range(6):
        log.append(batch(4), 0, NOW)
    log.close(NOW)
    path = Path(directory, "00000000000000001000.log")
    data = bytearray(path.read_bytes())
    at = len(data) // 6 * 4
    data[at : at + 8] = offset.to_bytes(8, "big")
    path.write_bytes(bytes(data))
    path.with_suffix(".index").unlink()
    again, _ = opening(directory)
    assert again.end_offset == 1016


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size", "backwards", "beyond the log", "garbage"])
@pytest.mark.parametrize("recovery_point", [0, 119])
def test_a_damaged_index_is_rebuilt(
    filled: Log, directory: str, suffix: str, damage: str, recovery_point: int
) -> None:
    path = path_of(filled, 0, suffix)
    good = path.read_bytes()
    entry = 8 if suffix == ".index" else 12
    if damage == "missing":
        path.unlink()
    elif damage == "odd size":
        path.write_bytes(good + b"\1")
    elif damage == "backwards":
        path.write_bytes(good[entry : 2 * entry] + good[:entry])
    elif damage == "beyond the log":
        path.write_bytes(good[:-4] + b"\x0f\xff\xff\xff")
    else:
        path.write_bytes(bytes(range(1, 1 + 2 * entry)))
    log, warnings = opening(directory, recovery_point=recovery_point)
    assert offsets(log) == list(range(0, 120, 2))
    assert log.offset_for_timestamp(NOW + 3) == (NOW + 3, 6)
    log.segments[0].index.trim_to_valid_size()
    log.segments[0].time_index.trim_to_valid_size()
    assert path.read_bytes() == good
    if recovery_point:
        assert [
            warning for warning in warnings if "indexes are rebuilt" in warning or damage == "missing"
        ] or (damage == "missing")


def test_a_lookup_after_a_clean_shutdown_detects_a_damaged_index(filled: Log, directory: str) -> None:
    path = path_of(filled, 0, ".index")
    good = path.read_bytes()
    filled.close(NOW)
    path.write_bytes(good)
    shift_positions(path)
    log, warnings = opening(directory, clean=True)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))
    for offset in range(20):
        part = log.read(offset, 1, 120, True)
        assert part is not None
        assert int.from_bytes(part.read()[:8], "big") == offset // 2 * 2


def shift_positions(path: Path) -> None:
    """Moves every position of an offset index by three bytes."""
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 8):
        struct.pack_into(">i", data, at + 4, struct.unpack_from(">i", data, at + 4)[0] + 3)
    path.write_bytes(data)


def times_found(log: Log) -> list[int]:
    """Returns the offset that is found for the timestamp of each batch in ``timed``."""
    found = [log.offset_for_timestamp(NOW + number) for number in range(60)]
    return [one[1] for one in found if one is not None]


def timed(log: Log, batch: MakeBatch) -> None:
    """60 batches of two records, each a millisecond after the previous; closed."""
    for number in range(60):
        log.append(batch(2, timestamp=NOW + number), 0, NOW)
    assert len(log.segments) > 2
    log.close(NOW)


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("how", ["missing at a clean start", "missing at a recovery", "damaged"])
def test_times_are_found_after_the_start_that_follows_an_index_rebuild(
    log_of: MakeLog, batch: MakeBatch, directory: str, at: int, how: str
) -> None:
    log = log_of({**SMALL, "index_interval_bytes": 1000})
    timed(log, batch)
    sizes = {one.name: one.stat().st_size for one in Path(directory).glob("*index")}
    path = path_of(log, at, ".index" if how == "damaged" else ".timeindex")
    if how == "damaged":
        shift_positions(path)
    else:
        path.unlink()
    is_clean = how != "missing at a recovery"
    log, _ = opening(
        directory, clean=is_clean, recovery_point=0 if is_clean else 119, index_interval_bytes=1000
    )
    for offset in range(120):
        log.read(offset, 1, 120, True)
    log.close(NOW)
    again, warnings = opening(directory, clean=True)
    assert (times_found(again), warnings) == (list(range(0, 120, 2)), [])
    assert {one.name: one.stat().st_size for one in Path(directory).glob("*index")} == sizes


def test_a_rebuilt_index_survives_a_power_cut(batch: MakeBatch) -> None:
    files = FaultyFiles()
    directory = "/data/events-0"
    files.make_directory(directory)
    log = open_log(files, directory, TopicPartition("events", 0), LogConfig(**SMALL))
    timed(log, batch)
    for path in ("/", "/data"):
        files.sync_directory(path)
    path = log.segments[0].time_index.path
    good = files.read(path)
    damaged = files.open(path)
    damaged.write_at(0, b"".join(good[at : at + 12] for at in range(len(good) - 12, -1, -12)))
    damaged.sync()
    recovered, warnings = opening(directory, recovery_point=120, files=files)
    assert "both indexes are rebuilt" in warnings[0]
    recovered.close(NOW)
    files.power_cut()
    again, warnings = opening(directory, clean=True, files=files)
    assert (times_found(again), warnings) == (list(range(0, 120, 2)), [])


@pytest.mark.parametrize("is_synced_again", [False, True])
def test_times_are_found_after_a_power_cut_in_a_segment_rolled_at_the_recovery_point(
    batch: MakeBatch, is_synced_again: bool
) -> None:
    files = FaultyFiles()
    directory = "/data/events-0"
    files.make_directory(directory)
    log = open_log(files, directory, TopicPartition("events", 0), LogConfig(**SMALL))
    number = 0
    while len(log.segments) == 1:
        log.flush(NOW)
        log.append(batch(2, timestamp=NOW + number), 0, NOW)
        number += 1
    # The last sync wrote all records of the first segment, which was active then.
    rolled_at = int(log.recovery_point)
    assert rolled_at == log.active.base_offset
    files.sync_directory(directory)
    if is_synced_again:
        log.flush(NOW)
    recovery_point = int(log.recovery_point)
    for path in ("/", "/data", directory):
        files.sync_directory(path)
    files.power_cut()
    again, _ = opening(
        directory, recovery_point=recovery_point, files=files, lost_unsynced=not is_synced_again
    )
    found = [again.offset_for_timestamp(NOW + one) for one in range(recovery_point // 2)]
    assert [one[1] for one in found if one is not None] == list(range(0, recovery_point, 2))
    assert again.segments[0].max_timestamp() == NOW + rolled_at // 2 - 1


def test_preallocated_zeros_of_indexes_are_not_damage(filled: Log, directory: str) -> None:
    for segment in filled.segments[:-1]:
        for index, full in ((segment.index.path, 480), (segment.time_index.path, 480)):
            os.truncate(index, full)
    log, warnings = opening(directory, recovery_point=119)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))


def test_a_missing_snapshot_is_rebuilt_from_the_log(filled: Log, directory: str) -> None:
    for path in Path(directory).glob("*.snapshot"):
        path.unlink()
    log, warnings = opening(directory, recovery_point=119)
    assert warnings == []
    assert log.producer_state.entries[5].last_sequence == 119


def test_a_damaged_snapshot_is_removed_and_rebuilt_from_the_log(filled: Log, directory: str) -> None:
    damaged = sorted(Path(directory).glob("*.snapshot"))
    for path in damaged:
        flip(path, 20)
    log, warnings = opening(directory, recovery_point=119)
    assert [kept.last_sequence for kept in log.producer_state.entries[5].batches] == [111, 113, 115, 117, 119]
    assert len([warning for warning in warnings if "has checksum" in warning]) >= 1


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_the_newest_valid_snapshot_has_producers_without_remaining_batches(
    log_of: MakeLog, batch: MakeBatch, directory: str, damaged: int
) -> None:
    log = log_of({"file_delete_delay_ms": 0})
    for producer in range(4):
        log.append(batch(1, producer_id=producer, producer_epoch=0, base_sequence=7), 0, NOW)
        log.roll(NOW)
    log.close(NOW)
    snapshots = sorted(Path(directory).glob("*.snapshot"))
    assert len(snapshots) == 4
    for path in snapshots[4 - damaged :]:
        flip(path, 20)
    # The state of the first snapshot is in no other file.
    Path(directory, f"{0:020d}.log").unlink()
    _, warnings = restored = opening(directory, recovery_point=4)
    log = restored[0]
    assert sum("has checksum" in warning for warning in warnings) == damaged
    assert sorted(log.producer_state.entries) == [0, 1, 2, 3]
    assert not any(path.exists() for path in snapshots[4 - damaged : -1])


@pytest.mark.parametrize("content", [None, b"", b"0\n3\n0 0\n", b"garbage", b"1\n0\n", b"0\n2\n5 0\n4 10\n"])
def test_a_missing_or_damaged_leader_epoch_file_is_rebuilt_from_the_log(
    filled: Log, directory: str, content: bytes | None
) -> None:
    file = Path(directory, "leader-epoch-checkpoint")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    log, warnings = opening(directory, recovery_point=119)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])
    assert b"2 100" in file.read_bytes()
    is_reported = any("leader epochs are read from the log" in warning for warning in warnings)
    assert is_reported or content is None


@pytest.mark.parametrize("start", [1, 50, 60, 100, 119, 120])
def test_records_restored_by_a_crash_have_their_leader_epochs(
    filled: Log, directory: str, start: int
) -> None:
    """The process is killed after a deletion, before the log start offset is checkpointed."""
    filled.advance_start(start)
    filled.leader_epochs.save()
    assert filled.leader_epochs.starts[0] == start - 1
    log, warnings = opening(directory, recovery_point=119)
    assert (log.start_offset, log.end_offset, warnings) == (0, 120, [])
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])


KNOWN_FILES = (None, b"", b"0\n1\n0 0\n", b"0\n2\n0 0\n1 4\n")


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("content", KNOWN_FILES)
def test_an_epoch_with_compacted_first_batches_starts_at_the_previous_log_end_offset(
    log_of: MakeLog, batch: MakeBatch, directory: str, content: bytes | None, rolled: bool
) -> None:
    """Otherwise a replica with records of the previous epoch at those offsets would not truncate them."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (2, 0), (6, 0), (20, 1)):
        if base == 20 and rolled:
            log.roll(NOW)
        log.append_copied(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    first = path_of(log, 0)
    size = len(batch(2).to_bytes())
    data = first.read_bytes()
    first.write_bytes(data[: 2 * size] + data[3 * size :])  # The record at 6 is compacted away.
    file = Path(directory, "leader-epoch-checkpoint")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    again, warnings = opening(directory)
    assert offsets(again) == [0, 2, 20]
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([0, 1], [0, 4])
    assert len(warnings) == (content == b"")


def test_a_later_epoch_start_in_the_file_is_kept(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    """Apache Kafka records the first batch that it gets of an epoch."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (20, 1), (30, 2)):
        log.append_copied(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    Path(directory, "leader-epoch-checkpoint").write_bytes(b"0\n3\n0 0\n1 20\n2 30\n")
    again, warnings = opening(directory)
    assert warnings == []
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([0, 1, 2], [0, 20, 30])


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_power_cut_the_leader_epochs_are_those_of_the_batches(
    log_of: MakeLog, batch: MakeBatch, directory: str, lost: bool
) -> None:
    """The log was truncated to 2 and followed an earlier leader. The crash restored the former file."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (2, 1), (4, 1)):
        log.append_copied(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    file = Path(directory, "leader-epoch-checkpoint")
    file.write_bytes(b"0\n2\n0 0\n3 2\n")
    again, warnings = opening(directory, recovery_point=2, lost_unsynced=lost)
    assert again.end_offset == 6
    expected = ([0, 1], [0, 2]) if lost else ([0, 3], [0, 2])
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == expected
    assert (b"1 2" in file.read_bytes()) == lost
    assert len(warnings) == (not lost)


def test_batches_without_a_leader_epoch_are_not_scanned_for_epochs(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = log_of(SMALL)
    log.append(batch(2), -1, NOW)
    log.append(batch(2), 3, NOW)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3], [2])
    again, _ = opening(directory)
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([3], [2])


def test_a_log_with_a_missing_last_segment_ends_before_it(filled: Log, directory: str) -> None:
    path_of(filled, -1).unlink()
    log, _ = opening(directory)
    assert log.end_offset == filled.active.base_offset
    assert offsets(log) == list(range(0, int(filled.active.base_offset), 2))


def test_an_empty_last_segment_is_kept(filled: Log, directory: str) -> None:
    filled.roll(NOW)
    log, warnings = opening(directory)
    assert (log.end_offset, log.active.base_offset, log.active.size, warnings) == (120, 120, 0, [])


def test_stray_files_are_ignored_and_reported(filled: Log, directory: str) -> None:
    Path(directory, "notes.txt").write_text("mine")
    Path(directory, "12.log").write_text("too short a name")
    log, warnings = opening(directory, recovery_point=119)
    assert log.end_offset == 120
    assert sorted(warning.split(" ")[0].rsplit("/")[-1] for warning in warnings) == ["12.log", "notes.txt"]
    assert Path(directory, "notes.txt").read_text() == "mine"


def test_an_index_without_its_log_is_removed(filled: Log, directory: str) -> None:
    orphan = Path(directory, "00000000000000009999.index")
    orphan.write_bytes(b"")
    _, warnings = opening(directory, recovery_point=119)
    assert not orphan.exists()
    assert any("has no log file" in warning for warning in warnings)


def test_files_renamed_for_deletion_are_removed(filled: Log, directory: str) -> None:
    gone = path_of(filled, 0)
    gone.rename(gone.with_suffix(".log.deleted"))
    Path(directory, f"{FIRST}.log.cleaned").write_bytes(b"half")
    log, _ = opening(directory)
    assert log.start_offset == filled.segments[1].base_offset
    assert (
        sorted(path.name for path in Path(directory).iterdir() if path.suffix in (".deleted", ".cleaned"))
        == []
    )


def test_an_interrupted_swap_is_completed(filled: Log, directory: str) -> None:
    merged = path_of(filled, 0).read_bytes() + path_of(filled, 1).read_bytes()
    Path(directory, f"{FIRST}.log.swap").write_bytes(merged)
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 120, 2))
    assert [int(segment.base_offset) for segment in log.segments[:2]] == [
        0,
        int(filled.segments[2].base_offset),
    ]
    assert any("compaction that a crash had interrupted" in warning for warning in warnings)


def test_a_log_damaged_at_its_end_is_recovered_after_a_clean_shutdown(filled: Log, directory: str) -> None:
    filled.close(NOW)
    path = path_of(filled, -1)
    os.truncate(path, path.stat().st_size - 3)
    log, warnings = opening(directory, clean=True)
    assert offsets(log) == list(range(0, 118, 2))
    assert "although the last shutdown was clean" in warnings[0]


def test_a_log_truncated_at_any_byte_of_its_last_two_batches_serves_a_valid_prefix(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = log_of(SMALL)
    for _ in range(6):
        log.append(batch(2), 0, NOW)
    log.close_handlers()
    path = path_of(log, -1)
    whole = path.read_bytes()
    size = len(whole) // 6
    for length in range(len(whole) - 2 * size, len(whole) + 1):
        path.write_bytes(whole[:length])
        for clean in (False, True):
            again, warnings = opening(directory, clean=clean)
            batches = length // size
            assert again.end_offset == batches * 2
            assert offsets(again) == list(range(0, batches * 2, 2))
            assert bool(warnings) == (length % size != 0 and not clean) or clean
            assert again.append(batch(1), 0, NOW).base_offset == batches * 2
            again.close_handlers()
            path.write_bytes(whole[:length])


def test_messages_of_old_formats_are_kept(log_of: MakeLog, directory: str) -> None:
    import zlib

    def old(magic: int, offset: int) -> bytes:
        fields = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"")
        fields += struct.pack(">i3si5s", 3, b"key", 5, b"value")
        return struct.pack(">qiI", offset, len(fields) + 4, zlib.crc32(fields)) + fields

    assert (len(old(0, 0)), len(old(1, 0))) == (34, 42)
    data = b"".join(old(0, offset) for offset in range(3)) + b"".join(
        old(1, offset) for offset in range(3, 6)
    )
    path = Path(directory, f"{FIRST}.log")
    path.write_bytes(data)
    log, warnings = opening(directory)
    assert (log.end_offset, warnings) == (6, [])
    path.write_bytes(data[:-1] + b"X")
    log, warnings = opening(directory)
    assert log.end_offset == 5
    assert "corruption" in warnings[0]


def test_checkpoint_errors_name_the_cause() -> None:
    from tidemill.log.checkpoint_files import parse_checkpoint

    with pytest.raises(CheckpointDamaged, match="does not have 2 entries of 3 fields"):
        parse_checkpoint(b"0\n2\nt 0 5\n", 3, "x")


def test_a_log_that_ends_before_its_log_start_offset_restarts_there(filled: Log, directory: str) -> None:
    log, warnings = opening(directory, start_offset=500)
    assert (log.start_offset, log.end_offset, len(log.segments)) == (500, 500, 1)
    assert log.producer_state.entries == {}, "later records of the producer are lost"
    assert not list(Path(directory).glob("*.snapshot"))
    assert "before its start offset 500" in warnings[0]
