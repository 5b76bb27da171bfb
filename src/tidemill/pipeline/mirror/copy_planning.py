"""Plans what is copied next to a mirror with the same offsets. Without access to a cluster or a clock.

The log ends of the target are the position of the mirror. The position that Spark keeps in the checkpoint
has the topic ids of the source, so that a recreated topic is found, and a number that grows with each
micro-batch: a copy that was cut short continues with a micro-batch of its own, although the source has no new
records::

    {"batch": 7, "source": {"topics": {"flights": {"id": "hvAfTEStT3C5TrRTRexLrw", "next": {"0": 120}}}, ...}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.pipeline.batch_planning import ClusterView, Offsets
from tidemill.pipeline.mirror.range_copy import CopyRange
from tidemill.pipeline.stream_offsets import (
    BadPosition,
    StreamPosition,
    TopicPosition,
    describe_id,
    parse_position,
)


@dataclass(frozen=True)
class CopyTask(InputPartition):
    """A Spark task: ranges that are copied one after the other."""

    ranges: tuple[CopyRange, ...]


class MirrorPosition(NamedTuple):
    """What Spark's checkpoint has of the mirror."""

    batch: int
    source: StreamPosition

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON for Spark's checkpoint."""
        return {"batch": self.batch, "source": self.source.to_json()}


def parse_mirror_position(table: Mapping[str, Any]) -> MirrorPosition:
    """Parses :meth:`MirrorPosition.to_json`. Raises BadPosition."""
    try:
        return MirrorPosition(int(table["batch"]), parse_position(table["source"]))
    except (KeyError, TypeError, ValueError):
        raise BadPosition(
            f"the checkpoint's position {dict(table)!r} is not of a mirror: use a separate checkpoint"
        ) from None


class MirrorView(NamedTuple):
    """Both clusters at one time; partitions of the source are the keys in each."""

    names: Mapping[str, str]
    """The target's name of each topic."""
    compacted: Collection[str]
    """The topics of the source that compaction changes."""
    source: ClusterView
    target: ClusterView
    """Start and end of the mirrors, by the partition of the source; only those that exist."""

    def target_item(self, item: TopicPartition) -> TopicPartition:
        """Returns the mirror of a partition of the source."""
        return TopicPartition(self.names[item.topic], item.partition)


def replaced_topics(known: StreamPosition, view: MirrorView) -> list[str]:
    """Returns errors for the topics that were deleted and recreated at the source: other records have their
    offsets now.
    """
    return [
        f"topic {topic} of the source was deleted and recreated: its id was {describe_id(before)}, now it "
        f"is {describe_id(now)}, so that other records have the offsets of its mirror {view.names[topic]}. "
        "Delete the mirror in the target and start with a new checkpoint, or deny the topic"
        for topic, now in sorted(view.source.topic_ids.items())
        if (before := known.topic_id(topic)) is not None and now not in (None, ZERO_ID, before)
    ]


def copied_beyond_source(view: MirrorView) -> dict[TopicPartition, int]:
    """Returns the ends of the mirrors that have more than their source reports, by its partitions."""
    return {
        item: end
        for item, end in view.target.latest.items()
        if item in view.source.latest and view.source.latest[item] < end
    }


def longer_than_source(view: MirrorView, lost: Collection[TopicPartition]) -> list[str]:
    """Returns errors for the partitions of the source that have lost records of their mirrors."""
    return [
        f"the mirror {view.target_item(item)} ends at {view.target.latest[item]}, and its source {item} at "
        f"{view.source.latest[item]}: the source has lost records, or is another topic. Promote the "
        "mirror, or delete it in the target to copy the source anew"
        for item in sorted(lost)
    ]


def log_starts_behind(view: MirrorView) -> dict[TopicPartition, int]:
    """Returns the source's log starts that are above those of the mirrors, by the mirrors' partitions."""
    return {
        view.target_item(item): start
        for item, start in view.source.earliest.items()
        if item in view.target.earliest and view.target.earliest[item] < start
    }


def ranges_behind(view: MirrorView, ends: Offsets) -> list[CopyRange]:
    """Returns the ranges from the ends of the mirrors to ``ends``, by the partitions of the source."""
    return [
        CopyRange(
            item.topic,
            view.names[item.topic],
            item.partition,
            end,
            view.source.topic_ids.get(item.topic),
            is_compacted=item.topic in view.compacted,
        )
        for item, end in sorted(ends.items())
        if item in view.target.latest and view.target.latest[item] < end
    ]


def next_position(position: MirrorPosition, view: MirrorView, ends: Offsets) -> MirrorPosition:
    """Returns the end of the next micro-batch: ``position`` itself if nothing is to be copied.

    A topic that the source does not have any more keeps its place.
    """
    if not ranges_behind(view, ends):
        return position
    topics = dict(position.source.topics)
    for topic, topic_id in view.source.topic_ids.items():
        known = topics.get(topic, TopicPosition(None, {}))
        numbers = {item.partition: end for item, end in ends.items() if item.topic == topic}
        topics[topic] = TopicPosition(
            known.topic_id if topic_id in (None, ZERO_ID) else topic_id, {**known.next, **numbers}
        )
    return MirrorPosition(position.batch + 1, StreamPosition(topics))


def tasks_of(ranges: Sequence[CopyRange], sizes: Mapping[CopyRange, int], tasks_max: int) -> list[CopyTask]:
    """Distributes ranges over at most ``tasks_max`` tasks of similar numbers of offsets.

    A partition is never divided: its batches are appended in their order.
    """
    count = min(tasks_max, len(ranges))
    shares: list[list[CopyRange]] = [[] for _ in range(count)]
    totals = [0] * count
    for span in sorted(ranges, key=lambda one: (-sizes[one], one.topic, one.partition)):
        least = totals.index(min(totals))
        shares[least].append(span)
        totals[least] += sizes[span] + 1
    return [CopyTask(tuple(share)) for share in shares]
