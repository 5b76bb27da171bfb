"""The records of ``__consumer_offsets``, byte for byte as Apache Kafka writes and reads them.

A key and a value each begin with their version (INT16); the fields follow in the protocol's types,
big-endian. The key's version is the type of the record.

========================  ====================================================================================
key                       after the version
========================  ====================================================================================
0, 1  committed offset    group STRING, topic STRING, partition INT32
2     group               group STRING
others                    records of other coordinators (KIP-848, share groups, streams): ignored
========================  ====================================================================================

========================  ====================================================================================
committed offset, value   after the version
========================  ====================================================================================
0                         offset INT64, metadata STRING, commit timestamp INT64
1                         as 0, then expire timestamp INT64
2                         as 0
3                         offset INT64, leader epoch INT32, metadata STRING, commit timestamp INT64
4                         as 3 with a compact string, then tagged fields; tag 0: topic id UUID
========================  ====================================================================================

========================  ====================================================================================
group, value              after the version
========================  ====================================================================================
0-3                       protocol type STRING, generation INT32, protocol and leader NULLABLE_STRING,
                          2+ timestamp of the last state change INT64, members ARRAY
4                         as 3 in compact types, tagged fields at the end and after each member
a member                  member id STRING, 3+ instance id NULLABLE_STRING, client id STRING, client host
                          STRING, 1+ rebalance timeout INT32, session timeout INT32, subscription BYTES,
                          assignment BYTES
========================  ====================================================================================

The writer uses version 1 for an offset with an expiry of its own, version 4 for an offset with a topic id,
version 3 for every other offset and for groups. So Apache Kafka from 2.3 on reads a group, and readers before
3.5 cannot read only those offsets whose topic id was known. A null value is a tombstone: the offset, or the
group, was deleted.

Not promised: that a group's record contains members that joined after the last assignment was distributed, or
that the offset of a tombstone ever existed.

Source: ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey``, ``GroupMetadataValue`` among Apache
Kafka's message definitions; KIP-915, KIP-211.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, TypeAlias

from tidemill.model.errors import CorruptMessage, ProtocolError
from tidemill.model.types import NO_LEADER_EPOCH, ZERO_ID
from tidemill.wire.codec import VERSION_BYTES, decode, encode_versioned, version_of
from tidemill.wire.schema import BYTES, INT32, INT64, STRING, UUID, Struct, field

OFFSET_KEY_VERSIONS: Final = (0, 1)
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_WITH_EXPIRY: Final = 1
OFFSET_VALUE_VERSION: Final = 3
OFFSET_VALUE_WITH_TOPIC_ID: Final = 4
GROUP_VALUE_VERSION: Final = 3
NO_EXPIRY: Final = -1


class OffsetCommitKey(Struct, versions="0-1"):
    """The key of a committed offset."""

    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


class OffsetCommitValue(Struct, versions="0-4", flexible="4+"):
    """A committed offset."""

    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "3+", default=NO_LEADER_EPOCH, ignorable=True)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=NO_EXPIRY, ignorable=True)
    topic_id: bytes = field(UUID, "4+", tag=0, ignorable=True)


class GroupMetadataKey(Struct, versions="2"):
    """The key of a group."""

    group: str = field(STRING)


class MemberMetadata(Struct):
    """A member as it was when the group last became stable."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, "1+", default=-1, ignorable=True)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


class GroupMetadataValue(Struct, versions="0-4", flexible="4+"):
    """A group: empty, or stable with its members and their assignments."""

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    current_state_timestamp: int = field(INT64, "2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = field([MemberMetadata])


class CommittedOffset(NamedTuple):
    """A group's committed offset for one partition. Times are wall milliseconds, -1 where unset."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: bytes = ZERO_ID


class OffsetRecord(NamedTuple):
    """A committed offset, or with ``value`` None its tombstone."""

    group: str
    topic: str
    partition: int
    value: CommittedOffset | None

    def key_bytes(self) -> bytes:
        """The record's key."""
        key = OffsetCommitKey(group=self.group, topic=self.topic, partition=self.partition)
        return encode_versioned(key, OFFSET_KEY_VERSION)

    def value_bytes(self) -> bytes | None:
        """The record's value, in the version that its fields require; None for a tombstone."""
        value = self.value
        if value is None:
            return None
        version = OFFSET_VALUE_VERSION
        if value.expire_timestamp_ms != NO_EXPIRY:
            version = OFFSET_VALUE_WITH_EXPIRY
        elif value.topic_id != ZERO_ID:
            version = OFFSET_VALUE_WITH_TOPIC_ID
        message = OffsetCommitValue(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp=value.commit_timestamp_ms,
            expire_timestamp=value.expire_timestamp_ms,
            topic_id=value.topic_id,
        )
        return encode_versioned(message, version)


class GroupRecord(NamedTuple):
    """A group's metadata, or with ``value`` None its tombstone."""

    group: str
    value: GroupMetadataValue | None

    def key_bytes(self) -> bytes:
        """The record's key."""
        return encode_versioned(GroupMetadataKey(group=self.group), GROUP_KEY_VERSION)

    def value_bytes(self) -> bytes | None:
        """The record's value; None for a tombstone."""
        return None if self.value is None else encode_versioned(self.value, GROUP_VALUE_VERSION)


class TransactionalOffset(NamedTuple):
    """A committed offset that takes effect when the transaction of a producer is committed."""

    producer_id: int
    record: OffsetRecord

    @property
    def group(self) -> str:
        """The group."""
        return self.record.group

    def key_bytes(self) -> bytes:
        """The record's key."""
        return self.record.key_bytes()

    def value_bytes(self) -> bytes | None:
        """The record's value."""
        return self.record.value_bytes()


OffsetsRecord: TypeAlias = OffsetRecord | GroupRecord | TransactionalOffset


def decode_record(key: bytes | None, value: bytes | None) -> OffsetRecord | GroupRecord | None:
    """Decodes a record of the topic; returns None for a record of another coordinator.

    Raises :class:`CorruptMessage` when the bytes match none of the layouts above.
    """
    if key is None or len(key) < VERSION_BYTES:
        raise CorruptMessage(f"a record of __consumer_offsets has the key {key!r}, which contains no version")
    version = version_of(key)
    try:
        if version in OFFSET_KEY_VERSIONS:
            name = decode(OffsetCommitKey, version, key, VERSION_BYTES)
            return OffsetRecord(name.group, name.topic, name.partition, _decode_offset(value))
        if version == GROUP_KEY_VERSION:
            group = decode(GroupMetadataKey, version, key, VERSION_BYTES)
            return GroupRecord(group.group, _decode_group(value))
    except ProtocolError as problem:
        raise CorruptMessage(f"a record of __consumer_offsets with key {key!r}: {problem}") from problem
    return None


def _decode_offset(value: bytes | None) -> CommittedOffset | None:
    if value is None:
        return None
    message = decode(OffsetCommitValue, version_of(value), value, VERSION_BYTES)
    return CommittedOffset(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
        message.topic_id,
    )


def _decode_group(value: bytes | None) -> GroupMetadataValue | None:
    if value is None:
        return None
    group = decode(GroupMetadataValue, version_of(value), value, VERSION_BYTES)
    member_ids = [member.member_id for member in group.members]
    instance_ids = [
        member.group_instance_id for member in group.members if member.group_instance_id is not None
    ]
    for ids in (member_ids, instance_ids):
        repeated = Counter(ids) - Counter(set(ids))
        if repeated:
            raise ProtocolError(f"two members have the same id: {min(repeated)}")
    return group
