"""The replicas of a broker that may hold less than they acknowledged, and how its registration names them.

A field of the registration is ``true`` for every replica, or ``{"topic": [partition, ...]}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tidemill.coordination.encoding import number

LOST_BYTES_MAX = 256 * 1024
"""Of the partitions that a registration names: ZooKeeper takes 1 MB a node. A longer report names all."""

Partitions = Mapping[str, frozenset[int]]
"""Partition numbers by topic name."""
NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class LostReplicas(NamedTuple):
    """The replicas of a broker that may hold less than they acknowledged, as it reports at its registration.

    ``unsynced``: the machine went down, or a sync failed, so that records which were not synced may be gone.
    ``missing``: the log is gone altogether, as the disk was replaced, say, or an older one is in its place.
    True stands for every replica.
    """

    unsynced: bool | Partitions = False
    missing: bool | Partitions = False
    since: Partitions = NO_PARTITIONS
    """Made after the report, which says nothing of them. The registration does not tell these."""

    @property
    def is_none(self) -> bool:
        """Whether nothing was lost."""
        return not self.unsynced and not self.missing

    def is_missing(self, topic: str, partition: int) -> bool:
        """Whether the log of this replica is gone."""
        return _names(self.missing, topic, partition) and not _names(self.since, topic, partition)

    def is_lost(self, topic: str, partition: int) -> bool:
        """Whether this replica may hold less than it acknowledged."""
        is_named = _names(self.unsynced, topic, partition) or _names(self.missing, topic, partition)
        return is_named and not _names(self.since, topic, partition)


NOTHING_LOST = LostReplicas()


def _names(lost: bool | Partitions, topic: str, partition: int) -> bool:
    return lost if isinstance(lost, bool) else partition in lost.get(topic, ())


def encode_lost(lost: bool | Partitions) -> bool | dict[str, list[int]]:
    """The value of the field; True in the place of more names than a node holds."""
    if isinstance(lost, bool):
        return lost
    named = {topic: sorted(partitions) for topic, partitions in sorted(lost.items())}
    size = sum(len(topic) + 8 + 7 * len(partitions) for topic, partitions in named.items())
    return named if size <= LOST_BYTES_MAX else True


def decode_lost(value: object) -> bool | Partitions:
    """What the field names. Raises ValueError or TypeError for partitions that are no numbers."""
    if isinstance(value, Mapping):
        return {str(topic): frozenset(map(number, partitions)) for topic, partitions in value.items()}
    return value is True
