"""DeleteGroups (key 42): forget groups that have no members."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class DeleteGroupsRequest(Struct, versions="0-2", flexible="2+"):
    """Names the groups."""

    groups_names: list[str] = field([STRING])


class DeletableGroupResult(Struct):
    """Whether one group was forgotten."""

    group_id: str = field(STRING)
    error_code: int = field(INT16)


class DeleteGroupsResponse(Struct, versions="0-2", flexible="2+"):
    """What became of each group."""

    throttle_time_ms: int = field(INT32)
    results: list[DeletableGroupResult] = field([DeletableGroupResult])
