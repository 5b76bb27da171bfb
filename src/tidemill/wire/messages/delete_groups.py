"""DeleteGroups (key 42): delete groups that have no members."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class DeleteGroupsRequest(Struct, versions="0-2", flexible="2+"):
    """The groups of the request."""

    groups_names: list[str] = field([STRING])


class DeletableGroupResult(Struct):
    """The result of one deletion."""

    group_id: str = field(STRING)
    error_code: int = field(INT16)


class DeleteGroupsResponse(Struct, versions="0-2", flexible="2+"):
    """The result of each group."""

    throttle_time_ms: int = field(INT32)
    results: list[DeletableGroupResult] = field([DeletableGroupResult])
