"""Plans which records are read to be written as ordinary records. Without access to a cluster or a clock.

A mirror follows its source, and has other losses than a query over a table:

- Records that the source has deleted before the mirror has read them are a loss, and so are those that a
  source has lost which ends before the position. They are an error that names the partitions: the operator is
  to know that the target lacks records before a consumer does. With ``fail_on_data_loss=False`` the mirror
  logs them, and continues.
- A topic that was deleted at the source is no loss: the target keeps its records. The mirror goes on with the
  other topics.
- A recreated topic is read from its start. The target has the records of both.
- A new topic or partition is read from its earliest record, whatever was deleted before. The end of its first
  batch has this start, so that records which are deleted later are a loss, also if the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidemill.client.errors import DataLoss
from tidemill.client.range_reader import TopicView
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import (
    Advance,
    ClusterView,
    OffsetRange,
    Offsets,
    advance,
    plan_ranges,
    starts_of,
    was_recreated,
)
from tidemill.pipeline.stream_offsets import StreamPosition, TopicPosition, describe_id


class MirrorDataLoss(DataLoss):
    """The source has deleted records that the mirror has not read."""


def known_position(position: StreamPosition, view: ClusterView) -> StreamPosition:
    """Returns the position in the partitions that the source has: the earliest offset of new ones."""
    topics: dict[str, TopicPosition] = {}
    for item, earliest in view.earliest.items():
        topic_id = view.topic_ids.get(item.topic)
        same = item.topic in position.topics and not was_recreated(position, item.topic, topic_id)
        before = position.topics[item.topic].next if same else {}
        known = topics.setdefault(item.topic, TopicPosition(topic_id, {}))
        topics[item.topic] = known._replace(
            next={**known.next, item.partition: before.get(item.partition, earliest)}
        )
    return StreamPosition(topics)


def plan_advance(position: StreamPosition, view: ClusterView) -> Advance:
    """Returns how far the mirror can advance; ``absent`` are the positions in partitions that are not there.

    They are kept, also if a broker with old metadata does not know a partition that was read.
    """
    ahead = advance(known_position(position, view), view)
    absent = {
        item: offset
        for item, offset in position.offsets().items()
        if item not in view.latest and not was_recreated(position, item.topic, view.topic_ids.get(item.topic))
    }
    return ahead._replace(absent=absent)


def ends_before(position: StreamPosition, view: ClusterView) -> dict[TopicPartition, int]:
    """Returns the positions in partitions that end before them now."""
    known = known_position(position, view).offsets()
    return {item: offset for item, offset in known.items() if view.latest.get(item, offset) < offset}


def without(view: ClusterView, items: Collection[TopicPartition]) -> ClusterView:
    """Returns a view in which ``items`` are held back: a broker that does not answer for them keeps their
    positions as well.
    """
    return view._replace(
        earliest={item: offset for item, offset in view.earliest.items() if item not in items},
        latest={item: offset for item, offset in view.latest.items() if item not in items},
    )


def waiting_for_target(
    sources: Mapping[str, TopicView], names: Mapping[str, str], targets: Mapping[str, TopicView]
) -> dict[TopicPartition, TopicPartition]:
    """Returns the partitions of the source that cannot be written, each with one of the target that has no
    leader.

    In a topic with more partitions than its source, any record may belong there.
    """
    found: dict[TopicPartition, TopicPartition] = {}
    for topic, seen in sources.items():
        target = targets.get(names.get(topic, ""))
        if target is None or not target.leaderless:
            continue
        is_spread = target.partitions > seen.partitions
        first = min(target.leaderless)
        for number in range(seen.partitions) if is_spread else target.leaderless:
            found[TopicPartition(topic, number)] = TopicPartition(
                names[topic], first if is_spread else number
            )
    return found


def moved_partitions(start: StreamPosition, end: StreamPosition) -> set[TopicPartition]:
    """Returns the partitions whose position moves in a micro-batch."""
    before = start.offsets()
    return {item for item, offset in end.offsets().items() if before.get(item) != offset}


def moved_topics(start: StreamPosition, end: StreamPosition) -> set[str]:
    """Returns the topics whose position moves in a micro-batch."""
    return {topic for topic, part in end.topics.items() if start.topics.get(topic) != part}


def plan_batch(
    start: StreamPosition, end: StreamPosition, view: ClusterView
) -> tuple[list[OffsetRange], list[str]]:
    """Returns the ranges of a micro-batch, and the losses among them.

    The same ``start`` and ``end`` result in the same ranges, as long as nothing was deleted.
    """
    there = StreamPosition(
        {
            topic: part
            for topic, part in end.topics.items()
            if topic in view.topic_ids and not was_recreated(end, topic, view.topic_ids[topic])
        }
    )
    first = StreamPosition(
        {
            topic: TopicPosition(part.topic_id, _starts(start, there, topic, view.earliest))
            for topic, part in there.topics.items()
        }
    )
    resolved = {topic: part._replace(begin={}) for topic, part in there.topics.items()}
    return plan_ranges(first, StreamPosition(resolved), view)


def _starts(start: StreamPosition, end: StreamPosition, topic: str, earliest: Offsets) -> dict[int, int]:
    before = starts_of(start, end, topic)
    first = {item.partition: offset for item, offset in earliest.items() if item.topic == topic}
    return {
        number: before.get(number, min(first.get(number, 0), last))
        for number, last in end.topics[topic].next.items()
    }


def changes_of(position: StreamPosition, view: ClusterView) -> list[str]:
    """Describes the topics that were deleted or recreated since ``position``."""
    notes = []
    for topic in sorted(position.topics):
        if topic not in view.topic_ids:
            notes.append(
                f"topic {topic} is not at the source any more, or is not selected: the target keeps its "
                "records"
            )
        elif was_recreated(position, topic, view.topic_ids[topic]):
            notes.append(
                f"topic {topic} of the source was deleted and recreated: its id was "
                f"{describe_id(position.topic_id(topic))}, now it is {describe_id(view.topic_ids[topic])}. "
                "It is copied from its start; the target keeps the records of before"
            )
    return notes


def loss_text(losses: Sequence[str]) -> str:
    """Returns the error for lost records."""
    return (
        f"{'; '.join(losses)}. The mirror stops here, because the target would lack these records: to copy "
        "what the source still has, start it again with --skip-lost (fail_on_data_loss=False); raise "
        "retention.ms of the topic at the source, so that it does not happen again"
    )
