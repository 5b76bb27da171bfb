"""Pairs of offsets of a source and of the target, from which positions are translated. Without I/O.

A micro-batch that has reached ``source`` in a partition of the source, and ``target`` in the partition of the
target with the same number, leaves the point ``(batch, source, target)``. All records of that source's
partition from ``source`` on are written by later batches, and therefore at ``target`` or above, whoever else
writes to the target. The first point of a partition is stored before its first batch is written.

If a topic of the target has other partitions than its source (``spread``), a batch leaves a point in each
partition of both. ``source`` or ``target`` is then None in a partition that only one of them has. A topic
that was spread once stays so: earlier batches have distributed its records.

Of the older points some are removed, and fewer remain of the oldest: the translation goes to an earlier
point then (KIP-382, ``OffsetSyncStore``). The file in the checkpoint of the source
(``docs/formats/sync-points.md``)::

    {"version": 1, "topics": {"orders": {"ids": ["hvAfTEStT3C5TrRTRexLrw", "apykSkyeSNqqEMjr744mvA"],
     "spread": false, "points": {"0": [[-1, 0, 0], [0, 120, 121]]}}}}

``ids`` are those of the topic in both clusters: a topic that was deleted and recreated has other records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.model.ids import decode_id, topic_id_text
from tidemill.model.types import ZERO_ID, TopicPartition

VERSION: Final = 1
RECENT: Final = 16
"""So many points of a partition are kept whatever their distance. Of the older ones, one is kept for each
doubling of the distance in batches, and the first one."""


class BadSyncPoints(TidemillError):
    """The file of the sync points cannot be read."""


class SyncPoint(NamedTuple):
    """The offsets after a batch."""

    batch: int
    source: int | None
    target: int | None


class Anchor(NamedTuple):
    """The point that a position is translated from, and the next one, if any."""

    source: int
    target: int
    next: tuple[int, int] | None


class TopicIds(NamedTuple):
    """The ids of a topic in both clusters; None or zero from a broker without topic ids."""

    source: bytes | None
    target: bytes | None

    def differ(self, other: TopicIds) -> bool:
        """Whether the topic was recreated in one of the clusters."""
        return any(
            None not in pair and ZERO_ID not in pair and pair[0] != pair[1]
            for pair in zip(self, other, strict=True)
        )


class TopicPoints(NamedTuple):
    """The points of a topic of the source, by the number of the partition, in the order of the batches."""

    ids: TopicIds
    is_spread: bool
    partitions: Mapping[int, Sequence[SyncPoint]]

    def lacks(self, partition: int, *, source: bool, target: bool) -> bool:
        """Whether a partition has no point yet with an offset of the source, or of the target."""
        points = self.partitions.get(partition, ())
        return (source and all(one.source is None for one in points)) or (
            target and all(one.target is None for one in points)
        )

    def anchor(self, partition: int, offset: int) -> Anchor | None:
        """Returns the last point at or before a position of the source; the first point for one before all.

        Only for topics that are not spread.
        """
        pairs = [
            (one.source, one.target)
            for one in self.partitions.get(partition, ())
            if one.source is not None and one.target is not None
        ]
        if not pairs:
            return None
        index = max((at for at, (source, _) in enumerate(pairs) if source <= offset), default=0)
        return Anchor(*pairs[index], pairs[index + 1] if index + 1 < len(pairs) else None)

    def spread_targets(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Returns the positions in all partitions of the target before which nothing is left to read.

        ``positions`` are those of a group by the source's partition. The group is taken to have read nothing
        of partitions without a position.
        """
        batches = []
        for number, points in self.partitions.items():
            sources = [(one.batch, one.source) for one in points if one.source is not None]
            if sources:
                offset = positions.get(number, sources[0][1])
                before = [batch for batch, source in sources if source <= offset]
                batches.append(before[-1] if before else sources[0][0])
        if not batches:
            return {}
        reached = min(batches)
        found = {}
        for number, points in self.partitions.items():
            targets = [(one.batch, one.target) for one in points if one.target is not None]
            if targets:
                reached_targets = [target for batch, target in targets if batch <= reached]
                found[number] = reached_targets[-1] if reached_targets else targets[0][1]
        return found


class SyncPoints(NamedTuple):
    """The points of all topics of a source."""

    topics: Mapping[str, TopicPoints]

    def copied(self) -> dict[TopicPartition, int]:
        """Returns the offsets that the mirror has reached, by partition of the source."""
        return {
            TopicPartition(topic, number): sources[-1]
            for topic, seen in self.topics.items()
            for number, points in seen.partitions.items()
            if (sources := [one.source for one in points if one.source is not None])
        }

    def starts(self, written: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        """Returns where the records of this source begin in the target, by its partitions, for the partitions
        of the source with records.

        ``written`` are the source partitions with a batch that may be written, and has no point after it.
        """
        found: dict[TopicPartition, int] = {}
        for topic, seen in self.topics.items():
            filled = {
                number
                for number, points in seen.partitions.items()
                if TopicPartition(topic, number) in written or _has_moved(points)
            }
            for number, points in seen.partitions.items():
                targets = [one.target for one in points if one.target is not None]
                if targets and (number in filled or (seen.is_spread and filled)):
                    found[TopicPartition(topic, number)] = targets[0]
        return found

    def of(self, topic: str, ids: TopicIds) -> TopicPoints:
        """Returns the points of a topic, none if they are of another topic with this name."""
        seen = self.topics.get(topic)
        return TopicPoints(ids, False, {}) if seen is None or seen.ids.differ(ids) else seen

    def with_points(
        self, topic: str, ids: TopicIds, points: Mapping[int, SyncPoint], *, is_spread: bool
    ) -> SyncPoints:
        """Adds points of a topic, by the number of the partition.

        The points of another topic with this name are removed. Of two points after the same batch the first
        one applies, since the batch was repeated, and the smaller offset of the target.
        """
        seen = self.of(topic, ids)
        partitions = dict(seen.partitions)
        for number, point in points.items():
            partitions[number] = _thinned(_added(partitions.get(number, ()), point))
        return SyncPoints({**self.topics, topic: TopicPoints(ids, seen.is_spread or is_spread, partitions)})

    def encode(self) -> bytes:
        """Returns the content of the file."""
        topics = {
            topic: {
                "ids": [topic_id_text(one) for one in seen.ids],
                "spread": seen.is_spread,
                "points": {str(number): points for number, points in seen.partitions.items()},
            }
            for topic, seen in self.topics.items()
        }
        return json.dumps({"version": VERSION, "topics": topics}, separators=(",", ":")).encode()


NO_POINTS: Final = SyncPoints({})


def parse_sync_points(data: bytes) -> SyncPoints:
    """Parses :meth:`SyncPoints.encode`. Raises BadSyncPoints."""
    try:
        table = json.loads(data)
        if table["version"] != VERSION:
            raise BadSyncPoints(
                f"the sync points have version {table['version']!r}, this tidemill reads version {VERSION}: "
                "continue with the tidemill that wrote them, or start with a new checkpoint"
            )
        return SyncPoints({topic: _parse_topic(seen) for topic, seen in table["topics"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadSyncPoints(f"the file of the sync points is damaged: {problem!r}") from None


def _parse_topic(table: Mapping[str, Any]) -> TopicPoints:
    return TopicPoints(
        TopicIds(*(None if one is None else decode_id(one) for one in table["ids"])),
        bool(table["spread"]),
        {int(number): tuple(SyncPoint(*one) for one in points) for number, points in table["points"].items()},
    )


def _has_moved(points: Sequence[SyncPoint]) -> bool:
    """Whether the mirror has passed offsets of the source since the first point."""
    sources = [one.source for one in points if one.source is not None]
    return len(set(sources)) > 1


def _added(points: Sequence[SyncPoint], new: SyncPoint) -> list[SyncPoint]:
    """Adds a point to those of a partition.

    Offsets above the end of a source that has become shorter mean other records: of such points only the
    target's part remains, and likewise only the source's part of those above the end of the target.
    """
    kept = list(points)
    if kept and kept[-1].batch == new.batch:
        before = kept.pop()
        new = SyncPoint(
            new.batch,
            new.source if before.source is None else before.source,
            min((one for one in (before.target, new.target) if one is not None), default=None),
        )
    if new.source is not None:
        kept = [
            one._replace(source=None) if one.source is not None and one.source > new.source else one
            for one in kept
        ]
    if new.target is not None:
        kept = [
            one._replace(target=None) if one.target is not None and one.target > new.target else one
            for one in kept
        ]
    return [*(one for one in kept if one[1:] != (None, None)), new]


def _thinned(points: Sequence[SyncPoint]) -> tuple[SyncPoint, ...]:
    if len(points) <= RECENT:
        return tuple(points)
    newest = points[-1].batch
    kept = [points[0]]
    distances: set[int] = set()
    for one in points[1:-RECENT]:
        distance = (newest - one.batch).bit_length()
        if distance not in distances:
            distances.add(distance)
            kept.append(one)
    return (*kept, *points[-RECENT:])
