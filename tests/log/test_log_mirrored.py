"""The log of a mirror: batches of another cluster with their offsets, and the end of the mirror."""

from __future__ import annotations

from typing import Any

import pytest
from log_stage import NOW, MakeLog

from record_builders import build_batch
from tidemill.log.log import Log
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.records.mirror_end import build_mirror_end, is_mirror_end

ROW = (NOW, b"key", b"value", None)
EPOCH = 7


def source(base: int, count: int = 1, **options: Any) -> bytes:
    """A batch of the source, which has written it in leader epoch 3."""
    return build_batch([ROW] * count, leader_epoch=3, base_offset=base, **options)


def mirror(log: Log, *batches: bytes) -> tuple[int, int, bool]:
    """Appends batches; returns the first and last offset of the result, and whether all were there."""
    data = b"".join((b"frame", *batches, b"more"))
    result = log.append_mirrored(data, 5, len(data) - 4, EPOCH, NOW)
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
    assert mirror(log, source(40, 3), source(50)) == (40, 50, False)
    assert mirror(log, source(60, 2)) == (60, 61, False)
    assert offsets(log) == [(40, 42, EPOCH), (50, 50, EPOCH), (60, 61, EPOCH)]
    assert (log.start_offset, log.end_offset) == (0, 62)
    assert log.leader_epochs.latest == EPOCH


def test_batches_below_the_end_are_skipped(log_of: MakeLog) -> None:
    log = log_of()
    first, second, third = source(0, 3), source(5), source(6, 2)
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


def transactional(base: int, producer: int) -> bytes:
    return source(base, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(base: int, producer: int, *, is_commit: bool) -> bytes:
    return build_end_marker(is_commit, NOW, producer, 0, 5, leader_epoch=3, base_offset=base)


def test_transactions_of_the_source_are_followed(log_of: MakeLog) -> None:
    log = log_of()
    mirror(log, transactional(10, 1), transactional(11, 2), marker(12, 1, is_commit=False))
    assert log.last_stable_offset(log.end_offset) == 11
    assert log.aborts_recorded == 1
    mirror(log, marker(13, 2, is_commit=True))
    assert log.last_stable_offset(log.end_offset) == 14


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_after_its_end_a_mirror_knows_no_producer_of_the_source(log_of: MakeLog, restarts: bool) -> None:
    log = log_of()
    mirror(log, transactional(10, 1), marker(11, 1, is_commit=True))
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
    log.append_copied(source(0, producer_id=4, producer_epoch=0, base_sequence=0), NOW)
    end = bytearray(build_mirror_end(NOW))
    end[0:8] = (1).to_bytes(8, "big")
    end[12:16] = (3).to_bytes(4, "big")
    log.append_copied(bytes(end), NOW)
    assert log.producers() == []


def test_only_its_own_type_is_the_end_of_a_mirror() -> None:
    for data, expected in (
        (build_mirror_end(NOW), True),
        (marker(0, 1, is_commit=True), False),
        (source(0), False),
    ):
        assert is_mirror_end(parse_batch(data, 0, len(data))) is expected
