"""FindCoordinator (key 10): the coordinator of a group or a transactional id."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class FindCoordinatorRequest(Struct, versions="0-6", flexible="3+"):
    """One key up to version 3, several from version 4 on."""

    key: str = field(STRING, "0-3")
    key_type: int = field(INT8, "1+")  # 0: group, 1: transactional id, 2: share group
    coordinator_keys: list[str] = field([STRING], "4+")


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = field(STRING, "4+")
    node_id: int = field(INT32, "4+")
    host: str = field(STRING, "4+")
    port: int = field(INT32, "4+")
    error_code: int = field(INT16, "4+")
    error_message: str | None = field(STRING, "4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Struct, versions="0-6", flexible="3+"):
    """One coordinator up to version 3, a list from version 4 on."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0-3")
    error_message: str | None = field(STRING, "1-3", nullable="1-3", ignorable=True)
    node_id: int = field(INT32, "0-3")
    host: str = field(STRING, "0-3")
    port: int = field(INT32, "0-3")
    coordinators: list[Coordinator] = field([Coordinator], "4+")
