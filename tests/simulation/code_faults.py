"""Faults that are put into the program on purpose: a simulation that does not find them is worth nothing.

They replace methods of classes, so they need plain Python (``TIDEMILL_PLAIN=1``): compiled classes cannot be
changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from tidemill.replication.fetcher import LeaderFetcher
from tidemill.replication.partition import Partition
from tidemill.replication.replicas import Replicas

Patch = Any


def truncate_by_high_watermark() -> list[Patch]:
    """Followers cut their logs to their own high watermark, as Kafka did before leader epochs (KIP-101)."""
    follow, tell = LeaderFetcher.follow, LeaderFetcher._tell

    def follow_cut(self: LeaderFetcher, topic_id: bytes, partition: Partition, *times: Any) -> None:
        partition.truncate_to(partition.high_watermark, times[0])
        follow(self, topic_id, partition, *times)

    def tell_without_epoch(self: LeaderFetcher, followed: Any) -> bool:
        told = tell(self, followed)
        followed.last_fetched_epoch = -1
        return told

    return [
        mock.patch.object(LeaderFetcher, "follow", follow_cut),
        mock.patch.object(LeaderFetcher, "_tell", tell_without_epoch),
    ]


def acknowledge_before_replicated() -> list[Patch]:
    """A leader answers produces with acks=all as soon as it has the records itself."""
    return [mock.patch.object(Partition, "holds_back", return_value=False)]


def commit_before_replicated() -> list[Patch]:
    """A leader's high watermark does not wait for its followers."""
    return [mock.patch.object(Replicas, "high_watermark", lambda self, own_end, now_ms: own_end)]


def never_truncate() -> list[Patch]:
    """Followers keep what their leader does not have."""

    def truncate_to(self: Partition, offset: int, *others: Any) -> None:
        return None

    return [mock.patch.object(Partition, "truncate_to", truncate_to)]


def let_in_too_early() -> list[Patch]:
    """Followers come back into the in-sync set before they have what is committed."""

    def may_join(self: Replicas, broker: int, *others: Any) -> bool:
        return int(broker) not in self.isr and not self.pending

    return [mock.patch.object(Replicas, "may_join", may_join)]


CODE_FAULTS: dict[str, Callable[[], list[Patch]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        truncate_by_high_watermark,
        acknowledge_before_replicated,
        commit_before_replicated,
        never_truncate,
        let_in_too_early,
    )
}
