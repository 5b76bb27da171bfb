"""ConsumerGroupDescribe (key 69): groups of the consumer protocol of KIP-848."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Struct, field


class ConsumerGroupDescribeRequest(Struct, versions="0-1", flexible="0+"):
    """The groups of the request."""

    group_ids: list[str] = field([STRING])
    include_authorized_operations: bool = field(BOOL)


class TopicPartitions(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    topic_name: str = field(STRING)
    partitions: list[int] = field([INT32])


class Assignment(Struct):
    """A set of partitions."""

    topic_partitions: list[TopicPartitions] = field([TopicPartitions])


class Member(Struct):
    """A member."""

    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field([STRING])
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    member_type: int = field(INT8, "1+", default=-1, ignorable=True)  # 0: classic, 1: consumer, -1: unknown


class DescribedGroup(Struct):
    """A group, or the error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)  # as Kafka spells it: "Stable", "PreparingRebalance" ..
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: list[Member] = field([Member])
    # bit set by operation code; the default means that it was not requested
    authorized_operations: int = field(INT32, default=-(2**31))


class ConsumerGroupDescribeResponse(Struct, versions="0-1", flexible="0+"):
    """The groups."""

    throttle_time_ms: int = field(INT32)
    groups: list[DescribedGroup] = field([DescribedGroup])
