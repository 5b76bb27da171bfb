"""Metadata (key 3)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class MetadataRequestTopic(Struct):
    """Metadata Request Topic."""

    topic_id: bytes = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, nullable="10+")


class MetadataRequest(Struct, versions="0-13", flexible="9+"):
    """Metadata Request."""

    topics: list[MetadataRequestTopic] | None = field([MetadataRequestTopic], nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


class MetadataResponseBroker(Struct):
    """Metadata Response Broker."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    """Metadata Response Partition."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: list[int] = field([INT32])
    isr_nodes: list[int] = field([INT32])
    offline_replicas: list[int] = field([INT32], "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    """Metadata Response Topic."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    is_internal: bool = field(BOOL, "1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field([MetadataResponsePartition])
    topic_authorized_operations: int = field(INT32, "8+", default=-(2**31))


class MetadataResponse(Struct, versions="0-13", flexible="9+"):
    """Metadata Response."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field([MetadataResponseBroker])
    cluster_id: str | None = field(STRING, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = field([MetadataResponseTopic])
    cluster_authorized_operations: int = field(INT32, "8-10", default=-(2**31))
    error_code: int = field(INT16, "13+", ignorable=True)
