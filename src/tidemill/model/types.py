"""The small words that every layer shares."""

from __future__ import annotations

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A record's place in its partition, counted in records from 0."""

Position = NewType("Position", int)
"""A byte's place in a file."""

Epoch = NewType("Epoch", int)
"""Counts the leaders (or the owners) of one thing; -1 where none is known."""

NodeId = NewType("NodeId", int)
"""A broker's ``broker.id``."""

NO_EPOCH = Epoch(-1)
NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1
ZERO_ID = b"\x00" * 16
"""A topic id that names nothing."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by the name that the broker uses inside."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
