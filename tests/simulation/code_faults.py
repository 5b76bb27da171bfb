"""Deliberate faults of the program: a simulation that does not find them is useless.

They replace methods of classes, and need plain Python (``TIDEMILL_PLAIN=1``): compiled classes cannot be
changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from tidemill.replication.follower_replicas import FollowerReplicas
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import ReplicaFetcher

Patch = Any


def truncate_by_high_watermark() -> list[Patch]:
    """Followers truncate their logs to their own high watermark, as Kafka did before KIP-101."""
    follow, tell = ReplicaFetcher.add_partition, ReplicaFetcher._update_requested

    def follow_cut(self: ReplicaFetcher, topic_id: bytes, partition: Partition, *times: Any) -> None:
        partition.truncate_to(partition.high_watermark, times[0])
        follow(self, topic_id, partition, *times)

    def tell_without_epoch(self: ReplicaFetcher, followed: Any) -> bool:
        is_sent = tell(self, followed)
        followed.last_fetched_epoch = -1
        return is_sent

    return [
        mock.patch.object(ReplicaFetcher, "add_partition", follow_cut),
        mock.patch.object(ReplicaFetcher, "_update_requested", tell_without_epoch),
    ]


def acknowledge_before_replicated() -> list[Patch]:
    """A leader acknowledges produces with acks=all as soon as it has appended the records."""
    return [mock.patch.object(Partition, "must_delay_response", return_value=False)]


def commit_before_replicated() -> list[Patch]:
    """A leader's high watermark ignores its followers."""
    return [mock.patch.object(FollowerReplicas, "high_watermark", lambda self, own_end, now_ms: own_end)]


def never_truncate() -> list[Patch]:
    """Followers keep records that their leader does not have."""

    def truncate_to(self: Partition, offset: int, *others: Any) -> None:
        return None

    return [mock.patch.object(Partition, "truncate_to", truncate_to)]


def join_isr_too_early() -> list[Patch]:
    """Followers join the ISR before they have all committed records."""

    def can_join_isr(self: FollowerReplicas, broker: int, *others: Any) -> bool:
        return int(broker) not in self.isr and not self.pending

    return [mock.patch.object(FollowerReplicas, "can_join_isr", can_join_isr)]


CODE_FAULTS: dict[str, Callable[[], list[Patch]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        truncate_by_high_watermark,
        acknowledge_before_replicated,
        commit_before_replicated,
        never_truncate,
        join_isr_too_early,
    )
}
