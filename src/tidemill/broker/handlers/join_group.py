"""JoinGroup: a member joins its group's next generation; answered when that is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.groups.effects import JoinRequest, Protocol
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

MEMBER_ID_REQUIRED_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SKIP_ASSIGNMENT_FROM: Final = 9


async def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Waits for the generation. v0 has no rebalance timeout: the session's is it."""
    timeout_ms = request.rebalance_timeout_ms
    result = await broker.groups.join(
        JoinRequest(
            group_id=context.internal_name(request.group_id),
            member_id=request.member_id,
            new_member_id="",
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_address}",
            reason=request.reason or "",
            must_know_its_id=context.api_version >= MEMBER_ID_REQUIRED_FROM,
            may_skip_assignment=context.api_version >= SKIP_ASSIGNMENT_FROM,
        )
    )
    name = result.protocol_name
    if name is None and context.api_version < NULL_PROTOCOL_FROM:
        name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
