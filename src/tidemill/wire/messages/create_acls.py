"""CreateAcls (key 30)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class AclCreation(Struct):
    """Acl Creation."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    resource_pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class CreateAclsRequest(Struct, versions="0-3", flexible="2+"):
    """Create Acls Request."""

    creations: list[AclCreation] = field([AclCreation])


class AclCreationResult(Struct):
    """Acl Creation Result."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class CreateAclsResponse(Struct, versions="0-3", flexible="2+"):
    """Create Acls Response."""

    throttle_time_ms: int = field(INT32)
    results: list[AclCreationResult] = field([AclCreationResult])
