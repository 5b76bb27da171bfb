"""DescribeCluster: the brokers and the controller, without any topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import CLUSTER_OPERATIONS, reachable
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

BROKERS, CONTROLLERS = 1, 2
"""Endpoint types: which kind of server the client believes that it talks to."""


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The cluster, or an error for an endpoint type that is not served here."""
    image = broker.metadata.image
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = (
            "this is a broker: its controller has no endpoint of its own"
            if known
            else f"there is no endpoint type {request.endpoint_type}"
        )
        return DescribeClusterResponse(
            error_code=code, error_message=text, endpoint_type=BROKERS, cluster_id=image.cluster_id
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=found.broker_id, host=host, port=port, rack=found.rack)
            for found, host, port in reachable(image.brokers.values(), context)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -(2**31)
        ),
        store_silent_ms=broker.store_connectivity.silent_ms,
    )
