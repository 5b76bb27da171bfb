"""BrokerRegistration (key 62): a broker registers with the controller of a KRaft cluster."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, UINT16, UUID, Struct, field


class Listener(Struct):
    """The address of an endpoint."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class Feature(Struct):
    """Levels of a feature that it can run."""

    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class BrokerRegistrationRequest(Struct, versions="0-4", flexible="0+"):
    """A broker and its capabilities."""

    broker_id: int = field(INT32)
    cluster_id: str = field(STRING)
    incarnation_id: bytes = field(UUID)
    listeners: list[Listener] = field([Listener])
    features: list[Feature] = field([Feature])
    rack: str | None = field(STRING, nullable="0+")
    is_migrating_zk_broker: bool = field(BOOL, "1+")
    log_dirs: list[bytes] = field([UUID], "2+", ignorable=True)
    previous_broker_epoch: int = field(INT64, "3+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Struct, versions="0-4", flexible="0+"):
    """The epoch under which it is registered."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    broker_epoch: int = field(INT64, default=-1)
