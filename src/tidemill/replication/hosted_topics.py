"""The topics of this broker, by the bytes of their name and by their id. Compiled."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64

from tidemill.log.log_config import LogConfig
from tidemill.replication.message_format import message_format_of, validation_limits_of
from tidemill.replication.partition import Partition

COUNTERS: Final = 5


def counters_of(partition: Partition) -> tuple[int, ...]:
    """Records and bytes in, bytes out, records converted in and out, since the partition is here."""
    return (
        int(partition.messages_in),
        int(partition.bytes_in),
        int(partition.bytes_out),
        int(partition.produce_conversions),
        int(partition.fetch_conversions),
    )


class TopicSettings:
    """The configuration of a topic, and the objects made from it that its partitions share."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._limits = validation_limits_of(config)
        self._message_format = message_format_of(config)

    def apply(self, partition: Partition, now_ms: i64) -> None:
        """Applies the configuration to a partition of the topic."""
        partition.validation_limits = self._limits
        partition.message_format = self._message_format
        partition.set_min_insync_replicas(self._config.min_insync_replicas, now_ms)
        partition.log.set_config(self._config)
        partition.set_mirror_state(self._config.mirror_state)
        partition.flush_if_due()


class TopicEntry:
    """A topic with its partitions on this broker."""

    def __init__(self, name: str, topic_id: bytes, internal: bool) -> None:
        self.name = name
        self.name_bytes = name.encode()
        self.topic_id = topic_id
        self.internal = internal
        self.partitions: list[Partition | None] = []
        self.counted_before: tuple[int, ...] = (0,) * COUNTERS
        """The counters of partitions that were moved away: a topic's counters never decrease."""

    def partition(self, index: i32) -> Partition | None:
        """The partition, if this broker has it."""
        if index < 0 or index >= len(self.partitions):
            return None
        return self.partitions[index]

    def remove_partition(self, partition: Partition) -> None:
        """Removes a partition that has no replica here any more."""
        self.partitions[partition.index] = None
        counted = zip(self.counted_before, counters_of(partition), strict=True)
        self.counted_before = tuple([before + more for before, more in counted])


class TopicTable:
    """Finds topics by the bytes of their name and by their id."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, TopicEntry] = {}
        self.by_id: dict[bytes, TopicEntry] = {}

    def put(self, entry: TopicEntry) -> None:
        """Adds or replaces a topic."""
        self.by_name[entry.name_bytes] = entry
        self.by_id[entry.topic_id] = entry

    def remove(self, entry: TopicEntry) -> None:
        """Removes a topic."""
        self.by_name.pop(entry.name_bytes, None)
        self.by_id.pop(entry.topic_id, None)

    def find(self, topic: str, index: i32) -> Partition | None:
        """A partition by topic name and number."""
        entry = self.by_name.get(topic.encode())
        if entry is None:
            return None
        return entry.partition(index)
