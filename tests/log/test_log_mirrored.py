"""The log of a mirror: batches of another cluster with their offsets, and the end of the mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compaction_stage import SMALL, clean
from log_stage import NOW, MakeLog

from record_builders import build_batch, build_message_set
from tidemill.log.log import Log
from tidemill.log.log_config import DAY_MS
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.records.mirror_end import build_mirror_end, ended_mirror
from tidemill.records.mirrored_batch import GAP_MAX, as_mirrored, empty_batches

ROW = (NOW, b"key", b"value", None)
EPOCH = 7


def source(base: int, count: int = 1, gap: int = 0, **options: Any) -> bytes:
    """A batch of the source, which has no batch for the ``gap`` offsets before it."""
    return as_mirrored(build_batch([ROW] * count, base_offset=base, **options), gap)


def mirror(log: Log, *batches: bytes) -> tuple[int, int, bool]:
    """Appends batches; returns the first and last offset of the result, and whether all were there."""
    data = b"".join((b"frame", *batches, b"more"))
    result, _ = log.append_mirrored(data, 5, len(data) - 4, EPOCH, NOW)
    return int(result.base_offset), int(result.last_offset), result.duplicate


def offsets(log: Log) -> list[tuple[int, int, int]]:
    """Base and last offset, and leader epoch, of each batch."""
    found = []
    for segment in log.segments:
        data = segment.file().read_at(0, segment.size)
        at = 0
        while at < len(data):
            batch = parse_batch(data, at, len(data))
            found.append((int(batch.base_offset), int(batch.last_offset), int(batch.leader_epoch)))
            at += int(batch.size)
    return found


def test_batches_keep_their_offsets_and_get_the_leader_epoch(log_of: MakeLog) -> None:
    log = log_of()
    assert mirror(log, source(40, 3, 40), source(50, gap=7)) == (40, 50, False)
    assert mirror(log, source(60, 2, 9)) == (60, 61, False)
    assert offsets(log) == [(40, 42, EPOCH), (50, 50, EPOCH), (60, 61, EPOCH)]
    assert (log.start_offset, log.end_offset) == (0, 62)
    assert log.leader_epochs.latest == EPOCH


def test_batches_below_the_end_are_skipped(log_of: MakeLog) -> None:
    log = log_of()
    first, second, third = source(0, 3), source(5, gap=2), source(6, 2)
    mirror(log, first, second)
    assert mirror(log, first, second) == (0, 5, True)
    assert mirror(log, first, second, third) == (0, 7, False)
    assert offsets(log) == [(0, 2, EPOCH), (5, 5, EPOCH), (6, 7, EPOCH)]


@pytest.mark.parametrize("batches", [(source(1, 5),), (source(3), source(4, 2), source(5))])
def test_batches_that_overlap_are_refused_as_a_whole(log_of: MakeLog, batches: tuple[bytes, ...]) -> None:
    log = log_of()
    mirror(log, source(0, 3))
    with pytest.raises(KafkaError, match="a mirrored batch has the offsets") as caught:
        mirror(log, *batches)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(log) == [(0, 2, EPOCH)]


@pytest.mark.parametrize("epoch", [-1, 0, 7])
def test_batches_of_ordinary_producers_are_refused_also_as_duplicates(log_of: MakeLog, epoch: int) -> None:
    log = log_of()
    mirror(log, source(0, 3))
    for base in (0, 3):
        ordinary = build_batch([ROW], leader_epoch=epoch, base_offset=base)
        for batches in ((ordinary,), (source(3), ordinary)):
            with pytest.raises(KafkaError, match="no batch of its source") as caught:
                mirror(log, *batches)
            assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert offsets(log) == [(0, 2, EPOCH)]


@pytest.mark.parametrize(
    "batches",
    [
        (source(4),),
        (source(9, gap=5),),
        (source(3), source(5)),
        (source(3), source(9, gap=4)),
        (source(0, 3), source(9, gap=5)),
    ],
)
def test_batches_that_would_leave_a_hole_are_refused_as_a_whole(
    log_of: MakeLog, batches: tuple[bytes, ...]
) -> None:
    log = log_of()
    mirror(log, source(0, 3))
    with pytest.raises(KafkaError, match="after a gap of") as caught:
        mirror(log, *batches)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(log) == [(0, 2, EPOCH)]


def test_a_gap_may_begin_below_the_log_end(log_of: MakeLog) -> None:
    log = log_of()
    mirror(log, source(0, 3))
    assert mirror(log, source(9, gap=9)) == (9, 9, False)
    assert mirror(log, source(GAP_MAX + 5, gap=GAP_MAX)) == (GAP_MAX + 5, GAP_MAX + 5, False)
    assert log.end_offset == GAP_MAX + 6


def test_an_empty_mirror_begins_within_a_batch(log_of: MakeLog) -> None:
    log = log_of()
    log.truncate_fully_and_start_at(12, NOW)
    assert mirror(log, source(7, 5)) == (7, 11, True)
    for batches in ((source(10, 4), source(13, 2)), (source(12, 2), source(13))):
        with pytest.raises(KafkaError):
            mirror(log, *batches)
    assert mirror(log, source(10, 4), source(14)) == (10, 14, False)
    assert (log.start_offset, log.end_offset) == (12, 15)
    with pytest.raises(KafkaError):
        mirror(log, source(13, 4))


def test_offsets_that_no_log_has_are_refused(log_of: MakeLog) -> None:
    log = log_of()
    old = build_message_set(1, [(NOW, b"key", b"value")], base_offset=(1 << 63) - 1)
    for data in (source(-2, 4), source(-2), old):
        with pytest.raises(CorruptMessage):
            mirror(log, data)
    assert log.end_offset == 0


def test_old_entries_follow_with_any_gap(log_of: MakeLog) -> None:
    log = log_of()
    entries = [build_message_set(1, [(NOW, b"key", b"value")], base_offset=base) for base in (3, 9)]
    assert mirror(log, entries[0], source(4), entries[1]) == (3, 9, False)
    assert mirror(log, *entries) == (3, 9, True)
    for data in (entries[0] + source(12), source(10) + entries[0][:-1]):
        with pytest.raises(KafkaError):
            mirror(log, data)
    assert log.end_offset == 10


def test_old_entries_are_of_the_leader_epoch_of_their_leader(log_of: MakeLog) -> None:
    log = log_of()
    mirror(log, source(0, 2))
    old = build_message_set(1, [(NOW, b"key", b"value")], base_offset=2)
    log.begin_leader_epoch(EPOCH + 1)
    log.append_mirrored(old, 0, len(old), EPOCH + 1, NOW)
    for reopened in (log, log_of()):
        ends = [reopened.leader_epochs.end_offset(epoch, 3) for epoch in (EPOCH, EPOCH + 1)]
        assert ends == [(EPOCH, 2), (EPOCH + 1, 3)]


@pytest.mark.parametrize("stop", ["running", "closed", "killed"])
def test_batches_without_records_keep_the_offsets_that_the_source_skips(log_of: MakeLog, stop: str) -> None:
    log = log_of()
    base = 5_000_000_000
    mirror(log, source(0, 3))
    mirror(log, empty_batches(3, base), source(base), empty_batches(base + 1, base + 9))
    if stop == "closed":
        log.close(NOW)
    if stop != "running":
        log = log_of()
    assert log.end_offset == base + 9
    found = offsets(log)
    assert [one[:2] for one in found] == [
        (0, 2),
        (3, (1 << 31) + 1),
        ((1 << 31) + 2, (1 << 32)),
        ((1 << 32) + 1, base - 1),
        (base, base),
        (base + 1, base + 8),
    ]
    assert mirror(log, source(base + 9)) == (base + 9, base + 9, False)


def test_a_time_is_found_among_batches_without_records(log_of: MakeLog) -> None:
    log = log_of()
    times = NOW - 5_000, NOW
    first, second = (
        as_mirrored(build_batch([(ms, b"key", b"value", None)], base_offset=at), 0)
        for ms, at in zip(times, (10, 30), strict=True)
    )
    mirror(log, empty_batches(0, 10), first, empty_batches(11, 30), second, empty_batches(31, 40))
    for wanted, expected in ((0, 10), (NOW - 4_000, 30)):
        found = log.offset_for_timestamp(wanted)
        assert found is not None
        assert found[1] == expected
    assert log.offset_for_timestamp(NOW + 1) is None


def test_damaged_and_incomplete_batches_are_refused_as_a_whole(log_of: MakeLog) -> None:
    log = log_of()
    whole = source(0, 3)
    damaged = bytearray(source(3))
    damaged[-1] ^= 1
    for batches in ((whole, bytes(damaged)), (whole, source(3)[:-1])):
        with pytest.raises(CorruptMessage):
            mirror(log, *batches)
    assert log.end_offset == 0


def test_sequences_of_the_source_are_not_checked(log_of: MakeLog) -> None:
    log = log_of()
    mirror(log, source(0, producer_id=9, producer_epoch=0, base_sequence=70))
    mirror(log, source(1, producer_id=9, producer_epoch=0, base_sequence=3))
    assert log.end_offset == 2


def transactional(base: int, producer: int, gap: int = 0) -> bytes:
    return source(base, 1, gap, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(base: int, producer: int, *, is_commit: bool) -> bytes:
    return as_mirrored(build_end_marker(is_commit, NOW, producer, 0, 5, base_offset=base), 0)


def test_transactions_of_the_source_are_followed(log_of: MakeLog) -> None:
    log = log_of()
    mirror(log, transactional(10, 1, 10), transactional(11, 2), marker(12, 1, is_commit=False))
    assert log.last_stable_offset(log.end_offset) == 11
    assert log.aborts_recorded == 1
    mirror(log, marker(13, 2, is_commit=True))
    assert log.last_stable_offset(log.end_offset) == 14


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_after_its_end_a_mirror_knows_no_producer_of_the_source(log_of: MakeLog, restarts: bool) -> None:
    log = log_of()
    mirror(log, transactional(10, 1, 10), marker(11, 1, is_commit=True))
    mirror(log, source(12, producer_id=4, producer_epoch=0, base_sequence=0))
    assert {int(one.producer_id) for one in log.producers()} == {1, 4}
    log.append_mirror_end(EPOCH, NOW)
    if restarts:
        log.close(NOW)
        log = log_of()
    assert log.producers() == []
    data = build_batch([ROW], producer_id=4, producer_epoch=0, base_sequence=0)
    result = log.append(parse_batch(data, 0, len(data)), EPOCH, NOW)
    assert (int(result.base_offset), result.duplicate) == (14, False), "no duplicate of the source's batch"


def test_a_follower_forgets_the_producers_of_the_source_as_its_leader_does(log_of: MakeLog) -> None:
    log = log_of()
    log.append_copied(build_batch([ROW], 0, None, 4, 0, 0, leader_epoch=3), NOW)
    end = bytearray(build_mirror_end(log.topic_id, NOW))
    end[0:8] = (1).to_bytes(8, "big")
    end[12:16] = (3).to_bytes(4, "big")
    log.append_copied(bytes(end), NOW)
    assert log.producers() == []
    assert log.mirror_has_ended


def test_a_copy_of_the_end_of_another_mirror_does_not_end_this_one(log_of: MakeLog) -> None:
    log = log_of()
    end = bytearray(build_mirror_end(b"t" * 16, NOW))
    end[0:8] = (1).to_bytes(8, "big")
    mirror(log, source(0, producer_id=4, producer_epoch=0, base_sequence=0), as_mirrored(bytes(end), 0))
    assert log.producers() == [], "the source has forgotten them, too"
    assert not log.mirror_has_ended
    log.append_mirror_end(EPOCH, NOW)
    assert log.mirror_has_ended


def test_only_its_own_type_is_the_end_of_a_mirror() -> None:
    for data, expected in (
        (build_mirror_end(b"i" * 16, NOW), b"i" * 16),
        (build_mirror_end(b"i" * 15, NOW), None),
        (marker(0, 1, is_commit=True), None),
        (source(0), None),
    ):
        assert ended_mirror(parse_batch(data, 0, len(data))) == expected


OURS = 77
"""A producer of this cluster."""
THEIRS = 4
"""A producer of the source."""


def promoted(log: Log) -> int:
    """Fills three segments: of the source, of both with the end of the mirror, and of this cluster.

    Returns the offset of the end.
    """
    mirror(log, source(0, 2, producer_id=THEIRS, producer_epoch=0, base_sequence=0))
    log.roll(NOW)
    mirror(log, source(2, 2, producer_id=THEIRS, producer_epoch=0, base_sequence=2))
    log.append_mirror_end(EPOCH, NOW)
    append_ours(log, 0)
    log.roll(NOW)
    append_ours(log, 1)
    return 4


def append_ours(log: Log, sequence: int) -> None:
    data = build_batch([ROW], producer_id=OURS, producer_epoch=0, base_sequence=sequence)
    log.append(parse_batch(data, 0, len(data)), EPOCH, NOW)


def snapshots(directory: str) -> list[Path]:
    return sorted(Path(directory).glob("*.snapshot"))


def known(log: Log) -> dict[int, int]:
    """The last sequence of each producer."""
    return {int(one.producer_id): int(one.last_sequence) for one in log.producers()}


@pytest.mark.parametrize("kept", range(4))
def test_a_recovery_from_any_snapshot_knows_no_producer_of_the_source(
    log_of: MakeLog, directory: str, kept: int
) -> None:
    promoted(log_of())
    for path in snapshots(directory)[kept:]:
        path.unlink()
    log = log_of()
    assert known(log) == {OURS: 1}
    append_ours(log, 2)


@pytest.mark.parametrize("kept", range(4))
def test_the_end_of_a_mirror_survives_compaction(log_of: MakeLog, directory: str, kept: int) -> None:
    log = log_of(SMALL)
    end = promoted(log)
    log.roll(NOW)
    for later in range(3):
        clean(log, NOW + later * 10 * DAY_MS)
        log.set_config(log.config._replace(min_cleanable_dirty_ratio=0.0))
        append_ours(log, 2 + later)
        log.roll(NOW)
    assert (end, end, EPOCH) in offsets(log), "it is kept"
    assert (0, 1, EPOCH) not in offsets(log), "records of the source are compacted"
    for path in snapshots(directory)[kept:]:
        path.unlink()
    assert known(log_of(SMALL)) == {OURS: 4}


@pytest.mark.parametrize("kept", range(3))
def test_the_end_of_a_mirror_is_not_needed_once_retention_has_deleted_it(
    log_of: MakeLog, directory: str, kept: int
) -> None:
    log = log_of()
    promoted(log)
    log.flush(NOW)
    log.delete_old_segments(2, NOW)
    assert log.start_offset == 6
    for path in snapshots(directory)[kept:]:
        path.unlink()
    assert known(log_of()) == {OURS: 1}


@pytest.mark.parametrize("at", [5, 4, 3])
def test_a_truncation_restores_the_producers_before_the_end_of_a_mirror(log_of: MakeLog, at: int) -> None:
    log = log_of()
    end = promoted(log)
    log.truncate_to(at, NOW)
    assert known(log) == ({} if at > end else {THEIRS: 3 if at == 4 else 1})
    assert log.mirror_has_ended is (at > end)


def test_compaction_keeps_the_offsets_of_a_mirror_with_large_gaps(log_of: MakeLog, directory: str) -> None:
    log = log_of(SMALL)
    base = 5_000_000_000
    mirror(log, source(0, 2), empty_batches(2, base), source(base, 2), empty_batches(base + 2, base + 9))
    log.roll(NOW)
    mirror(log, source(base + 9))
    log.roll(NOW)
    for _ in range(2):
        clean(log)
    assert log.end_offset == base + 10
    assert offsets(log)[-1][:2] == (base + 9, base + 9)
    assert (base, base + 1, EPOCH) not in offsets(log)
    log = log_of(SMALL)
    assert log.end_offset == base + 10
    assert mirror(log, source(base + 10)) == (base + 10, base + 10, False)
