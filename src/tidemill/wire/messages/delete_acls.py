"""DeleteAcls (key 31)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class DeleteAclsFilter(Struct):
    """Delete Acls Filter."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DeleteAclsRequest(Struct, versions="0-3", flexible="2+"):
    """Delete Acls Request."""

    filters: list[DeleteAclsFilter] = field([DeleteAclsFilter])


class DeleteAclsMatchingAcl(Struct):
    """Delete Acls Matching Acl."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DeleteAclsFilterResult(Struct):
    """Delete Acls Filter Result."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field([DeleteAclsMatchingAcl])


class DeleteAclsResponse(Struct, versions="0-3", flexible="2+"):
    """Delete Acls Response."""

    throttle_time_ms: int = field(INT32)
    filter_results: list[DeleteAclsFilterResult] = field([DeleteAclsFilterResult])
