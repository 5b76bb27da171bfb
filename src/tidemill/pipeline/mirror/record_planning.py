"""Plans which records are read to be written as ordinary records. Without access to a cluster or a clock.

A mirror follows its source, and has other losses than a query over a table:

- Records that the source has deleted before the mirror has read them are a loss, and so are those that a
  source has lost which ends before the position. They are an error that names the partitions: the operator is
  to know that the target lacks records before a consumer does. With ``fail_on_data_loss=False`` the mirror
  logs them, and continues.
- A topic that was deleted at the source is no loss: the target keeps its records. The mirror goes on with the
  other topics.
- A recreated topic is read from its start. The target has the records of both.
- A new topic or partition is read from its earliest record, whatever was deleted before.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.client.errors import DataLoss
from tidemill.pipeline.batch_planning import (
    Advance,
    ClusterView,
    OffsetRange,
    Offsets,
    advance,
    plan_ranges,
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
    return plan_ranges(first, there, view)


def _starts(start: StreamPosition, end: StreamPosition, topic: str, earliest: Offsets) -> dict[int, int]:
    continues = topic in start.topics and not was_recreated(start, topic, end.topics[topic].topic_id)
    before = start.topics[topic].next if continues else {}
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
