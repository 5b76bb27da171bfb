"""ListGroups (key 16): the groups that a broker coordinates."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class ListGroupsRequest(Struct, versions="0-5", flexible="3+"):
    """Filters; an empty filter matches everything."""

    states_filter: list[str] = field([STRING], "4+")  # group states, as Kafka spells them
    types_filter: list[str] = field([STRING], "5+")  # "classic", "consumer"


class ListedGroup(Struct):
    """A group."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", ignorable=True)
    group_type: str = field(STRING, "5+", ignorable=True)


class ListGroupsResponse(Struct, versions="0-5", flexible="3+"):
    """The groups that this broker coordinates."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    groups: list[ListedGroup] = field([ListedGroup])
