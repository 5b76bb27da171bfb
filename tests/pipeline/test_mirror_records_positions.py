"""The translation of positions to records with new offsets: never beyond, and exact where it can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from record_builders import build_batch
from tidemill.client.errors import BrokerUnreachable, DataLoss
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror import sync_points
from tidemill.pipeline.mirror.position_translation import (
    MergedPositions,
    PositionTranslation,
    Skipped,
    skip_records,
)
from tidemill.pipeline.mirror.sync_points import (
    NO_POINTS,
    RECENT,
    BadSyncPoints,
    SyncPoint,
    SyncPoints,
    TopicIds,
    parse_sync_points,
)
from tidemill.records.builder import build_end_marker
from tidemill.wire.fetch_layout import FetchedPartition

IDS = TopicIds(bytes(range(16)), bytes(16 * [7]))
OTHER_ID = bytes(16 * [9])
RECORD_BYTES = 10


# -- a cluster with one topic


class Entry(NamedTuple):
    """What a log has at an offset; ``record`` identifies a record of the source."""

    kind: str
    record: tuple[int, int] | None = None
    producer: int = -1


COMMITTED, ABORTED, COMMIT, ABORT, HOLE = "committed", "aborted", "commit", "abort", "hole"


class Logs:
    """The partitions of a topic. A reader of them like RangeReader."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[Entry]] = {}
        self.start = 0
        self.reads = 0

    def append(self, partition: int, *entries: Entry) -> None:
        self.partitions.setdefault(partition, []).extend(entries)

    def end(self, partition: int) -> int:
        return len(self.partitions.get(partition, []))

    def visible(self, partition: int) -> Iterator[tuple[int, Entry]]:
        for offset, entry in enumerate(self.partitions.get(partition, [])):
            if entry.kind == COMMITTED:
                yield offset, entry

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
        self.reads += 1
        assert end <= self.end(partition)
        if start < self.start:
            raise DataLoss("deleted")
        for offset, _ in self.visible(partition):
            if start <= offset < end:
                yield SimpleNamespace(num_rows=1, nbytes=RECORD_BYTES)

    def fetch(self, topic: str, partition: int, start: int, end: int) -> Iterator[FetchedPartition]:
        """Yields responses with a few batches of one record each."""
        assert end <= self.end(partition)
        log = self.partitions.get(partition, [])
        for first in range(max(0, start - 1), end, 3):
            span = range(first, min(first + 3, len(log)))
            data = b"".join(batch_of(offset, log[offset]) for offset in span)
            response = FetchedPartition(b"t", partition, data)
            response.end = len(data)
            response.aborted = [
                (log[offset].producer, opened(log, offset))
                for offset in range(first, len(log))
                if log[offset].kind == ABORT and opened(log, offset) <= span[-1]
            ]
            yield response


def batch_of(offset: int, entry: Entry) -> bytes:
    if entry.kind == HOLE:
        return b""
    if entry.kind in (COMMIT, ABORT):
        return build_end_marker(entry.kind == COMMIT, 1, entry.producer, 0, 0, 0, offset)
    return build_batch(
        [(1, None, b"v", None)],
        producer_id=entry.producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=entry.producer >= 0,
        base_offset=offset,
    )


def opened(log: list[Entry], marker: int) -> int:
    """Returns the first offset of the transaction that a marker ends."""
    own = [at for at in range(marker) if log[at].producer == log[marker].producer and log[at].kind == ABORTED]
    return min(own, default=marker)


# -- mirrors of it


class Batch(NamedTuple):
    """A micro-batch: entries of the source by partition, and what happens in the target."""

    source: Mapping[int, str]
    """For each entry r (record), a (aborted), c (marker), h (hole)."""
    foreign: str = ""
    aborted_attempt: bool = False
    repeated: bool = False
    transactional: bool = True
    places: tuple[int, ...] = (0,)
    """Where a topic that is spread has its records, in turn."""


class World:
    """A source, its mirror, and the sync points that the mirror has stored."""

    def __init__(self, partitions: int = 1, targets: int = 1) -> None:
        self.source, self.target = Logs(), Logs()
        self.partitions, self.targets = partitions, targets
        self.points: SyncPoints = NO_POINTS
        self.batches = 0
        self.producer = 100

    def copy_all(self, batches: list[Batch]) -> None:
        """Copies batches, and keeps few points."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sync_points, "RECENT", 3)
            for batch in batches:
                self.copy(batch)

    def copy(self, batch: Batch) -> None:
        """Copies as the mirror does: points before a partition's first batch, rows, points after each."""
        numbers = range(max(self.partitions, self.targets))
        is_spread = self.targets > self.partitions
        seen = self.points.of("t", IDS)
        lacking = [
            number
            for number in numbers
            if seen.lacks(number, source=number < self.partitions, target=number < self.targets)
        ]
        starts = {number: self.source.end(number) for number in range(self.partitions)}
        self._add(self.batches - 1, lacking, starts, is_spread=is_spread)
        rows = {number: self._produce(number, text) for number, text in batch.source.items()}
        self._write(rows, batch, is_spread=is_spread)
        changed = [number for number, text in batch.source.items() if text]
        if is_spread or self.points.of("t", IDS).is_spread:
            changed = list(numbers) if changed else []
        ends = {number: self.source.end(number) for number in range(self.partitions)}
        self._add(self.batches, changed, ends, is_spread=is_spread)
        self.batches += 1

    def _add(self, batch: int, numbers: list[int], sources: Mapping[int, int], *, is_spread: bool) -> None:
        added = {
            number: SyncPoint(
                batch, sources.get(number), self.target.end(number) if number < self.targets else None
            )
            for number in numbers
        }
        if added:
            self.points = self.points.with_points("t", IDS, added, is_spread=is_spread)

    def _produce(self, partition: int, text: str) -> list[tuple[int, int]]:
        rows = []
        for kind in text:
            offset = self.source.end(partition)
            self.producer += 1
            if kind == "r":
                rows.append((partition, offset))
                self.source.append(partition, Entry(COMMITTED, (partition, offset)))
            elif kind == "a":
                self.source.append(
                    partition, Entry(ABORTED, None, self.producer), Entry(ABORT, None, self.producer)
                )
            elif kind == "c":
                self.source.append(partition, Entry(COMMIT, None, self.producer))
            else:
                self.source.append(partition, Entry(HOLE))
        return rows

    def _write(self, rows: Mapping[int, list[tuple[int, int]]], batch: Batch, *, is_spread: bool) -> None:
        for _ in range(1 + batch.aborted_attempt):
            is_aborted = batch.aborted_attempt
            batch = batch._replace(aborted_attempt=False)
            turn = 0
            for partition, own in rows.items():
                self.producer += 1
                producer = self.producer if batch.transactional or is_aborted else -1
                used: set[int] = set()
                for one in own * (1 + batch.repeated * (not is_aborted)):
                    place = batch.places[turn % len(batch.places)] % self.targets if is_spread else partition
                    turn += 1
                    used.add(place)
                    self.target.append(place, Entry(ABORTED if is_aborted else COMMITTED, one, producer))
                    if batch.foreign:
                        self.target.append(place, *(Entry(COMMITTED) for _ in batch.foreign))
                for place in sorted(used) if producer >= 0 else ():
                    self.target.append(place, Entry(ABORT if is_aborted else COMMIT, None, producer))

    def translated(self, positions: Mapping[int, int], **more: Any) -> dict[int, int]:
        source: Any = self.source
        target: Any = self.target
        translation = PositionTranslation(source, target, lambda: {"t": "t"}, lambda: self.points, **more)
        given = {
            TopicPartition("t", number): OffsetAndMetadata(offset) for number, offset in positions.items()
        }
        return {item.partition: one.offset for item, one in translation.translate(given).items()}

    def missed(self, positions: Mapping[int, int], translated: Mapping[int, int]) -> list[tuple[int, int]]:
        """Returns the records that a group has not read at the source, and would not read in the target."""
        return [
            entry.record
            for number, offset in translated.items()
            for at, entry in self.target.visible(number)
            if entry.record is not None
            and at < offset
            and entry.record[1] >= positions.get(entry.record[0], 0)
            and at == self._first(number, entry.record)
        ]

    def _first(self, partition: int, record: tuple[int, int]) -> int:
        return next(at for at, entry in self.target.visible(partition) if entry.record == record)

    def compact(self, logs: Logs, partition: int, pattern: list[bool]) -> None:
        """Removes records, as compaction does."""
        log = logs.partitions.get(partition, [])
        for at, entry in enumerate(log):
            if entry.kind == COMMITTED and pattern and pattern[at % len(pattern)]:
                log[at] = entry._replace(kind=HOLE)


TEXTS = st.text("rrrrach", max_size=6)


CLEAN = st.builds(
    lambda text, is_repeated: Batch({0: text}, aborted_attempt=is_repeated), TEXTS, st.booleans()
)
ANY = st.builds(
    Batch,
    source=st.fixed_dictionaries({0: TEXTS}),
    foreign=st.text("f", max_size=2),
    aborted_attempt=st.booleans(),
    repeated=st.booleans(),
    transactional=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CLEAN, min_size=1, max_size=25))
def test_each_position_is_exact_if_the_target_has_only_the_records_of_one_source(
    batches: list[Batch],
) -> None:
    world = World()
    world.copy_all(batches)
    for position in range(world.source.end(0) + 1):
        translated = world.translated({0: position}).get(0)
        assert translated is not None
        before = [offset for offset, _ in world.source.visible(0) if offset < position]
        assert len([at for at, _ in world.target.visible(0) if at < translated]) == len(before)
        assert translated <= world.target.end(0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(ANY, min_size=1, max_size=25),
    st.lists(st.booleans(), max_size=7),
    st.lists(st.booleans(), max_size=5),
    st.integers(1, 200),
    st.booleans(),
)
def test_no_position_is_beyond_whatever_else_is_in_the_target(
    batches: list[Batch],
    removed_in_target: list[bool],
    removed_in_source: list[bool],
    bytes_max: int,
    is_deleted: bool,
) -> None:
    world = World()
    world.copy_all(batches)
    unread = {
        position: [one for at, one in world.target.visible(0) if one.record and one.record[1] >= position]
        for position in range(world.source.end(0) + 3)
    }
    firsts = {one.record: at for at, one in reversed(list(world.target.visible(0))) if one.record}
    world.compact(world.target, 0, removed_in_target)
    world.compact(world.source, 0, removed_in_source)
    world.source.start = world.source.end(0) // 2 if is_deleted else 0
    for position, entries in unread.items():
        translated = world.translated({0: position}, bytes_max=bytes_max)[0]
        assert all(translated <= firsts[entry.record] for entry in entries), position


SPREAD = st.builds(
    Batch,
    source=st.fixed_dictionaries({0: TEXTS, 1: TEXTS, 2: TEXTS}),
    aborted_attempt=st.booleans(),
    repeated=st.booleans(),
    places=st.lists(st.integers(0, 4), min_size=1, max_size=7).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(SPREAD, min_size=1, max_size=20),
    st.integers(0, 20),
    st.dictionaries(st.integers(0, 2), st.integers(0, 60), min_size=1),
)
def test_no_position_of_a_topic_with_other_partitions_is_beyond(
    batches: list[Batch], grown_after: int, positions: dict[int, int]
) -> None:
    world = World(3, 3)
    world.copy_all(batches[:grown_after])
    if batches[grown_after:]:
        world.targets = 5
        world.copy_all(batches[grown_after:])
    translated = world.translated(positions)
    if world.points.of("t", IDS).is_spread:
        assert sorted(translated) == list(range(5))
        assert world.missed(positions, translated) == []
    else:
        assert sorted(translated) == sorted(positions)
        assert [one for one in world.missed(positions, translated) if one[0] in positions] == []


def test_a_group_at_the_end_of_all_partitions_of_a_spread_topic_is_at_the_end() -> None:
    world = World(2, 4)
    for _ in range(40):
        world.copy(Batch({0: "rrr", 1: "r"}, places=(0, 1, 2)))
        ends = {number: world.source.end(number) for number in range(2)}
        assert world.translated(ends) == {number: world.target.end(number) for number in range(4)}
    assert world.translated({0: ends[0], 1: 0}) == dict.fromkeys(range(4), 0)


def test_a_topic_that_was_spread_once_stays_so() -> None:
    world = World(2, 4)
    world.copy(Batch({0: "rrr", 1: "rrr"}, places=(3, 2)))
    world.partitions = 4
    world.copy(Batch({0: "rr", 1: "rr", 2: "rr", 3: "rr"}))
    positions = {0: 1, 1: 6, 2: 0, 3: 2}
    translated = world.translated(positions)
    assert translated == dict.fromkeys(range(4), 0)
    assert world.missed(positions, translated) == []


# -- points


def test_few_points_remain_and_the_recent_ones_do() -> None:
    points = NO_POINTS
    for batch in range(5_000):
        point = {0: SyncPoint(batch, 10 * batch, 11 * batch)}
        points = points.with_points("t", IDS, point, is_spread=False)
    kept = points.topics["t"].partitions[0]
    assert len(kept) <= RECENT + 14
    assert kept[0].batch == 0
    assert [one.batch for one in kept[-RECENT:]] == list(range(5_000 - RECENT, 5_000))
    distances = [5_000 - one.batch for one in kept]
    assert all(far <= 4 * near + RECENT for far, near in pairwise(distances))


def test_a_batch_that_is_repeated_leaves_the_point_of_its_first_attempt() -> None:
    points = NO_POINTS.with_points("t", IDS, {0: SyncPoint(3, 10, 20)}, is_spread=False)
    again = points.with_points("t", IDS, {0: SyncPoint(3, 10, 25)}, is_spread=False)
    assert again.topics["t"].partitions[0] == (SyncPoint(3, 10, 20),)


def test_points_above_the_end_of_a_source_that_has_become_shorter_apply_no_more() -> None:
    points = NO_POINTS
    for point in (SyncPoint(0, 0, 0), SyncPoint(1, 100, 100), SyncPoint(2, 200, 200), SyncPoint(3, 150, 260)):
        points = points.with_points("t", IDS, {0: point}, is_spread=False)
    seen = points.topics["t"]
    assert seen.anchor(0, 199) == (150, 260, None)
    assert seen.anchor(0, 149) == (100, 100, (150, 260))


def test_points_above_the_end_of_a_target_that_has_become_shorter_apply_no_more() -> None:
    points = NO_POINTS
    # After batch 2 the target has lost what is above 140, and batch 3 is at 140 to 240.
    for point in (SyncPoint(0, 0, 0), SyncPoint(1, 100, 100), SyncPoint(2, 200, 200), SyncPoint(2, 200, 140)):
        points = points.with_points("t", IDS, {0: point}, is_spread=False)
    points = points.with_points("t", IDS, {0: SyncPoint(3, 300, 240)}, is_spread=False)
    seen = points.topics["t"]
    assert seen.anchor(0, 250) == (200, 140, (300, 240))
    assert seen.anchor(0, 150) == (100, 100, (200, 140))
    points = points.with_points("t", IDS, {0: SyncPoint(4, 300, 90)}, is_spread=False)
    assert points.topics["t"].anchor(0, 150) == (0, 0, (300, 90))


@pytest.mark.parametrize("ids", [TopicIds(OTHER_ID, IDS.target), TopicIds(IDS.source, OTHER_ID)])
def test_the_points_of_a_topic_that_was_recreated_are_removed(ids: TopicIds) -> None:
    points = NO_POINTS.with_points("t", IDS, {0: SyncPoint(0, 50, 60)}, is_spread=True)
    assert points.of("t", ids).lacks(0, source=True, target=False)
    again = points.with_points("t", ids, {0: SyncPoint(1, 3, 4)}, is_spread=False)
    assert again.topics["t"] == (ids, False, {0: (SyncPoint(1, 3, 4),)})


@pytest.mark.parametrize("ids", [TopicIds(None, None), TopicIds(bytes(16), bytes(16))])
def test_points_are_kept_if_a_broker_has_no_topic_ids(ids: TopicIds) -> None:
    points = NO_POINTS.with_points("t", IDS, {0: SyncPoint(0, 50, 60)}, is_spread=False)
    assert not points.of("t", ids).lacks(0, source=True, target=True)


def test_the_file_has_all_points() -> None:
    points = NO_POINTS.with_points(
        "t", IDS, {0: SyncPoint(-1, 0, 5), 3: SyncPoint(-1, None, 7)}, is_spread=True
    ).with_points("u", TopicIds(None, None), {0: SyncPoint(4, 1, None)}, is_spread=False)
    assert parse_sync_points(points.encode()) == points
    assert points.copied() == {TopicPartition("t", 0): 0, TopicPartition("u", 0): 1}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version": 1}', b'{"version": 1, "topics": {"t": 3}}'])
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(BadSyncPoints, match="damaged"):
        parse_sync_points(data)


def test_the_example_of_the_page_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "sync-points.md").read_text()
    example = next(line for line in page.splitlines() if line.startswith("{"))
    points = parse_sync_points(example.encode())
    assert points.encode().decode() == example
    anchor = points.topics["orders"].anchor(0, 130)
    assert anchor == (120, 121, (150, 152))
    assert skip_records(anchor.target, 10, []) == 131


def test_a_file_of_a_later_version_is_refused() -> None:
    with pytest.raises(BadSyncPoints, match="version 2"):
        parse_sync_points(b'{"version": 2, "topics": {}}')


# -- counting


def test_markers_and_aborted_transactions_are_skipped_in_addition() -> None:
    others = [Skipped(3, 4), Skipped(6, 8), Skipped(20, 21)]
    assert [skip_records(0, count, others) for count in range(7)] == [0, 1, 2, 3, 5, 6, 9]
    assert skip_records(10, 5, others) == 15


def test_a_position_that_has_not_moved_is_not_counted_again() -> None:
    world = World()
    for _ in range(3):
        world.copy(Batch({0: "rrrr"}))
    source: Any = world.source
    target: Any = world.target
    translation = PositionTranslation(source, target, lambda: {"t": "t"}, lambda: world.points)
    positions = {TopicPartition("t", 0): OffsetAndMetadata(6, 3, "note")}
    for _ in range(3):
        assert translation.translate(positions) == {TopicPartition("t", 0): OffsetAndMetadata(7, -1, "note")}
        world.copy(Batch({0: "r"}))
    assert world.source.reads == 1


def test_a_position_that_was_counted_ends_where_the_target_has_lost_records() -> None:
    world = World()
    for _ in range(2):
        world.copy(Batch({0: "rrrr"}))
    points = [world.points]
    source: Any = world.source
    target: Any = world.target
    translation = PositionTranslation(source, target, lambda: {"t": "t"}, lambda: points[0])
    positions = {TopicPartition("t", 0): OffsetAndMetadata(6)}
    (before,) = translation.translate(positions).values()
    topic = world.points.topics["t"]
    last = topic.partitions[0][-1]
    lost = {0: last._replace(target=before.offset - 1)}
    points[0] = world.points.with_points("t", topic.ids, lost, is_spread=False)
    (after,) = translation.translate(positions).values()
    assert after.offset == before.offset - 1


def test_topics_without_points_are_omitted() -> None:
    assert World().translated({0: 5}) == {}


def test_an_unreachable_cluster_is_no_smaller_position(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.copy(Batch({0: "rrrr"}))

    monkeypatch.setattr(world.source, "read", Mock(side_effect=BrokerUnreachable("cut")))
    with pytest.raises(BrokerUnreachable):
        world.translated({0: 2})


# -- several sources


def positions_at(*offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", number): OffsetAndMetadata(offset) for number, offset in enumerate(offsets)}


def test_the_smallest_position_of_all_sources_counts() -> None:
    merged = MergedPositions(["a", "b"])
    assert merged.merge("a", "g", positions_at(5, 9)) == {}
    merged.finish("a")
    assert not merged.is_complete
    merged.finish("b")
    assert merged.is_complete
    assert merged.merge("b", "g", positions_at(7, 2, 4)) == positions_at(5, 2, 4)
    assert merged.merge("b", "only-b", positions_at(7)) == positions_at(7)


def test_a_group_that_a_source_has_no_more_is_forgotten() -> None:
    merged = MergedPositions(["a", "b"])
    merged.merge("a", "g", positions_at(1))
    for alias in ("a", "b", "a"):
        merged.finish(alias)
    assert merged.merge("b", "g", positions_at(7)) == positions_at(7)
