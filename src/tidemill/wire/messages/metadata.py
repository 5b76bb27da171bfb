"""Metadata (key 3): the cluster's brokers, topics and partition leaders."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class MetadataRequestTopic(Struct):
    """A topic to describe, by id or by name."""

    topic_id: bytes = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, nullable="10+")  # null where the id is given


class MetadataRequest(Struct, versions="0-13", flexible="9+"):
    """Requests the cluster's metadata, for all or some topics."""

    # null for all; in version 0 an empty list
    topics: list[MetadataRequestTopic] | None = field([MetadataRequestTopic], nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


class MetadataResponseBroker(Struct):
    """A live broker, with its address on the client's listener."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    # null where the broker has none
    rack: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    """Leader and replicas of one partition."""

    error_code: int = field(INT16)  # LEADER_NOT_AVAILABLE among others; the rest holds nevertheless
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)  # -1 where there is none
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: list[int] = field([INT32])
    isr_nodes: list[int] = field([INT32])  # replicas that are in sync
    # replicas whose broker or directory is offline
    offline_replicas: list[int] = field([INT32], "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    """A topic, or the error."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")  # null where the requested id is unknown
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    is_internal: bool = field(BOOL, "1+", ignorable=True)  # such as __consumer_offsets
    partitions: list[MetadataResponsePartition] = field([MetadataResponsePartition])
    # bit set by operation code; the default means that it was not requested
    topic_authorized_operations: int = field(INT32, "8+", default=-(2**31))


class MetadataResponse(Struct, versions="0-13", flexible="9+"):
    """The cluster in the broker's metadata."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field([MetadataResponseBroker])
    cluster_id: str | None = field(STRING, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)  # -1 where it is unknown
    topics: list[MetadataResponseTopic] = field([MetadataResponseTopic])
    # bit set by operation code; the default means that it was not requested
    cluster_authorized_operations: int = field(INT32, "8-10", default=-(2**31))
    error_code: int = field(INT16, "13+", ignorable=True)
