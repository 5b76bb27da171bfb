"""DescribeCluster: the brokers and the controller, without topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import CLUSTER_OPERATIONS, reachable
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_cluster as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

BROKERS, CONTROLLERS = 1, 2
"""Endpoint types: the kind of server that the client expects."""


def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse:
    """Returns the cluster, or an error for an endpoint type that is not served here."""
    image = broker.metadata_cache.image
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = (
            "this is a broker: its controller has no endpoint of its own"
            if known
            else f"endpoint type {request.endpoint_type} does not exist"
        )
        return messages.DescribeClusterResponse(
            error_code=code, error_message=text, endpoint_type=BROKERS, cluster_id=image.cluster_id
        )
    return messages.DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            messages.DescribeClusterBroker(broker_id=found.broker_id, host=host, port=port, rack=found.rack)
            for found, host, port in reachable(image.brokers.values(), context)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -(2**31)
        ),
        store_silent_ms=broker.store_connectivity.disconnected_ms,
    )


API: Final = declare_api(ApiKey.DESCRIBE_CLUSTER, 0, 2, lambda: messages.DescribeClusterRequest, handle)
