"""ControllerRegistration (key 70): a controller registers with the active one of a KRaft cluster."""

from __future__ import annotations

from tidemill.wire.messages.broker_registration import Feature, Listener
from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class ControllerRegistrationRequest(Struct, versions="0", flexible="0+"):
    """A controller and its capabilities."""

    controller_id: int = field(INT32)
    incarnation_id: bytes = field(UUID)
    zk_migration_ready: bool = field(BOOL)
    listeners: list[Listener] = field([Listener])
    features: list[Feature] = field([Feature])


class ControllerRegistrationResponse(Struct, versions="0", flexible="0+"):
    """Whether it is registered."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
