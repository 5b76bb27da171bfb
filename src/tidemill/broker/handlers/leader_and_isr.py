"""LeaderAndIsr: a controller's command to this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.commands import Commands
from tidemill.broker.context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: LeaderAndIsrRequest
) -> LeaderAndIsrResponse:
    """Has it carried out, if it came as brokers' requests do."""
    commands = broker.commands
    if not isinstance(commands, Commands) or not commands.are_open_to(context):
        return LeaderAndIsrResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[], topics=[]
        )
    return await commands.leader_and_isr(request, context.peer.number)
