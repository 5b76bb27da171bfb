"""The plan of a micro-batch: limits, splits, new partitions, losses. No cluster."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import (
    ClusterView,
    OffsetRange,
    advance,
    end_position,
    limit_rows,
    plan_ranges,
    split_ranges,
    waiting_rows,
)
from tidemill.pipeline.stream_offsets import BadPosition, StreamPosition, parse_position, position_of

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ID, OTHER = b"1" * 16, b"2" * 16


def view(
    latest: dict[TopicPartition, int],
    earliest: dict[TopicPartition, int] | None = None,
    ids: dict[str, bytes | None] | None = None,
) -> ClusterView:
    topics: dict[str, bytes | None] = {partition.topic: ID for partition in latest}
    return ClusterView({**topics, **(ids or {})}, {**dict.fromkeys(latest, 0), **(earliest or {})}, latest)


def at(offsets: dict[TopicPartition, int], topic_id: bytes | None = ID) -> StreamPosition:
    return position_of(offsets, {partition.topic: topic_id for partition in offsets})


sizes = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 9)),
    st.integers(0, 10**12),
    max_size=12,
)


@given(sizes, st.integers(1, 10**6))
def test_a_limit_is_exact_and_starves_no_partition(waiting: dict[TopicPartition, int], rows_max: int) -> None:
    begin = {partition: 7 + partition.partition for partition in waiting}
    end = {partition: begin[partition] + size for partition, size in waiting.items()}
    limited = limit_rows(begin, end, rows_max)
    filled = [partition for partition, size in waiting.items() if size]
    assert limited.keys() == end.keys()
    for partition in end:
        assert begin[partition] <= limited[partition] <= end[partition]
    for partition in filled:
        assert limited[partition] > begin[partition]
    total = sum(waiting.values())
    assert waiting_rows(begin, limited) == min(total, max(rows_max, min(len(filled), total)))


def test_a_limit_is_shared_in_proportion() -> None:
    limited = limit_rows({A0: 0, A1: 0, B0: 0}, {A0: 6000, A1: 3000, B0: 1000}, 100)
    assert limited == {A0: 60, A1: 30, B0: 10}


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=8),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_splits_cover_the_same_offsets_once(
    bounds: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [OffsetRange("t", n, start, start + size, ID) for n, (start, size) in enumerate(bounds)]
    pieces = split_ranges(ranges, partitions_min, records_max)
    covered = [(p.partition, offset) for p in pieces for offset in range(p.start, p.end)]
    assert covered == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(piece.size > 0 and piece.topic_id == ID for piece in pieces)
    if records_max is not None:
        assert all(piece.size <= records_max for piece in pieces)


def test_min_partitions_splits_the_large_range_only() -> None:
    pieces = split_ranges([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], 10, None)
    assert [piece.partition for piece in pieces] == [0] * 9 + [1]


def test_a_range_survives_pickling_and_is_frozen() -> None:
    one = OffsetRange("t", 3, 5, 9, ID)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.end = 10  # type: ignore[misc]


def test_new_topics_and_partitions_start_at_their_first_record() -> None:
    ahead = advance(at({A0: 5}), view({A0: 9, A1: 4, B0: 3}))
    assert ahead.begin == {A0: 5, A1: 0, B0: 0}
    assert ahead.end == {A0: 9, A1: 4, B0: 3}
    assert not ahead.losses


def test_a_new_partition_with_deleted_first_records_is_a_loss() -> None:
    ahead = advance(at({A0: 5}), view({A0: 9, A1: 4}, {A1: 2}))
    assert ahead.begin[A1] == 2
    assert ahead.losses == ["a-1 is new and begins at 2, not at 0"]


def test_a_recreated_topic_is_a_loss_and_starts_again() -> None:
    ahead = advance(at({A0: 50}), view({A0: 60}, ids={"a": OTHER}))
    assert ahead.begin == {A0: 0}
    assert len(ahead.losses) == 1
    assert "recreated" in ahead.losses[0]
    assert "MTExMTExMTExMTExMTExMQ" in ahead.losses[0]


def test_without_topic_ids_topics_are_assumed_unchanged() -> None:
    assert not advance(at({A0: 5}), view({A0: 9}, ids={"a": None})).losses
    assert not advance(at({A0: 5}, None), view({A0: 9})).losses


def test_a_log_that_ends_before_the_position_is_a_loss_and_continues_at_its_end() -> None:
    ahead = advance(at({A0: 50}), view({A0: 40}))
    assert ahead.end == {A0: 40}
    assert ahead.losses == ["a-0 ends at 40, before the position 50"]


def test_a_missing_topic_is_a_loss_and_keeps_its_position_and_id() -> None:
    before, now = at({A0: 5, B0: 5}), view({A0: 7})
    ahead = advance(before, now)
    assert ahead.end == {A0: 7}
    assert ahead.losses == ["the cluster no longer has b-0, or the options of the query no longer select it"]
    after = end_position(ahead.end, ahead.absent, now, before)
    assert after == at({A0: 7, B0: 5})
    # If it returns with the same id, it continues; with another id it starts again.
    assert advance(after, view({A0: 7, B0: 8})).begin == {A0: 7, B0: 5}
    assert not advance(after, view({A0: 7, B0: 8})).losses
    again = advance(after, view({A0: 7, B0: 8}, ids={"b": OTHER}))
    assert again.begin == {A0: 7, B0: 0}
    assert not again.absent
    assert ["recreated" in loss for loss in again.losses] == [True]


def test_a_missing_partition_keeps_its_position() -> None:
    before, now = at({A0: 5, A1: 3}), view({A0: 6})
    ahead = advance(before, now)
    assert ahead.absent == {A1: 3}
    assert end_position(ahead.end, ahead.absent, now, before) == at({A0: 6, A1: 3})


def test_a_broker_without_topic_ids_does_not_take_the_id_from_the_checkpoint() -> None:
    before, now = at({A0: 5}), view({A0: 6}, ids={"a": None})
    ahead = advance(before, now)
    assert end_position(ahead.end, ahead.absent, now, before) == at({A0: 6})


def test_a_topic_that_was_absent_from_a_batch_is_no_loss_of_it() -> None:
    """The batch reads nothing of topic b, regardless of later changes of b."""
    ranges, losses = plan_ranges(
        at({A0: 5, B0: 5}), at({A0: 6, B0: 5}), view({A0: 6, B0: 2}, ids={"b": OTHER})
    )
    assert ranges == [OffsetRange("a", 0, 5, 6, ID)]
    assert losses == []


def test_a_batch_is_planned_the_same_each_time() -> None:
    start, end = at({A0: 5}), at({A0: 9, A1: 4})
    now = view({A0: 100, A1: 100})
    first, losses = plan_ranges(start, end, now)
    assert first == [OffsetRange("a", 0, 5, 9, ID), OffsetRange("a", 1, 0, 4, ID)]
    assert not losses
    assert plan_ranges(start, end, view({A0: 200, A1: 200}))[0] == first


def test_records_deleted_before_they_are_read_are_named() -> None:
    ranges, losses = plan_ranges(
        at({A0: 5, A1: 1}), at({A0: 9, A1: 4}), view({A0: 20, A1: 20}, {A0: 7, A1: 10})
    )
    assert ranges == [OffsetRange("a", 0, 7, 9, ID)]
    assert losses == [
        "offsets 5 to 6 of a-0 were deleted before they were read (the partition now begins at 7)",
        "offsets 1 to 3 of a-1 were deleted before they were read (the partition now begins at 10)",
    ]


def test_deletion_of_records_already_read_is_no_loss() -> None:
    assert plan_ranges(at({A0: 5}), at({A0: 5}), view({A0: 20}, {A0: 10})) == ([], [])


def test_a_topic_recreated_after_the_plan_is_not_read() -> None:
    ranges, losses = plan_ranges(at({A0: 5}), at({A0: 9}), view({A0: 20}, ids={"a": OTHER}))
    assert not ranges
    assert "after this batch was planned" in losses[0]


def test_a_recreated_topic_is_read_from_its_start() -> None:
    ranges, losses = plan_ranges(at({A0: 50}), at({A0: 9}, OTHER), view({A0: 20}, ids={"a": OTHER}))
    assert ranges == [OffsetRange("a", 0, 0, 9, OTHER)]
    assert not losses


def test_equal_positions_are_equal_text() -> None:
    one = position_of({B0: 1, A1: 2, A0: 3}, {"b": ID, "a": None})
    other = position_of({A0: 3, A1: 2, B0: 1}, {"a": None, "b": ID})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert parse_position(json.loads(json.dumps(one.to_json()))) == one


def test_partitions_are_sorted_as_numbers() -> None:
    position = position_of({TopicPartition("a", n): n for n in range(12)}, {"a": ID})
    assert list(position.to_json()["topics"]["a"]["next"]) == [str(n) for n in range(12)]


def test_offsets_of_sparks_own_connector_are_read() -> None:
    assert parse_position({"a": {"0": 5, "1": 6}}).offsets() == {A0: 5, A1: 6}
    named = {"version": {"0": 5}, "topics": {"0": 6}}
    assert parse_position(named).offsets() == {
        TopicPartition("version", 0): 5,
        TopicPartition("topics", 0): 6,
    }


@pytest.mark.parametrize(
    "table", [{"version": 2, "topics": {}}, {"version": 1}, {"a": 5}, {"version": 1, "topics": 3}]
)
def test_offsets_of_other_sources_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(BadPosition, match="checkpoint"):
        parse_position(table)
