"""Opening a log after an unclean stop: a catalogue of damage."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.log.checkpoints import CheckpointDamaged
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.recovery import Opening, open_log
from tidemill.log.removals import Removals
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.reader import iter_batches
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
MakeBatch = Callable[..., Batch]
MakeLog = Callable[..., Log]
SMALL = {"segment_bytes": 3000, "index_interval_bytes": 300, "segment_index_bytes": 480}
FIRST = "00000000000000000000"


def opening(
    directory: str,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    files: Files | None = None,
    lost_unsynced: bool = False,
    **settings: object,
) -> tuple[Log, list[str]]:
    one = Opening(
        files or SystemFiles(),
        directory,
        TopicPartition("events", 0),
        LogConfig(**{**SMALL, **settings}),  # type: ignore[arg-type]
        removals=Removals(),
        now_ms=NOW,
        clean=clean,
        recovery_point=recovery_point,
        lost_unsynced=lost_unsynced,
    )
    return one.open(), one.warnings


def offsets(log: Log) -> list[int]:
    """Every batch's base offset, read through the log."""
    found: list[int] = []
    offset = int(log.start_offset)
    while offset < log.end_offset:
        part = log.read(offset, 700, log.end_offset, True)
        assert part is not None
        data = part.read()
        batches = list(iter_batches(data))
        found += [int(batch.base_offset) for batch in batches]
        offset = int(batches[-1].last_offset) + 1
    return found


@pytest.fixture
def filled(log_of: MakeLog, batch: MakeBatch) -> Log:
    """60 batches of two records, 120 offsets, in several segments; not closed."""
    log = log_of(SMALL)
    for number in range(60):
        log.append(
            [batch(2, timestamp=NOW + number, producer_id=5, producer_epoch=0, base_sequence=number * 2)],
            number // 25,
            NOW,
        )
    assert len(log.segments) > 2
    return log


def path_of(log: Log, at: int, suffix: str = ".log") -> Path:
    return Path(log.segments[at].path).with_suffix(suffix)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_an_unclean_stop_without_damage_loses_nothing(filled: Log, directory: str) -> None:
    log, warnings = opening(directory)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])
    assert log.producer_state.entries[5].last_sequence == 119
    assert len(log.producer_state.entries[5].batches) == 5


def test_appends_go_on_after_recovery(filled: Log, directory: str, batch: MakeBatch) -> None:
    log, _ = opening(directory)
    assert log.append([batch(3)], 2, NOW).base_offset == 120
    again, warnings = opening(directory)
    assert (again.end_offset, warnings) == (123, [])


def test_a_truncated_last_batch_is_cut(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    os.truncate(path, path.stat().st_size - 7)
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 118, 2))
    assert len(warnings) == 1
    assert "truncation at byte" in warnings[0]
    assert "(offset 118)" in warnings[0]
    assert "events-0: the end from offset 118 on is cut" in warnings[0]


def test_garbage_after_the_last_batch_is_cut(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    with path.open("ab") as file:
        file.write(b"\x07garbage" * 20)
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 120, 2))
    assert "corruption at byte" in warnings[0]
    assert "160 bytes are cut" in warnings[0]


def test_zeros_after_the_last_batch_are_a_truncation(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    os.truncate(path, path.stat().st_size + 5000)
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 120, 2))
    assert "truncation at byte" in warnings[0]


def test_a_flipped_bit_cuts_the_log_there_and_removes_later_segments(filled: Log, directory: str) -> None:
    path = path_of(filled, 1)
    base = filled.segments[1].base_offset
    flip(path, 100)
    log, warnings = opening(directory)
    assert log.end_offset == base
    assert offsets(log) == list(range(0, base, 2))
    assert len(warnings) == 1
    assert f"events-0: the records of offsets {base} to 119 are cut" in warnings[0]
    assert "has checksum" in warnings[0]
    assert f"and {len(filled.segments) - 2} later segments removed" in warnings[0]
    assert list(Path(directory).glob("*.log.deleted"))


def test_a_flipped_bit_before_the_recovery_point_is_not_looked_for(filled: Log, directory: str) -> None:
    flip(path_of(filled, 0), 100)
    log, warnings = opening(directory, recovery_point=110)
    assert (log.end_offset, warnings) == (120, [])


def test_a_length_that_lies_cuts_the_log(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 8, 0x7FFFFFF0)
    path.write_bytes(data)
    log, warnings = opening(directory)
    assert log.end_offset == filled.active.base_offset
    assert "says that it has 2147483644 bytes" in warnings[0]


def test_offsets_that_go_back_cut_the_log(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    data = path.read_bytes()
    size = 12 + int.from_bytes(data[8:12], "big")
    path.write_bytes(data + data[:size])
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 120, 2))
    assert "comes where 120 or later must be" in warnings[0]


@pytest.mark.parametrize("offset", [1 << 33, 1 << 60, 0])
def test_an_offset_that_no_index_can_name_cuts_a_log_whose_index_is_gone(
    offset: int, directory: str, log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of(SMALL)
    log.roll_over_gap(1000, NOW)
    for _ in range(6):
        log.append([batch(4)], 0, NOW)
    log.close(NOW)
    path = Path(directory, "00000000000000001000.log")
    data = bytearray(path.read_bytes())
    at = len(data) // 6 * 4
    data[at : at + 8] = offset.to_bytes(8, "big")
    path.write_bytes(bytes(data))
    path.with_suffix(".index").unlink()
    again, _ = opening(directory)
    assert again.end_offset == 1016


def test_an_unknown_magic_byte_cuts_the_log(filled: Log, directory: str) -> None:
    path = path_of(filled, -1)
    data = bytearray(path.read_bytes())
    data[16] = 9
    path.write_bytes(data)
    log, warnings = opening(directory)
    assert log.end_offset == filled.active.base_offset
    assert "magic byte 9 is not known" in warnings[0]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size", "backwards", "beyond the log", "garbage"])
@pytest.mark.parametrize("recovery_point", [0, 119])
def test_a_damaged_index_is_made_anew(
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
    log.segments[0].index.trim()
    log.segments[0].time_index.trim()
    assert path.read_bytes() == good
    if recovery_point:
        assert [
            warning for warning in warnings if "indexes are made anew" in warning or damage == "missing"
        ] or (damage == "missing")


def test_a_damaged_index_is_noticed_by_a_lookup_after_a_clean_stop(filled: Log, directory: str) -> None:
    path = path_of(filled, 0, ".index")
    good = path.read_bytes()
    filled.close(NOW)
    data = bytearray(good)
    for at in range(0, len(data), 8):
        struct.pack_into(">i", data, at + 4, struct.unpack_from(">i", data, at + 4)[0] + 3)
    path.write_bytes(data)
    log, warnings = opening(directory, clean=True)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))
    for offset in range(20):
        part = log.read(offset, 1, 120, True)
        assert part is not None
        assert int.from_bytes(part.read()[:8], "big") == offset // 2 * 2


def times_found(log: Log) -> list[int]:
    """The offset found for the time of each of the batches of ``timed``."""
    found = [log.offset_for_timestamp(NOW + number) for number in range(60)]
    return [one[1] for one in found if one is not None]


def timed(log: Log, batch: MakeBatch) -> None:
    """60 batches of two records, each a millisecond after the one before; closed."""
    for number in range(60):
        log.append([batch(2, timestamp=NOW + number)], 0, NOW)
    assert len(log.segments) > 2
    log.close(NOW)


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("how", ["missing at a clean start", "missing at a recovery", "damaged"])
def test_times_are_found_after_the_next_start_when_an_index_was_made_anew(
    log_of: MakeLog, batch: MakeBatch, directory: str, at: int, how: str
) -> None:
    log = log_of({**SMALL, "index_interval_bytes": 1000})
    timed(log, batch)
    sizes = {one.name: one.stat().st_size for one in Path(directory).glob("*index")}
    path = path_of(log, at, ".index" if how == "damaged" else ".timeindex")
    if how == "damaged":
        data = bytearray(path.read_bytes())
        for entry in range(0, len(data), 8):
            struct.pack_into(">i", data, entry + 4, struct.unpack_from(">i", data, entry + 4)[0] + 3)
        path.write_bytes(data)
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


def test_an_index_made_anew_is_there_after_a_power_cut(batch: MakeBatch) -> None:
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
    assert "both indexes are made anew" in warnings[0]
    recovered.close(NOW)
    files.power_cut()
    again, warnings = opening(directory, clean=True, files=files)
    assert (times_found(again), warnings) == (list(range(0, 120, 2)), [])


@pytest.mark.parametrize("is_synced_again", [False, True])
def test_times_are_found_after_a_power_cut_in_a_segment_that_was_rolled_at_the_recovery_point(
    batch: MakeBatch, is_synced_again: bool
) -> None:
    files = FaultyFiles()
    directory = "/data/events-0"
    files.make_directory(directory)
    log = open_log(files, directory, TopicPartition("events", 0), LogConfig(**SMALL))
    number = 0
    while len(log.segments) == 1:
        log.flush(NOW)
        log.append([batch(2, timestamp=NOW + number)], 0, NOW)
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


def test_preallocated_zero_tails_of_indexes_are_no_damage(filled: Log, directory: str) -> None:
    for segment in filled.segments[:-1]:
        for index, full in ((segment.index.path, 480), (segment.time_index.path, 480)):
            os.truncate(index, full)
    log, warnings = opening(directory, recovery_point=119)
    assert warnings == []
    assert offsets(log) == list(range(0, 120, 2))


def test_a_missing_snapshot_is_read_from_the_log(filled: Log, directory: str) -> None:
    for path in Path(directory).glob("*.snapshot"):
        path.unlink()
    log, warnings = opening(directory, recovery_point=119)
    assert warnings == []
    assert log.producer_state.entries[5].last_sequence == 119


def test_a_damaged_snapshot_is_removed_and_the_log_read(filled: Log, directory: str) -> None:
    damaged = sorted(Path(directory).glob("*.snapshot"))
    for path in damaged:
        flip(path, 20)
    log, warnings = opening(directory, recovery_point=119)
    assert [kept.last_sequence for kept in log.producer_state.entries[5].batches] == [111, 113, 115, 117, 119]
    assert len([warning for warning in warnings if "has checksum" in warning]) >= 1


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_the_newest_snapshot_that_is_whole_tells_of_producers_whose_batches_are_gone(
    log_of: MakeLog, batch: MakeBatch, directory: str, damaged: int
) -> None:
    log = log_of({"file_delete_delay_ms": 0})
    for producer in range(4):
        log.append([batch(1, producer_id=producer, producer_epoch=0, base_sequence=7)], 0, NOW)
        log.roll(NOW)
    log.close(NOW)
    snapshots = sorted(Path(directory).glob("*.snapshot"))
    assert len(snapshots) == 4
    for path in snapshots[4 - damaged :]:
        flip(path, 20)
    # Those of the first snapshot alone are nowhere else.
    Path(directory, f"{0:020d}.log").unlink()
    _, warnings = restored = opening(directory, recovery_point=4)
    log = restored[0]
    assert sum("has checksum" in warning for warning in warnings) == damaged
    assert sorted(log.producer_state.entries) == [0, 1, 2, 3]
    assert not any(path.exists() for path in snapshots[4 - damaged : -1])


@pytest.mark.parametrize("content", [b"", b"0\n3\n0 0\n", b"garbage", b"1\n0\n", b"0\n2\n5 0\n4 10\n"])
def test_a_damaged_leader_epoch_file_is_read_from_the_log(
    filled: Log, directory: str, content: bytes
) -> None:
    Path(directory, "leader-epoch-checkpoint").write_bytes(content)
    log, warnings = opening(directory, recovery_point=119)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])
    assert any("leader epochs are read from the log" in warning for warning in warnings)


@pytest.mark.parametrize("start", [1, 50, 60, 100, 119, 120])
def test_records_that_a_crash_brings_back_have_their_leader_epochs_again(
    filled: Log, directory: str, start: int
) -> None:
    """The process is killed after a deletion, before the log's start is written down."""
    filled.advance_start(start)
    filled.leader_epochs.save()
    assert filled.leader_epochs.starts[0] == start - 1
    log, warnings = opening(directory, recovery_point=119)
    assert (log.start_offset, log.end_offset, warnings) == (0, 120, [])
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])


def test_leader_epochs_whose_file_is_gone_are_read_from_the_log(filled: Log, directory: str) -> None:
    Path(directory, "leader-epoch-checkpoint").unlink()
    log, _ = opening(directory, recovery_point=119)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 50, 100])
    assert b"2 100" in Path(directory, "leader-epoch-checkpoint").read_bytes()


KNOWN_FILES = (None, b"", b"0\n1\n0 0\n", b"0\n2\n0 0\n1 4\n")


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("content", KNOWN_FILES)
def test_an_epoch_whose_first_batches_were_compacted_begins_where_the_log_ended_before(
    log_of: MakeLog, batch: MakeBatch, directory: str, content: bytes | None, rolled: bool
) -> None:
    """Else a replica with records of the epoch before at those offsets would not be told to cut them."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (2, 0), (6, 0), (20, 1)):
        if base == 20 and rolled:
            log.roll(NOW)
        log.append_as_follower(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    first = path_of(log, 0)
    size = len(batch(2).to_bytes())
    data = first.read_bytes()
    first.write_bytes(data[: 2 * size] + data[3 * size :])  # What was at 6 is compacted away.
    file = Path(directory, "leader-epoch-checkpoint")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    again, warnings = opening(directory)
    assert offsets(again) == [0, 2, 20]
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([0, 1], [0, 4])
    assert len(warnings) == (content == b"")


def test_an_epoch_that_begins_later_by_its_file_is_believed(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    """Apache Kafka notes the first batch that it gets of an epoch."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (20, 1), (30, 2)):
        log.append_as_follower(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    Path(directory, "leader-epoch-checkpoint").write_bytes(b"0\n3\n0 0\n1 20\n2 30\n")
    again, warnings = opening(directory)
    assert warnings == []
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([0, 1, 2], [0, 20, 30])


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_power_cut_the_leader_epochs_of_unsynced_batches_are_those_of_the_batches(
    log_of: MakeLog, batch: MakeBatch, directory: str, lost: bool
) -> None:
    """The log was cut at 2 and followed an earlier leader; the cut brought back the file of before."""
    log = log_of(SMALL)
    for base, epoch in ((0, 0), (2, 1), (4, 1)):
        log.append_as_follower(batch(2, base_offset=base, leader_epoch=epoch).to_bytes(), NOW)
    file = Path(directory, "leader-epoch-checkpoint")
    file.write_bytes(b"0\n2\n0 0\n3 2\n")
    again, warnings = opening(directory, recovery_point=2, lost_unsynced=lost)
    assert again.end_offset == 6
    expected = ([0, 1], [0, 2]) if lost else ([0, 3], [0, 2])
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == expected
    assert (b"1 2" in file.read_bytes()) == lost
    assert len(warnings) == (not lost)


def test_batches_without_a_leader_epoch_are_not_looked_through_for_one(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = log_of(SMALL)
    log.append([batch(2)], -1, NOW)
    log.append([batch(2)], 3, NOW)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3], [2])
    again, _ = opening(directory)
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([3], [2])


def test_a_missing_last_segment_ends_the_log_before_it(filled: Log, directory: str) -> None:
    path_of(filled, -1).unlink()
    log, _ = opening(directory)
    assert log.end_offset == filled.active.base_offset
    assert offsets(log) == list(range(0, int(filled.active.base_offset), 2))


def test_an_empty_last_segment_is_kept(filled: Log, directory: str) -> None:
    filled.roll(NOW)
    log, warnings = opening(directory)
    assert (log.end_offset, log.active.base_offset, log.active.size, warnings) == (120, 120, 0, [])


def test_stray_files_are_left_alone_and_named(filled: Log, directory: str) -> None:
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
    assert any("has no log file beside it" in warning for warning in warnings)


def test_what_a_removal_had_renamed_is_removed(filled: Log, directory: str) -> None:
    gone = path_of(filled, 0)
    gone.rename(gone.with_suffix(".log.deleted"))
    Path(directory, f"{FIRST}.log.cleaned").write_bytes(b"half")
    log, _ = opening(directory)
    assert log.start_offset == filled.segments[1].base_offset
    assert (
        sorted(path.name for path in Path(directory).iterdir() if path.suffix in (".deleted", ".cleaned"))
        == []
    )


def test_a_swap_that_a_crash_interrupted_is_ended(filled: Log, directory: str) -> None:
    merged = path_of(filled, 0).read_bytes() + path_of(filled, 1).read_bytes()
    Path(directory, f"{FIRST}.log.swap").write_bytes(merged)
    log, warnings = opening(directory)
    assert offsets(log) == list(range(0, 120, 2))
    assert [int(segment.base_offset) for segment in log.segments[:2]] == [
        0,
        int(filled.segments[2].base_offset),
    ]
    assert any("compaction that a crash had interrupted" in warning for warning in warnings)


def test_a_clean_stop_whose_end_is_damaged_is_recovered(filled: Log, directory: str) -> None:
    filled.close(NOW)
    path = path_of(filled, -1)
    os.truncate(path, path.stat().st_size - 3)
    log, warnings = opening(directory, clean=True)
    assert offsets(log) == list(range(0, 118, 2))
    assert "although the last stop was a clean one" in warnings[0]


def test_a_log_cut_at_every_byte_of_its_last_two_batches_serves_a_valid_prefix(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = log_of(SMALL)
    for _ in range(6):
        log.append([batch(2)], 0, NOW)
    log.release()
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
            assert again.append([batch(1)], 0, NOW).base_offset == batches * 2
            again.release()
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


def test_checkpoints_name_what_is_wrong() -> None:
    from tidemill.log.checkpoints import parse_checkpoint

    with pytest.raises(CheckpointDamaged, match="does not have the 2 entries of 3 fields"):
        parse_checkpoint(b"0\n2\nt 0 5\n", 3, "x")


def test_a_log_that_ends_before_its_start_offset_begins_anew_there(filled: Log, directory: str) -> None:
    one = Opening(
        SystemFiles(),
        directory,
        TopicPartition("events", 0),
        LogConfig(segment_bytes=3000),
        removals=Removals(),
        now_ms=NOW,
        start_offset=500,
    )
    log = one.open()
    assert (log.start_offset, log.end_offset, len(log.segments)) == (500, 500, 1)
    assert log.producer_state.entries == {}, "later records of the producer are gone"
    assert not list(Path(directory).glob("*.snapshot"))
    assert "before its start offset 500" in one.warnings[0]
