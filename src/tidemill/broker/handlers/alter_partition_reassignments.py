"""AlterPartitionReassignments: partitions move to other brokers, or stop moving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, store_error, within
from tidemill.controller.reassignment import Wishes
from tidemill.coordination.port import StoreError
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """One result a partition, once its move has begun; where one comes twice, the last wish counts."""
    turns = context.turns
    wishes: dict[TopicPartition, Sequence[int] | None] = {}
    async for topic in turns.over(request.topics):
        name = context.internal_name(topic.name)
        async for one in turns.over(topic.partitions):
            wishes[TopicPartition(name, one.partition_index)] = one.replicas
    allowed = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allowed, error_code=0, error_message=None, responses=[]
    )
    try:
        work = _alter(broker, context, wishes, allowed)
        errors = await turns.rest(within(request.timeout_ms, work))
    except (KafkaError, StoreError) as problem:
        error = problem if isinstance(problem, KafkaError) else store_error(problem)
        response.error_code, response.error_message = error.code, external_text(error)
        return response
    async for topic in turns.over(request.topics):
        name = context.internal_name(topic.name)
        results = [_result(name, one, errors) async for one in turns.over(topic.partitions)]
        response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    await turns.let_go(errors)
    await turns.let_go(wishes)
    return response


async def _alter(
    broker: Broker, context: RequestContext, wishes: Wishes, allowed: bool
) -> dict[TopicPartition, KafkaError]:
    def accepted(some: Wishes) -> None:
        started = [f"{key} to {replicas}" for key, replicas in some.items() if replicas is not None]
        note(context, "reassignments started", started)
        cancelled = [str(key) for key, replicas in some.items() if replicas is None]
        note(context, "reassignments cancelled", cancelled)

    return await broker.controller.moves.alter(wishes, factor_may_change=allowed, accepted=accepted)


def _result(
    topic: str, wished: ReassignablePartition, errors: dict[TopicPartition, KafkaError]
) -> ReassignablePartitionResponse:
    number = wished.partition_index
    error = errors.get(TopicPartition(topic, number))
    return ReassignablePartitionResponse(
        partition_index=number,
        error_code=error.code if error is not None else 0,
        error_message=external_text(error) if error is not None else None,
    )
