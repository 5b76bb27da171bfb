"""JoinGroup: a member joins its group's next generation; the response waits for its completion."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.groups.coordinator_effects import JoinRequest, MemberProtocol
from tidemill.model.errors import ErrorCode
from tidemill.model.log_lines import cut_short
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import join_group as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

logger = logging.getLogger("tidemill.groups")

NAME_CHARACTERS_MAX: Final = 100

MEMBER_ID_REQUIRED_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SKIP_ASSIGNMENT_FROM: Final = 9
PROTOCOLS_MAX: Final = 1000
"""The limit per member: one protocol for each assignor that its client knows."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.JoinGroupRequest
) -> messages.JoinGroupResponse:
    """Waits for the generation. v0 has no rebalance timeout: the session timeout takes its place."""
    timeout_ms = request.rebalance_timeout_ms
    if len(request.protocols) > PROTOCOLS_MAX:
        logger.warning(
            "a member of group %r joins with %d protocols: at most %d are accepted. Correct its assignors",
            cut_short(request.group_id, NAME_CHARACTERS_MAX),
            len(request.protocols),
            PROTOCOLS_MAX,
        )
        return messages.JoinGroupResponse(error_code=ErrorCode.INVALID_REQUEST, member_id=request.member_id)
    work = broker.group_coordinator.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            new_member_id="",
            protocol_type=request.protocol_type,
            protocols=tuple(
                MemberProtocol(name=protocol.name, metadata=protocol.metadata)
                for protocol in request.protocols
            ),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
            instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_address}",
            reason=request.reason or "",
            requires_known_member_id=context.api_version >= MEMBER_ID_REQUIRED_FROM,
            supports_skipping_assignment=context.api_version >= SKIP_ASSIGNMENT_FROM,
        )
    )
    result = await context.slices.wait_for(work)
    name = result.protocol_name
    if name is None and context.api_version < NULL_PROTOCOL_FROM:
        name = ""
    return messages.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            messages.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


API: Final = declare_api(ApiKey.JOIN_GROUP, 0, 9, lambda: messages.JoinGroupRequest, handle)
