"""GetTelemetrySubscriptions (key 71): the metrics that a client is to push (KIP-714)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Struct, field


class GetTelemetrySubscriptionsRequest(Struct, versions="0", flexible="0+"):
    """Identifies the client, or requests an id."""

    client_instance_id: bytes = field(UUID)  # zero to get one


class GetTelemetrySubscriptionsResponse(Struct, versions="0", flexible="0+"):
    """The metrics to push, their encoding and the interval."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    client_instance_id: bytes = field(UUID)
    subscription_id: int = field(INT32)
    accepted_compression_types: list[int] = field([INT8])
    push_interval_ms: int = field(INT32)
    telemetry_max_bytes: int = field(INT32)
    delta_temporality: bool = field(BOOL)
    requested_metrics: list[str] = field([STRING])
