"""DescribeAcls (key 29): list access rules."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class DescribeAclsRequest(Struct, versions="0-3", flexible="2+"):
    """A filter over access rules; null parts match everything."""

    # 1: any, 2: topic, 3: group, 4: cluster, 5: transactional id, 6: delegation token, 7: user
    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    # 1: any, 2: what would apply, 3: literal, 4: prefixed
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)  # the code of Kafka's AclOperation; 1 is any, 2 all
    permission_type: int = field(INT8)  # 1: any (in filters), 2: deny, 3: allow


class AclDescription(Struct):
    """An access rule: principal, host, operation and permission."""

    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)  # the code of Kafka's AclOperation; 1 is any, 2 all
    permission_type: int = field(INT8)  # 1: any (in filters), 2: deny, 3: allow


class DescribeAclsResource(Struct):
    """The rules of one resource pattern."""

    # 2: topic, 3: group, 4: cluster, 5: transactional id, 6: delegation token, 7: user
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)  # 3: literal, 4: prefixed
    acls: list[AclDescription] = field([AclDescription])


class DescribeAclsResponse(Struct, versions="0-3", flexible="2+"):
    """The rules that the filter matched."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resources: list[DescribeAclsResource] = field([DescribeAclsResource])
