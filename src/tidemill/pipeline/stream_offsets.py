"""The position of a stream: the offsets that Spark keeps in a query's checkpoint.

JSON with sorted keys, since Spark compares offsets as text::

    {"topics": {"flights": {"id": "hvAfTEStT3C5TrRTRexLrw", "next": {"0": 120, "1": 98}}}, "version": 1}

``next`` is the offset of the first record that is not read yet. ``id`` is the topic's id (16 bytes in
base64, as Kafka's tools print it): a topic that was deleted and recreated has another id with the same
name. From a broker without topic ids it is ``null``, and the check is skipped.

The end of a batch also has ``"begin": {"0": 0}`` for the partitions whose start is in no earlier batch: the
first ones of a query, and new ones of a mirror. The start would otherwise be resolved again if the batch is
repeated, and without the records that were deleted meanwhile. A topic keeps ``begin`` until it has new
records, so that its text stays equal.

The format of Spark's own connector, ``{"flights": {"0": 120}}``, is read as well: a checkpoint of
``format("kafka")`` continues with ``format("tidemill")``, and gets the ids with the next micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.model.ids import decode_id, topic_id_text
from tidemill.model.types import TopicPartition

VERSION = 1


class BadPosition(TidemillError):
    """The source cannot read the offsets of a checkpoint."""


class TopicPosition(NamedTuple):
    """The position in a topic: its id, and the next offset of each partition.

    ``begin`` is the start of the batch that ends here, where the position before does not have it.
    """

    topic_id: bytes | None
    next: Mapping[int, int]
    begin: Mapping[int, int] = {}


class StreamPosition(NamedTuple):
    """The next offset of every partition of the stream."""

    topics: Mapping[str, TopicPosition]

    def offsets(self) -> dict[TopicPartition, int]:
        """Returns the next offset by partition."""
        return {
            TopicPartition(topic, partition): offset
            for topic, part in self.topics.items()
            for partition, offset in part.next.items()
        }

    def topic_id(self, topic: str) -> bytes | None:
        """Returns the id that the topic had when the stream first read it; None for an unknown topic."""
        return self.topics[topic].topic_id if topic in self.topics else None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON for Spark's checkpoint; equal positions have equal text."""
        return {
            "topics": {
                topic: {
                    **({"begin": _texts(part.begin)} if part.begin else {}),
                    "id": topic_id_text(part.topic_id),
                    "next": _texts(part.next),
                }
                for topic, part in sorted(self.topics.items())
            },
            "version": VERSION,
        }


def position_of(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes | None]
) -> StreamPosition:
    """Builds a position from the next offset of each partition and the topic ids."""
    topics: dict[str, dict[int, int]] = {topic: {} for topic in topic_ids}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, {})[partition] = offset
    return StreamPosition(
        {topic: TopicPosition(topic_ids.get(topic), numbers) for topic, numbers in topics.items()}
    )


def parse_position(table: Mapping[str, Any]) -> StreamPosition:
    """Parses the output of :meth:`StreamPosition.to_json`, or Spark's format. Raises BadPosition."""
    try:
        if isinstance(table.get("version", {}), dict):  # no version, or a topic of that name
            return StreamPosition(
                {topic: TopicPosition(None, _numbers(part)) for topic, part in table.items()}
            )
        if table["version"] != VERSION:
            raise BadPosition(
                f"the checkpoint has offsets of version {table['version']!r}, this tidemill reads version "
                f"{VERSION}: continue with the tidemill that wrote it, or start with a new checkpoint"
            )
        return StreamPosition(
            {
                topic: TopicPosition(
                    None if part["id"] is None else decode_id(part["id"]),
                    _numbers(part["next"]),
                    _numbers(part.get("begin", {})),
                )
                for topic, part in table["topics"].items()
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadPosition(
            f"the checkpoint's offsets {table!r} are not from this source ({problem!r}): "
            "use a separate checkpoint for the query"
        ) from None


def _texts(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}


def _numbers(table: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in table.items()}


def describe_id(topic_id: bytes | None) -> str:
    """Formats a topic id as Kafka's tools do."""
    return topic_id_text(topic_id) or "none"


def describe_partitions(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Lists partitions for a message, at most ``most`` of them."""
    names = sorted(partitions)
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
