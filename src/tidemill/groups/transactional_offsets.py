"""The offsets of open transactions: they take effect together, at the commit marker of their transaction.

Among the offsets of a partition, that of the last record counts, wherever the markers are. So the records are
numbered in the order of the log, and an offset that takes effect removes the pending ones before it.

The end of a transaction cannot pause: a request in between would see a part of its offsets. So its cost is
kept small, some hundred nanoseconds for each offset, and does not depend on other transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from tidemill.groups.group_metadata import GroupMetadata
from tidemill.groups.offset_records import CommittedOffset, OffsetRecord

PendingOffset: TypeAlias = tuple[int, CommittedOffset | None]
"""The number of the record and its offset; None for a tombstone."""
PendingOffsets: TypeAlias = dict[tuple[str, int], PendingOffset]
"""By topic and partition."""


class TransactionalOffsets:
    """The pending offsets of the groups of one ``__consumer_offsets`` partition."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, PendingOffsets]] = {}
        """By producer id and group. ``GroupMetadata.unstable`` has the producers of each partition."""

    def add(self, producer_id: int, group: GroupMetadata, record: OffsetRecord, number: int) -> None:
        """Keeps the offset of a record until the end of its transaction."""
        key = (record.topic, record.partition)
        pending = self._by_producer.setdefault(producer_id, {}).setdefault(record.group, {})
        if key not in pending:
            group.unstable[key] = (*group.unstable.get(key, ()), producer_id)
        pending[key] = (number, record.value)

    def of_group(self, group: GroupMetadata, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
        """Yields the partitions of ``topics`` with pending offsets, with the topic id of each offset."""
        for key, producers in group.unstable.items():
            if key[0] not in topics:
                continue
            for producer_id in producers:
                _, offset = self._by_producer[producer_id][group.group_id][key]
                if offset is not None:
                    yield (*key, offset.topic_id)

    def remove_older(self, group: GroupMetadata, key: tuple[str, int], number: int) -> None:
        """Removes the pending offsets of a partition before record ``number``."""
        for producer_id in group.unstable.get(key, ()):
            groups = self._by_producer[producer_id]
            pending = groups[group.group_id]
            if pending[key][0] < number:
                del pending[key]
                _remove_producer(group, key, producer_id)

    def pop(self, producer_id: int) -> Mapping[str, PendingOffsets]:
        """Removes a transaction, and returns its offsets by group, for :meth:`end`."""
        return self._by_producer.pop(producer_id, {})

    def end(self, producer_id: int, group: GroupMetadata, pending: PendingOffsets, is_commit: bool) -> None:
        """Ends a transaction, which was removed, in one of its groups."""
        unstable, offsets = group.unstable, group.offsets
        for key, (number, offset) in pending.items():
            producers = unstable.pop(key)
            if len(producers) > 1:
                unstable[key] = producers
                _remove_producer(group, key, producer_id)
                if is_commit and offset is not None:
                    self.remove_older(group, key, number)
            if is_commit and offset is not None:
                topic, partition = key
                of_topic = offsets.get(topic)
                if of_topic is None:
                    of_topic = offsets[topic] = {}
                of_topic[partition] = offset

    def clear(self) -> None:
        """Removes all transactions."""
        self._by_producer.clear()


def _remove_producer(group: GroupMetadata, key: tuple[str, int], producer_id: int) -> None:
    others = tuple(one for one in group.unstable[key] if one != producer_id)
    if others:
        group.unstable[key] = others
    else:
        del group.unstable[key]
