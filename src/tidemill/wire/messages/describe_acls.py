"""DescribeAcls (key 29)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class DescribeAclsRequest(Struct, versions="0-3", flexible="2+"):
    """Describe Acls Request."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class AclDescription(Struct):
    """Acl Description."""

    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class DescribeAclsResource(Struct):
    """Describe Acls Resource."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    acls: list[AclDescription] = field([AclDescription])


class DescribeAclsResponse(Struct, versions="0-3", flexible="2+"):
    """Describe Acls Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resources: list[DescribeAclsResource] = field([DescribeAclsResource])
