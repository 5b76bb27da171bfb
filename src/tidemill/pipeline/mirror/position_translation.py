"""Translates positions of groups into those of ordinary records, which have offsets of their own.

A position is counted from the sync point before it (:mod:`.sync_points`): as many records as the source has
from the point to the position are skipped in the target. Other writers, batches that were written twice and
compaction only make the result smaller: a group may read records again, and never misses one.

In the target, offsets are skipped and not records. The record after ``count`` records of the source is at
least ``count`` offsets above the point, since offsets only grow. Only the offsets of markers and of aborted
transactions are surely not of the source, and are skipped in addition. A hole may have been left by
compaction, and counts like the records that were there.

The result is exact if only one partition of one source is copied to the partition of the target, nothing
else writes there, and the source has the records after the point that it had when they were copied.

In a topic that is spread over other partitions, each one has records of all partitions of the source: the
positions are those of the last point before which the group has read everything. Of sources that are merged
into a topic, the one that a group is furthest behind in decides, also one of which it has read nothing
(:class:`MergedPositions`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.cluster_outages import is_outage
from tidemill.pipeline.mirror.group_sync import Positions
from tidemill.pipeline.mirror.sync_points import Anchor, SyncPoints
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, parse_batch, whole_batch_size
from tidemill.records.end_transaction_marker import is_abort
from tidemill.wire.fetch_layout import FetchedPartition

BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that are read of each cluster to translate one position. Beyond, the position is a smaller one."""
KEPT_MAX: Final = 20_000
"""Translated positions that are kept, so that those that have not moved are not counted again."""


class Skipped(NamedTuple):
    """Offsets of the target from ``start`` to ``end`` (exclusive) that are no records of a source."""

    start: int
    end: int


def skip_records(start: int, count: int, others: Iterable[Skipped]) -> int:
    """Returns the offset after ``count`` records from ``start`` on. ``others`` are in the order of offsets.

    Ends early with ``others``: all further offsets count as records.
    """
    position, left = start, count
    for one in others:
        if left == 0 or one.start - position >= left:
            break
        if one.end > position:
            left -= max(0, one.start - position)
            position = one.end
    return position + left


def count_records(source: RangeReader, item: TopicPartition, start: int, end: int, bytes_max: int) -> int:
    """Counts the committed records from ``start`` to ``end`` (exclusive), as far as they can be read."""
    count = size = 0
    try:
        for batch in source.read(item.topic, item.partition, start, end):
            count += batch.num_rows
            size += batch.nbytes
            if size >= bytes_max:
                break
    except ClientError as problem:
        # Records that were deleted meanwhile are not counted.
        if is_outage(problem):
            raise
    return count


def other_offsets(
    target: RangeReader, item: TopicPartition, start: int, end: int, bytes_max: int
) -> Iterator[Skipped]:
    """Yields the offsets of markers and aborted transactions, in order, as far as they can be read."""
    size = 0
    try:
        for response in target.fetch(item.topic, item.partition, start, end):
            yield from _others_in(response)
            size += response.end - response.start
            if size >= bytes_max:
                return
    except ClientError as problem:
        if is_outage(problem):
            raise


def _others_in(response: FetchedPartition) -> Iterator[Skipped]:
    data, at, end = response.data, response.start, response.end
    waiting = sorted(response.aborted or [], key=lambda entry: entry[1])
    aborted: set[int] = set()
    while end - at > MAGIC and (size := whole_batch_size(data, at, end)):
        if data[at + MAGIC] == CURRENT_MAGIC:
            batch = parse_batch(data, at, end)
            while waiting and waiting[0][1] <= batch.last_offset:
                aborted.add(waiting.pop(0)[0])
            if batch.is_control:
                if batch.producer_id in aborted and is_abort(batch):
                    aborted.discard(int(batch.producer_id))
                yield Skipped(int(batch.base_offset), int(batch.next_offset))
            elif batch.is_transactional and batch.producer_id in aborted:
                yield Skipped(int(batch.base_offset), int(batch.next_offset))
        at += size


class PositionTranslation:
    """Translates the positions of one source's groups. The readers are the caller's, and read_committed.

    ``names`` returns the target's name of each topic that exists there, ``points`` the current sync points,
    ``held_back`` the partitions of the source that cannot be read in both clusters now.
    """

    def __init__(
        self,
        source: RangeReader,
        target: RangeReader,
        names: Callable[[], Mapping[str, str]],
        points: Callable[[], SyncPoints],
        held_back: Callable[[], Collection[TopicPartition]] = frozenset,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._points = points
        self._held_back = held_back
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[Anchor, TopicPartition, int], int] = OrderedDict()

    def unknown(self, positions: Positions) -> set[TopicPartition]:
        """Returns the partitions of the target whose positions are not known now: they are held back."""
        names, points, held_back = self._names(), self._points(), self._held_back()
        return {
            TopicPartition(names[item.topic], item.partition)
            for item in positions
            if item in held_back
            and item.topic in names
            and not (item.topic in points.topics and points.topics[item.topic].is_spread)
        }

    def translate(self, positions: Positions) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the positions of a group in the target, by its partitions. Raises ClientError.

        Omits topics without a copied record, and partitions that are held back.
        """
        names, points, held_back = self._names(), self._points(), self._held_back()
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in sorted({item.topic for item in positions}):
            seen = points.topics.get(topic)
            if seen is None or topic not in names:
                continue
            committed = {item.partition: one for item, one in positions.items() if item.topic == topic}
            if seen.is_spread:
                offsets = {number: one.offset for number, one in committed.items()}
                for number, offset in seen.spread_targets(offsets).items():
                    found[TopicPartition(names[topic], number)] = OffsetAndMetadata(offset)
                continue
            for number, one in committed.items():
                item, anchor = TopicPartition(topic, number), seen.anchor(number, one.offset)
                if anchor is not None and item not in held_back:
                    mirror = TopicPartition(names[topic], number)
                    offset = self._counted(item, mirror, anchor, one.offset)
                    found[mirror] = one._replace(offset=offset, leader_epoch=-1)
        return found

    def _counted(self, item: TopicPartition, mirror: TopicPartition, anchor: Anchor, offset: int) -> int:
        """Counts from the point to a position. What is behind the last point is not copied yet."""
        if offset <= anchor.source or anchor.next is None:
            return anchor.target
        key = (anchor._replace(next=None), item, offset)
        if key not in self._kept:
            count = count_records(self._source, item, anchor.source, offset, self._bytes_max)
            others = other_offsets(self._target, mirror, anchor.target, anchor.next[1], self._bytes_max)
            self._kept[key] = min(skip_records(anchor.target, count, others), anchor.next[1])
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        # The next point is a lower one once the target has lost records.
        return min(self._kept[key], anchor.next[1])


class Reported(NamedTuple):
    """The positions of a group in one source, by partition of the target."""

    positions: Positions
    unknown: Collection[TopicPartition]
    """The partitions whose positions are not known now."""


class MergedPositions:
    """The positions of groups in topics that several sources are merged into: the smallest of all sources.

    A group has read nothing of a source in which it has no position: where the records of this source begin
    is its position there. Until each source has reported its groups once, none are known. Threads may share
    it.
    """

    def __init__(self, aliases: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._waiting = set(aliases)
        self._known: dict[str, dict[str, Reported]] = {alias: {} for alias in self._waiting}
        self._current: dict[str, dict[str, Reported]] = {}
        self._unread: dict[str, set[str]] = {}
        """The groups that could not be read since the start, by source."""
        self._starts: dict[str, Callable[[], Mapping[TopicPartition, int]]] = {}

    def register(self, alias: str, starts: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Adds a source. ``starts`` returns where its records begin in the target, by its partitions."""
        self._starts[alias] = starts

    @property
    def is_complete(self) -> bool:
        """Whether each source has reported."""
        return not self._waiting

    def merge(
        self, alias: str, group: str, positions: Positions, unknown: Collection[TopicPartition] = ()
    ) -> Positions:
        """Notes the positions of a source's group, and returns those of the group in all sources.

        Omits the partitions that are ``unknown`` in one of them.
        """
        with self._lock:
            self._current.setdefault(alias, {})[group] = own = Reported(positions, unknown)
            if self._waiting or any(group in groups for groups in self._unread.values()):
                return {}
            reports = {name: groups.get(group, NOTHING) for name, groups in self._known.items()}
            reports[alias] = own
            # The positions were translated before: a source that begins later begins at or above them.
            starts = {name: start() for name, start in self._starts.items()}
            items = {item for report in reports.values() for item in report.positions}
            items = items.difference(*(report.unknown for report in reports.values()))
            return {item: _smallest(item, reports, starts) for item in items}

    def finish(self, alias: str, failed: Collection[str] = ()) -> None:
        """Notes that a source has reported all groups but those that could not be read now."""
        with self._lock:
            before, now = self._known[alias], self._current.pop(alias, {})
            self._unread[alias] = {group for group in failed if group not in before and group not in now}
            self._known[alias] = {group: before[group] for group in failed if group in before} | now
            self._waiting.discard(alias)


NOTHING: Final = Reported({}, ())


def _smallest(
    item: TopicPartition,
    reports: Mapping[str, Reported],
    starts: Mapping[str, Mapping[TopicPartition, int]],
) -> OffsetAndMetadata:
    found = []
    for name, report in reports.items():
        start = starts.get(name, {}).get(item)
        if item in report.positions:
            found.append(report.positions[item])
        elif start is not None:
            found.append(OffsetAndMetadata(start))
    return min(found, key=lambda one: one.offset)
