"""PushTelemetry (key 72): metrics from a client (KIP-714)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT8, INT16, INT32, UUID, Struct, field


class PushTelemetryRequest(Struct, versions="0", flexible="0+"):
    """Metrics in OTLP, optionally compressed."""

    client_instance_id: bytes = field(UUID)
    subscription_id: int = field(INT32)
    terminating: bool = field(BOOL)  # the client's last
    compression_type: int = field(INT8)
    metrics: bytes = field(BYTES)


class PushTelemetryResponse(Struct, versions="0", flexible="0+"):
    """The result of the push."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
