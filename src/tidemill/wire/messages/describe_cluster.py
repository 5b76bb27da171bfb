"""DescribeCluster (key 60)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT8, STRING, Struct, field


class DescribeClusterRequest(Struct, versions="0-2", flexible="0+"):
    """Describe Cluster Request."""

    include_cluster_authorized_operations: bool = field(BOOL)
    endpoint_type: int = field(INT8, "1+", default=1)
    include_fenced_brokers: bool = field(BOOL, "2+")


class DescribeClusterBroker(Struct):
    """Describe Cluster Broker."""

    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_fenced: bool = field(BOOL, "2+")


class DescribeClusterResponse(Struct, versions="0-2", flexible="0+"):
    """Describe Cluster Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = field([DescribeClusterBroker])
    cluster_authorized_operations: int = field(INT32, default=-(2**31))
