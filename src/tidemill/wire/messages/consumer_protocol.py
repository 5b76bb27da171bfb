"""The consumer's part of the group protocol: subscription and assignment.

Both travel as bytes inside JoinGroup and SyncGroup, behind an INT16 with their version; the coordinator does
not read them. A version that a reader does not know is read as the newest that it does.
"""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT32, STRING, Struct, field


class TopicPartition(Struct):
    """One topic's partitions."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class ConsumerProtocolSubscription(Struct, versions="0-3"):
    """A member's subscription, for the leader's assignor."""

    topics: list[str] = field([STRING])
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)  # data of the assignor
    # partitions that it owns until they are revoked (KIP-429)
    owned_partitions: list[TopicPartition] = field([TopicPartition], "1+", ignorable=True)
    # of the owned partitions; -1 for none
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Struct, versions="0-3"):
    """A member's assignment."""

    assigned_partitions: list[TopicPartition] = field([TopicPartition])
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)  # data of the assignor
