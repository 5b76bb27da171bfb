"""DescribeCluster (key 60): brokers, controller and id of the cluster."""

from __future__ import annotations

from typing import Final

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, Struct, field

STORE_SILENT_TAG: Final = 0x54696D
"""``Tim``. Clients skip tags that they do not know (KIP-482)."""


class DescribeClusterRequest(Struct, versions="0-2", flexible="0+"):
    """The type of endpoints, and optional parts of the response."""

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
    # bit set by operation code; the default means that it was not requested
    cluster_authorized_operations: int = field(INT32, default=-(2**31))
    # Tidemill's own, far from the tags that Kafka assigns: how long the coordination store of this broker
    # has not responded; not sent while it responds
    store_silent_ms: int = field(INT64, default=0, tag=STORE_SILENT_TAG)
