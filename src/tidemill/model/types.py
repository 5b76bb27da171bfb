"""The basic types that every layer shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
"""No offset, or an unknown one."""
NO_LEADER_EPOCH: Final = -1
"""No leader epoch, or an unknown one."""
NO_BROKER: Final = -1
"""No broker: the leader of a partition without one, or an unknown controller."""
ZERO_ID: Final = b"\x00" * 16
"""A topic id that identifies no topic."""


class TopicPartition(NamedTuple):
    """A partition of a topic, by topic name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(items: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partitions of each topic, in order."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(items):
        grouped.setdefault(topic, []).append(partition)
    return grouped
