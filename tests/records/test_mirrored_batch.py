"""The batches of a Produce request to a mirror: the gap before each, in the field of the leader epoch."""

from __future__ import annotations

import pytest

from record_builders import build_batch, build_message_set
from tidemill.records.batch import LEADER_EPOCH, MAGIC, Batch, check_crc, parse_batch
from tidemill.records.mirrored_batch import (
    EMPTY_OFFSETS_MAX,
    GAP_MAX,
    NOT_MIRRORED,
    as_mirrored,
    empty_batches,
    gap_before,
    mirrored_batches,
)

ROW = (1_000, b"key", b"value", None)


def stored(base: int, count: int = 1, epoch: int = 3) -> bytes:
    return build_batch([ROW] * count, leader_epoch=epoch, base_offset=base)


def parsed(data: bytes) -> list[Batch]:
    found = []
    at = 0
    while at < len(data):
        found.append(parse_batch(data, at, len(data)))
        check_crc(found[-1])
        at += int(found[-1].size)
    return found


def shape(data: bytes) -> list[tuple[int, int, int, int]]:
    """Base and last offset, record count and gap of each batch."""
    return [
        (int(one.base_offset), int(one.last_offset), int(one.record_count), int(gap_before(one)))
        for one in parsed(data)
    ]


@pytest.mark.parametrize(
    ("gap", "field"), [(0, "fffffffe"), (1, "fffffffd"), (40, "ffffffd6"), (GAP_MAX, "80000000")]
)
def test_only_the_leader_epoch_of_a_mirrored_batch_differs(gap: int, field: str) -> None:
    data = stored(70, 3)
    sent = as_mirrored(data, gap)
    assert sent == data[:LEADER_EPOCH] + bytes.fromhex(field) + data[MAGIC:]
    assert shape(sent) == [(70, 72, 3, gap)]


@pytest.mark.parametrize("gap", [-1, GAP_MAX + 1])
def test_a_gap_that_the_field_cannot_hold_is_an_error(gap: int) -> None:
    with pytest.raises(ValueError, match=f"a gap of {gap} offsets"):
        as_mirrored(stored(0), gap)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 0x7FFFFFFF])
def test_batches_of_ordinary_producers_are_not_mirrored_ones(epoch: int) -> None:
    assert gap_before(parsed(stored(0, epoch=epoch))[0]) == NOT_MIRRORED


def test_the_gaps_of_a_fetch_response_count_from_the_fetched_offset() -> None:
    data = stored(10, 3) + stored(20) + stored(21, 2) + stored(30)
    assert shape(mirrored_batches(data, 5)) == [
        (10, 12, 3, 5),
        (20, 20, 1, 7),
        (21, 22, 2, 0),
        (30, 30, 1, 7),
    ]
    assert shape(mirrored_batches(data, 11))[0] == (10, 12, 3, 0)
    assert shape(mirrored_batches(data, 22)) == [(21, 22, 2, 0), (30, 30, 1, 7)]
    assert mirrored_batches(data, 31) == b""


def test_an_incomplete_batch_of_a_fetch_response_is_left_out() -> None:
    data = stored(0) + stored(1)
    for cut in (1, 30, len(stored(1)) - 1):
        assert shape(mirrored_batches(data[:-cut], 0)) == [(0, 0, 1, 0)]


def test_old_entries_are_sent_as_they_are() -> None:
    first, second = (build_message_set(1, [(1_000, b"key", b"value")], base_offset=at) for at in (4, 9))
    assert mirrored_batches(first + second + stored(12), 9) == second + as_mirrored(stored(12), 2)


def test_batches_without_records_fill_large_gaps() -> None:
    base = 5_000_000_000
    sent = mirrored_batches(stored(base), 0)
    first = EMPTY_OFFSETS_MAX
    assert shape(sent) == [
        (0, first - 1, 0, 0),
        (first, 2 * first - 1, 0, 0),
        (2 * first, base - 1, 0, 0),
        (base, base, 1, 0),
    ]
    assert {int(one.max_timestamp) for one in parsed(sent)[:3]} == {-1}
    assert shape(mirrored_batches(stored(GAP_MAX), 0)) == [(GAP_MAX, GAP_MAX, 1, GAP_MAX)]
    assert shape(mirrored_batches(stored(GAP_MAX + 1), 0))[0] == (0, GAP_MAX, 0, 0)


def test_nothing_fills_no_gap() -> None:
    assert empty_batches(7, 7) == b""
    assert shape(empty_batches(7, 9)) == [(7, 8, 0, 0)]
