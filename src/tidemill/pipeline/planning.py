"""Decides what is read: limits of a batch, ranges of offsets, splits. No cluster, no clock in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.pipeline.position import StreamPosition, describe_id, describe_partitions, position_of

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One Spark task: the records of one partition from ``start`` up to, and without, ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


class ClusterView(NamedTuple):
    """What the cluster has at one moment: ids of the topics that are read, both ends of each partition."""

    topic_ids: Mapping[str, bytes | None]
    earliest: Offsets
    latest: Offsets


class Advance(NamedTuple):
    """How far a stream can go, and what it has lost on the way.

    ``begin`` holds for every partition of ``end``: the position before, the earliest offset for partitions
    that are new. ``absent`` are positions in partitions that the cluster does not have at the moment: they
    stay in the checkpoint, for a topic that comes back with the same id. ``losses`` are sentences for people,
    empty when all is there.
    """

    begin: Offsets
    end: Offsets
    absent: Offsets
    losses: Sequence[str]


def made_anew(position: StreamPosition, topic: str, current: bytes | None) -> bool:
    """Whether the topic's name now belongs to another topic than the one in ``position``."""
    known = position.topic_id(topic)
    return known is not None and current not in (None, ZERO_ID) and known != current


def advance(position: StreamPosition, view: ClusterView) -> Advance:
    """From ``position`` to the end of the cluster's partitions.

    New partitions begin at their earliest offset. Topics made anew and partitions that end before the
    position are losses: they begin at the earliest offset, or where the log now ends. A partition that the
    cluster does not have is a loss as well, but its position is kept: only another id of the topic ends it.
    """
    begin: dict[TopicPartition, int] = {}
    end: dict[TopicPartition, int] = {}
    losses: list[str] = []
    known = position.offsets()
    anew = {topic for topic, topic_id in view.topic_ids.items() if made_anew(position, topic, topic_id)}
    for topic in sorted(anew):
        losses.append(
            f"topic {topic} was deleted and made anew: its id was {describe_id(position.topic_id(topic))}, "
            f"now it is {describe_id(view.topic_ids[topic])}, so the offsets of the checkpoint mean other "
            "records"
        )
    for partition, latest in view.latest.items():
        start = known.get(partition) if partition.topic not in anew else None
        if start is None:
            begin[partition] = view.earliest[partition]
            if partition.topic not in anew and view.earliest[partition] > 0:
                losses.append(f"{partition} is new and begins at {view.earliest[partition]}, not at 0")
        elif latest < start:
            begin[partition] = latest
            losses.append(f"{partition} ends at {latest}, before the position {start}")
        else:
            begin[partition] = start
        end[partition] = latest
    absent = {
        partition: offset
        for partition, offset in known.items()
        if partition not in view.latest and partition.topic not in anew
    }
    if absent:
        losses.append(f"the cluster has no longer {describe_partitions(absent)}")
    return Advance(begin, end, absent, losses)


def limit_rows(begin: Offsets, end: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Ends with at most ``rows_max`` offsets in all, shared in proportion to what waits in each partition.

    Every partition with something to read gets at least one offset, so that a small one beside large ones
    does not starve: only with fewer offsets than such partitions is there more than ``rows_max``.
    """
    waiting = {partition: end[partition] - begin[partition] for partition in end}
    filled = {partition: size for partition, size in waiting.items() if size > 0}
    total = sum(filled.values())
    if total <= rows_max:
        return dict(end)
    shares = {partition: max(1, size * rows_max // total) for partition, size in filled.items()}
    # The largest shares level what flooring left over, or what "at least one" took too much.
    order = sorted(filled, key=lambda partition: (-filled[partition], partition))
    spare = rows_max - sum(shares.values())
    for partition in order:
        if spare > 0:
            more = min(spare, filled[partition] - shares[partition])
        else:
            more = max(spare, 1 - shares[partition])
        shares[partition] += more
        spare -= more
        if spare == 0:
            break
    return {
        partition: begin[partition] + shares[partition] if partition in shares else end[partition]
        for partition in end
    }


def plan_ranges(
    start: StreamPosition, end: StreamPosition, view: ClusterView
) -> tuple[list[OffsetRange], list[str]]:
    """The ranges of a batch, and what of them is gone.

    The same ``start`` and ``end`` give the same ranges each time, as long as nothing was deleted. A partition
    that ``start`` does not know, or whose topic was made anew since, is read from its very beginning.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for topic, part in sorted(end.topics.items()):
        continues = topic in start.topics and not made_anew(start, topic, part.topic_id)
        before = start.topics[topic].next if continues else {}
        wanted = {number: last for number, last in part.next.items() if before.get(number, 0) < last}
        if wanted and made_anew(end, topic, view.topic_ids.get(topic)):
            losses.append(
                f"topic {topic} was deleted and made anew after this batch was planned: its id was "
                f"{describe_id(part.topic_id)}, now it is {describe_id(view.topic_ids[topic])}"
            )
            continue
        for number, last in sorted(wanted.items()):
            partition, first = TopicPartition(topic, number), before.get(number, 0)
            if partition not in view.earliest:
                losses.append(
                    f"the cluster has no longer {partition}, offsets {first} to {last - 1} are lost"
                )
                continue
            kept = max(first, view.earliest[partition])
            if kept > first:
                losses.append(deleted(partition, first, min(kept, last), kept))
            if kept < last:
                ranges.append(OffsetRange(topic, number, kept, last, part.topic_id))
    return ranges, losses


def deleted(partition: TopicPartition, first: int, last: int, earliest: int) -> str:
    """The sentence for offsets from ``first`` up to, and without, ``last`` that are gone."""
    return (
        f"offsets {first} to {last - 1} of {partition} were deleted before they were read "
        f"(the partition now begins at {earliest})"
    )


def split_ranges(
    ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Cuts ranges into more tasks.

    With ``partitions_min`` the larger ranges are cut, in proportion to their size, until there are about as
    many; with ``records_max`` until none is larger. Neither changes what is read.
    """
    filled = [one for one in ranges if one.size > 0]
    total = sum(one.size for one in filled)
    pieces: list[OffsetRange] = []
    for one in filled:
        parts = 1
        if records_max is not None:
            parts = -(-one.size // records_max)
        if partitions_min is not None and partitions_min > len(filled):
            parts = max(parts, round(one.size * partitions_min / total))
        pieces.extend(_cut(one, min(parts, one.size)))
    return pieces


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [one.start + one.size * part // parts for part in range(parts + 1)]
    return [
        OffsetRange(one.topic, one.partition, edges[part], edges[part + 1], one.topic_id)
        for part in range(parts)
    ]


def end_position(end: Offsets, absent: Offsets, view: ClusterView, before: StreamPosition) -> StreamPosition:
    """The position of ``end`` and of what is ``absent``, with the ids that the cluster has now.

    A topic that is absent, or that a broker without topic ids describes, keeps the id of ``before``.
    """
    ids = dict(view.topic_ids)
    for topic in {partition.topic for partition in (*end, *absent)}:
        if ids.get(topic) in (None, ZERO_ID):
            ids[topic] = before.topic_id(topic)
    return position_of({**end, **absent}, ids)


def waiting_rows(begin: Offsets, end: Offsets) -> int:
    """How many offsets lie between."""
    return sum(max(0, end[partition] - begin[partition]) for partition in end)
