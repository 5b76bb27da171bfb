"""The replicas of a broker that may have lost acknowledged records, and their fields in its registration.

``lost_unsynced`` and ``lost_logs`` are ``true`` for all replicas, or ``{"topic": [partition, ...]}``.
``lost_first_epoch`` is an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tidemill.coordination.encoding import number

LOST_BYTES_MAX = 256 * 1024
"""The limit for the partitions in a registration: a ZooKeeper node holds 1 MB. A longer report covers all."""

EPOCH_MAX: Final = 2**63 - 1

Partitions = Mapping[str, frozenset[int]]
"""Partition numbers by topic name."""
NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class LostReplicas(NamedTuple):
    """The replicas of a broker that may have lost acknowledged records, as its registration reports.

    ``unsynced``: the machine crashed, or a sync failed, so that records that were not synced may be lost.
    ``missing``: the log is gone, because the disk was replaced, say, or an older log is in its place. True
    means every replica.
    """

    unsynced: bool | Partitions = False
    missing: bool | Partitions = False
    since: Partitions = NO_PARTITIONS
    """Partitions created after the report, to which it does not apply. Not part of the registration."""
    first_epoch: int = 0
    """The epoch of the first registration with this report, if this one repeats it; else 0."""

    @property
    def is_none(self) -> bool:
        """Whether the report is empty."""
        return not self.unsynced and not self.missing

    def is_missing(self, topic: str, partition: int) -> bool:
        """Whether the log of this replica is missing."""
        return _names(self.missing, topic, partition) and not _names(self.since, topic, partition)

    def is_lost(self, topic: str, partition: int) -> bool:
        """Whether this replica may have lost acknowledged records."""
        is_named = _names(self.unsynced, topic, partition) or _names(self.missing, topic, partition)
        return is_named and not _names(self.since, topic, partition)


NOTHING_LOST = LostReplicas()


def _names(lost: bool | Partitions, topic: str, partition: int) -> bool:
    return lost if isinstance(lost, bool) else partition in lost.get(topic, ())


def encode_lost(lost: bool | Partitions) -> bool | dict[str, list[int]]:
    """Encodes the field; True where the names would exceed the size limit."""
    if isinstance(lost, bool):
        return lost
    named = {topic: sorted(partitions) for topic, partitions in sorted(lost.items())}
    size = sum(len(topic) + 8 + 7 * len(partitions) for topic, partitions in named.items())
    return named if size <= LOST_BYTES_MAX else True


def _decoded(lost: object) -> bool | Partitions:
    if isinstance(lost, Mapping):
        return {str(topic): frozenset(map(number, partitions)) for topic, partitions in lost.items()}
    return lost is True


def lost_fields(lost: LostReplicas) -> dict[str, object]:
    """Returns the fields of a registration that reports ``lost``; none for an empty report."""
    fields: dict[str, object] = {}
    if lost.unsynced:
        fields["lost_unsynced"] = encode_lost(lost.unsynced)
    if lost.missing:
        fields["lost_logs"] = encode_lost(lost.missing)
    if lost.first_epoch:
        fields["lost_first_epoch"] = lost.first_epoch
    return fields


def decode_lost(fields: Mapping[str, object]) -> LostReplicas:
    """Decodes the report of a registration. Raises ValueError or TypeError for malformed numbers."""
    return LostReplicas(
        _decoded(fields.get("lost_unsynced")),
        _decoded(fields.get("lost_logs")),
        first_epoch=number(fields.get("lost_first_epoch", 0), most=EPOCH_MAX),
    )
