"""PushTelemetry (key 72)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT16, INT32, INT8, UUID, Struct, field


class PushTelemetryRequest(Struct, versions="0", flexible="0+"):
    """Push Telemetry Request."""

    client_instance_id: bytes = field(UUID)
    subscription_id: int = field(INT32)
    terminating: bool = field(BOOL)
    compression_type: int = field(INT8)
    metrics: bytes = field(BYTES)


class PushTelemetryResponse(Struct, versions="0", flexible="0+"):
    """Push Telemetry Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
