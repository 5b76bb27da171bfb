"""Plans reads: limits of a batch, ranges of offsets, splits. Without access to a cluster or a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.pipeline.stream_offsets import StreamPosition, describe_id, describe_partitions, position_of

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """A Spark task: the records of one partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


class ClusterView(NamedTuple):
    """A view of the cluster at one time: topic ids, and the start and end offset of each partition."""

    topic_ids: Mapping[str, bytes | None]
    earliest: Offsets
    latest: Offsets


class Advance(NamedTuple):
    """How far a stream can advance, and the data losses on the way.

    ``begin`` has the start for every partition of ``end``: the position before, or the earliest offset of a
    new partition. ``absent`` has the positions in partitions that the cluster does not have now. They stay in
    the checkpoint, for a topic that returns with the same id. ``losses`` are messages for the user, empty if
    nothing is lost.
    """

    begin: Offsets
    end: Offsets
    absent: Offsets
    losses: Sequence[str]


def was_recreated(position: StreamPosition, topic: str, current: bytes | None) -> bool:
    """Whether the topic was deleted and recreated since ``position``: its id is another one."""
    known = position.topic_id(topic)
    return known is not None and current not in (None, ZERO_ID) and known != current


def advance(position: StreamPosition, view: ClusterView) -> Advance:
    """Advances from ``position`` to the end of the cluster's partitions.

    New partitions start at their earliest offset. Recreated topics and partitions that end before the
    position are losses: they start at the earliest offset, or at the current log end offset. A partition
    that the cluster does not have is a loss as well. Its position is kept until the topic has another id.
    """
    begin: dict[TopicPartition, int] = {}
    end: dict[TopicPartition, int] = {}
    known = position.offsets()
    recreated = {
        topic for topic, topic_id in view.topic_ids.items() if was_recreated(position, topic, topic_id)
    }
    losses = [
        f"topic {topic} was deleted and recreated: its id was {describe_id(position.topic_id(topic))}, "
        f"now it is {describe_id(view.topic_ids[topic])}, so the offsets of the checkpoint mean other records"
        for topic in sorted(recreated)
    ]
    for partition, latest in view.latest.items():
        start = known.get(partition) if partition.topic not in recreated else None
        if start is None:
            begin[partition] = view.earliest[partition]
            if partition.topic not in recreated and view.earliest[partition] > 0:
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
        if partition not in view.latest and partition.topic not in recreated
    }
    if absent:
        names = describe_partitions(absent)
        losses.append(f"the cluster no longer has {names}, or the options of the query no longer select it")
    return Advance(begin, end, absent, losses)


def limit_rows(begin: Offsets, end: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Returns ends with at most ``rows_max`` offsets in total, in proportion to each partition's backlog.

    Every partition with a backlog gets at least one offset, so that large partitions do not starve a small
    one. The total exceeds ``rows_max`` only if there are more such partitions than ``rows_max``.
    """
    waiting = {partition: end[partition] - begin[partition] for partition in end}
    filled = {partition: size for partition, size in waiting.items() if size > 0}
    total = sum(filled.values())
    if total <= rows_max:
        return dict(end)
    shares = {partition: max(1, size * rows_max // total) for partition, size in filled.items()}
    # The largest shares absorb the remainder of the division, or the excess of "at least one".
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
    """Returns the ranges of a batch, and the losses among them.

    The same ``start`` and ``end`` result in the same ranges, as long as nothing was deleted. A partition
    that neither of them has a start of, or whose topic was recreated since, is read from offset 0.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for topic, part in sorted(end.topics.items()):
        before = starts_of(start, end, topic)
        wanted = {number: last for number, last in part.next.items() if before.get(number, 0) < last}
        if wanted and was_recreated(end, topic, view.topic_ids.get(topic)):
            losses.append(
                f"topic {topic} was deleted and recreated after this batch was planned: its id was "
                f"{describe_id(part.topic_id)}, now it is {describe_id(view.topic_ids[topic])}"
            )
            continue
        for number, last in sorted(wanted.items()):
            partition, first = TopicPartition(topic, number), before.get(number, 0)
            if partition not in view.earliest:
                losses.append(
                    f"the cluster no longer has {partition}, offsets {first} to {last - 1} are lost"
                )
                continue
            kept = max(first, view.earliest[partition])
            if kept > first:
                losses.append(deleted(partition, first, min(kept, last), kept))
            if kept < last:
                ranges.append(OffsetRange(topic, number, kept, last, part.topic_id))
    return ranges, losses


def starts_of(start: StreamPosition, end: StreamPosition, topic: str) -> Mapping[int, int]:
    """Returns the start of a batch by partition of a topic; omits partitions that neither position has."""
    part = end.topics[topic]
    if start.topics.get(topic) == part:
        return part.next
    continues = topic in start.topics and not was_recreated(start, topic, part.topic_id)
    return {**(start.topics[topic].next if continues else {}), **part.begin}


def deleted(partition: TopicPartition, first: int, last: int, earliest: int) -> str:
    """Returns the message for deleted offsets from ``first`` (inclusive) to ``last`` (exclusive)."""
    return (
        f"offsets {first} to {last - 1} of {partition} were deleted before they were read "
        f"(the partition now begins at {earliest})"
    )


def split_ranges(
    ranges: Sequence[OffsetRange], partitions_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Splits ranges into more tasks.

    With ``partitions_min`` the larger ranges are split, in proportion to their size, until there are about
    that many; with ``records_max`` until no range is larger. Neither changes the records that are read.
    """
    filled = [span for span in ranges if span.size > 0]
    total = sum(span.size for span in filled)
    pieces: list[OffsetRange] = []
    for span in filled:
        parts = 1
        if records_max is not None:
            parts = -(-span.size // records_max)
        if partitions_min is not None and partitions_min > len(filled):
            parts = max(parts, round(span.size * partitions_min / total))
        pieces.extend(_split(span, min(parts, span.size)))
    return pieces


def _split(span: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [span.start + span.size * part // parts for part in range(parts + 1)]
    return [
        OffsetRange(span.topic, span.partition, edges[part], edges[part + 1], span.topic_id)
        for part in range(parts)
    ]


def end_position(end: Offsets, absent: Offsets, view: ClusterView, before: StreamPosition) -> StreamPosition:
    """Returns the position of ``end`` and ``absent``, with the current topic ids of the cluster.

    A topic that is absent, or that comes from a broker without topic ids, keeps the id of ``before``. A topic
    that has not moved since ``before`` is equal to it.
    """
    ids = dict(view.topic_ids)
    for topic in {partition.topic for partition in (*end, *absent)}:
        if ids.get(topic) in (None, ZERO_ID):
            ids[topic] = before.topic_id(topic)
    after = position_of({**end, **absent}, ids)
    return StreamPosition(
        {
            topic: before.topics[topic]
            if topic in before.topics and before.topics[topic]._replace(begin={}) == part
            else part
            for topic, part in after.topics.items()
        }
    )


def with_begin(end: StreamPosition, stored: StreamPosition, begin: Offsets) -> StreamPosition:
    """Returns the end of a batch with its start in the partitions that ``stored`` does not have.

    ``stored`` is the position before the batch in the checkpoint.
    """
    topics = {}
    for topic, part in end.topics.items():
        continues = topic in stored.topics and not was_recreated(stored, topic, part.topic_id)
        known = stored.topics[topic].next if continues else {}
        starts = {
            number: begin[item]
            for number, offset in part.next.items()
            if (item := TopicPartition(topic, number)) in begin
            and number not in known
            and begin[item] != offset
        }
        topics[topic] = part._replace(begin=starts) if starts else part
    return StreamPosition(topics)


def waiting_rows(begin: Offsets, end: Offsets) -> int:
    """Returns the number of offsets between ``begin`` and ``end``."""
    return sum(max(0, end[partition] - begin[partition]) for partition in end)
