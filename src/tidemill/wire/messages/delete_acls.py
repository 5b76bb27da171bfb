"""DeleteAcls (key 31): remove access rules."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class DeleteAclsFilter(Struct):
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


class DeleteAclsRequest(Struct, versions="0-3", flexible="2+"):
    """The filters of the rules to remove."""

    filters: list[DeleteAclsFilter] = field([DeleteAclsFilter])


class DeleteAclsMatchingAcl(Struct):
    """A rule that a filter matched, and whether it was removed."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    # 2: topic, 3: group, 4: cluster, 5: transactional id, 6: delegation token, 7: user
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)  # 3: literal, 4: prefixed
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)  # the code of Kafka's AclOperation; 1 is any, 2 all
    permission_type: int = field(INT8)  # 1: any (in filters), 2: deny, 3: allow


class DeleteAclsFilterResult(Struct):
    """What one filter matched."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field([DeleteAclsMatchingAcl])


class DeleteAclsResponse(Struct, versions="0-3", flexible="2+"):
    """The result of each filter, in the order of the request."""

    throttle_time_ms: int = field(INT32)
    filter_results: list[DeleteAclsFilterResult] = field([DeleteAclsFilterResult])
