"""DeleteGroups (key 42)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class DeleteGroupsRequest(Struct, versions="0-2", flexible="2+"):
    """Delete Groups Request."""

    groups_names: list[str] = field([STRING])


class DeletableGroupResult(Struct):
    """Deletable Group Result."""

    group_id: str = field(STRING)
    error_code: int = field(INT16)


class DeleteGroupsResponse(Struct, versions="0-2", flexible="2+"):
    """Delete Groups Response."""

    throttle_time_ms: int = field(INT32)
    results: list[DeletableGroupResult] = field([DeletableGroupResult])
