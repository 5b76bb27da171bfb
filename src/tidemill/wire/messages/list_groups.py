"""ListGroups (key 16)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class ListGroupsRequest(Struct, versions="0-5", flexible="3+"):
    """List Groups Request."""

    states_filter: list[str] = field([STRING], "4+")
    types_filter: list[str] = field([STRING], "5+")


class ListedGroup(Struct):
    """Listed Group."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", ignorable=True)
    group_type: str = field(STRING, "5+", ignorable=True)


class ListGroupsResponse(Struct, versions="0-5", flexible="3+"):
    """List Groups Response."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    groups: list[ListedGroup] = field([ListedGroup])
