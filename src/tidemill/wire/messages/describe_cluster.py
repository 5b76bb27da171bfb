"""DescribeCluster (key 60): brokers, controller and id of the cluster."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, Struct, field


class DescribeClusterRequest(Struct, versions="0-2", flexible="0+"):
    """Which endpoints, and what else, to tell."""

    include_cluster_authorized_operations: bool = field(BOOL)
    endpoint_type: int = field(INT8, "1+", default=1)  # 1: brokers, 2: controllers
    include_fenced_brokers: bool = field(BOOL, "2+")


class DescribeClusterBroker(Struct):
    """A broker."""

    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)  # null where the broker has none
    is_fenced: bool = field(BOOL, "2+")


class DescribeClusterResponse(Struct, versions="0-2", flexible="0+"):
    """The cluster."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)  # 1: brokers, 2: controllers
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = field([DescribeClusterBroker])
    # bit set by operation code; the default says that it was not asked for
    cluster_authorized_operations: int = field(INT32, default=-(2**31))
