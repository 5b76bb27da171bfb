"""CreateAcls (key 30): add access rules."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class AclCreation(Struct):
    """A rule to add."""

    # 2: topic, 3: group, 4: cluster, 5: transactional id, 6: delegation token, 7: user
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    resource_pattern_type: int = field(INT8, "1+", default=3)  # 3: literal, 4: prefixed
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)  # the code of Kafka's AclOperation; 1 is any, 2 all
    permission_type: int = field(INT8)  # 1: any (in filters), 2: deny, 3: allow


class CreateAclsRequest(Struct, versions="0-3", flexible="2+"):
    """The rules to add."""

    creations: list[AclCreation] = field([AclCreation])


class AclCreationResult(Struct):
    """Whether one rule was added."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class CreateAclsResponse(Struct, versions="0-3", flexible="2+"):
    """The result of each rule, in the order of the request."""

    throttle_time_ms: int = field(INT32)
    results: list[AclCreationResult] = field([AclCreationResult])
