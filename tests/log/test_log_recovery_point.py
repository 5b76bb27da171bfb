"""Recovery that starts within a segment: the bytes it skips, and its equality with full recovery."""

from __future__ import annotations

from random import Random

import pytest
from faulty_files import FaultyFiles
from log_stage import NOW, MakeBatch

from default_limits import iter_records
from record_builders import build_message_set
from tidemill.log import log_loader
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.log_manager import LogManager
from tidemill.model.types import TopicPartition

KEY = TopicPartition("t", 0)
AT = "/data/t-0"
CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=4000)
FIRST = f"{AT}/00000000000000000000"


@pytest.fixture(autouse=True)
def sparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips every part that can be skipped."""
    monkeypatch.setattr(log_loader, "SPARED_BYTES_MIN", 1)


def opened(files: FaultyFiles, recovery_point: int) -> tuple[Log, LogLoader]:
    one = LogLoader(
        files,
        AT,
        KEY,
        CONFIG,
        removals=DelayedFileRemoval(),
        now_ms=NOW,
        recovery_point=recovery_point,
        clean=False,
    )
    return one.open(), one


def filled(batch: MakeBatch, formats: str) -> FaultyFiles:
    """A segment of 60 appends in the given formats in turn, with random timestamps, after a kill."""
    files = FaultyFiles()
    files.make_directory(AT)
    log, _ = opened(files, 0)
    chance = Random(formats)
    sequence = 0
    for number in range(60):
        times = [NOW + chance.randrange(-5000, 5000) for _ in range(chance.randrange(1, 5))]
        kind = formats[number % len(formats)]
        if kind == "2":
            options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            made = batch(len(times), timestamp=times[0], codec=chance.choice([0, 4]), **options)
            log.append(made, number // 25, NOW)
            sequence += len(times)
        else:
            codec = chance.choice([0, 1])
            base = int(log.end_offset)
            data = build_message_set(
                int(kind), [(time, b"k", b"v" * 30) for time in times], codec, None, base
            )
            log.append_copied(data, NOW)
    files.kill()
    return files


def state(files: FaultyFiles, log: Log) -> list[object]:
    """Returns all state that recovery rebuilds, in memory and in the files."""
    found: list[object] = [
        int(log.end_offset),
        log.leader_epochs.epochs,
        log.leader_epochs.starts,
        log.max_timestamp_offset(),
        [log.offset_for_timestamp(NOW + probe) for probe in range(-5000, 5000, 500)],
        sorted((one.producer_id, one.last_sequence, one.last_offset) for one in log.producers()),
    ]
    log.close(NOW)
    found += [files.read(FIRST + suffix) for suffix in (".log", ".index", ".timeindex")]
    return found


def boundaries(log: Log) -> list[int]:
    """Returns the end offsets of the appends."""
    piece = log.read(0, 1 << 20, log.end_offset, True)
    assert piece is not None
    return [record.offset for record in iter_records(piece.read(), 0)]


@pytest.mark.parametrize("formats", ["2", "1", "0", "012", "0122"])
def test_recovery_from_any_recovery_point_equals_full_recovery(batch: MakeBatch, formats: str) -> None:
    files = filled(batch, formats)
    log, whole = opened(files, 0)
    size = log.size_bytes
    assert whole.recovered_bytes == size
    expected = state(files, log)
    spared = []
    for recovery_point in range(0, int(log.end_offset) + 1, 3):
        again = filled(batch, formats)
        log, opening = opened(again, recovery_point)
        assert opening.warnings == []
        spared.append(size - opening.recovered_bytes)
        assert state(again, log) == expected
    assert spared == sorted(spared)
    assert spared[-1] > 0.8 * size


def test_an_invalid_index_causes_full_recovery(batch: MakeBatch) -> None:
    expected = state(files := filled(batch, "2"), opened(files, 0)[0])
    for suffix, at in ((".index", 8), (".index", 12), (".index", 20), (".timeindex", 12), (".timeindex", 20)):
        files = filled(batch, "2")
        files.open(FIRST + suffix).write_at(at, b"\x7f\xff")
        log, opening = opened(files, 100)
        assert opening.warnings == []
        assert state(files, log) == expected


def test_an_index_entry_inside_a_batch_causes_full_recovery(batch: MakeBatch) -> None:
    files = filled(batch, "2")
    expected = state(files, opened(files, 0)[0])
    files = filled(batch, "2")
    index = bytearray(files.read(FIRST + ".index"))
    for at in range(7, len(index), 8):
        index[at] ^= 3 if any(index[at - 7 : at + 1]) else 0
    files.open(FIRST + ".index").write_at(0, bytes(index))
    log, opening = opened(files, 100)
    assert opening.recovered_bytes == log.size_bytes
    assert state(files, log) == expected


def test_a_log_that_ends_before_its_recovery_point_serves_its_remaining_records(batch: MakeBatch) -> None:
    whole = filled(batch, "2")
    ends = [0]
    data = whole.read(FIRST + ".log")
    while ends[-1] < len(data):
        ends.append(ends[-1] + 12 + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"))
    for size in range(0, len(data), 97):
        files = filled(batch, "2")
        files.open(FIRST + ".log").truncate(size)
        log, _ = opened(files, 140)
        assert log.size_bytes == max(end for end in ends if end <= size)


def started(files: FaultyFiles) -> LogManager:
    manager = LogManager(files, ["/data"])
    manager.unsynced_bytes_max = 4000
    manager.load(NOW, lambda topic: CONFIG)
    return manager


@pytest.mark.parametrize("seed", range(10))
def test_the_bytes_read_at_startup_are_bounded_for_any_number_of_partitions(
    batch: MakeBatch, seed: int
) -> None:
    files = FaultyFiles()
    files.make_directory("/data")
    files.sync_directory("/")
    manager = started(files)
    keys = [TopicPartition("t", number) for number in range(8)]
    logs = [manager.create(key, bytes(16), CONFIG, NOW) for key in keys]
    chance = Random(seed)
    written = [0] * len(logs)
    synced = [0] * len(logs)
    sequences = [0] * len(logs)
    for _ in range(800):
        at = chance.randrange(len(logs))
        made = batch(1, timestamp=NOW, producer_id=at, producer_epoch=0, base_sequence=sequences[at])
        logs[at].append(made, 0, NOW)
        sequences[at] += 1
        written[at] += 1
        due = manager.flushes_due(NOW)
        for log, job in due:
            assert job.is_safe_point
            job.run()
            log.finish_flush(job, NOW)
            synced[logs.index(log)] = int(log.recovery_point)
        if due:
            manager.checkpoint_recovery_points()
        assert sum(int(log.unsynced_bytes) for log in logs) <= 4200
    assert sum(synced) > 600
    if seed % 2:
        files.power_cut(chance)
    else:
        files.kill()
    again = started(files)
    # Of each log also the bytes between the recovery point and the index entry before it.
    assert again.recovered_bytes <= 4200 + len(logs) * 500
    for at, key in enumerate(keys):
        log = again.logs[key]
        assert synced[at] <= log.end_offset <= written[at]
        assert seed % 2 or log.end_offset == written[at]
        assert log.producer_state.entries[at].last_sequence == log.end_offset - 1
        names = files.list(f"/data/t-{at}")
        assert len([name for name in names if name.endswith(".snapshot")]) <= 1, names


def test_old_producer_snapshots_are_removed_except_at_segment_starts(batch: MakeBatch) -> None:
    files = FaultyFiles()
    files.make_directory("/data")
    files.sync_directory("/")
    manager = started(files)
    log = manager.create(KEY, bytes(16), CONFIG, NOW)
    kept = []
    for number in range(12):
        made = batch(1, timestamp=NOW, producer_id=1, producer_epoch=0, base_sequence=number)
        log.append(made, 0, NOW)
        if number % 4 == 3:
            log.roll(NOW)
            kept.append(f"{number + 1:020d}.snapshot")
        else:
            log.snapshots.write(log.producer_state)
    stray = f"{AT}/00000000000000000002.snapshot"
    files.replace(stray, files.read(f"{AT}/{kept[0]}"))
    assert manager.close(NOW, {}) == []
    started(files)
    assert [name for name in files.list(AT) if name.endswith(".snapshot")] == kept
