"""AlterPartitionReassignments: starts or cancels reassignments of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_change
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text, run_within_timeout
from tidemill.broker.request_context import RequestContext
from tidemill.controller.reassignment import Reassignments
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_partition_reassignments as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    """Returns one result per partition, once its reassignment has started; the last duplicate wins."""
    slices = context.slices
    requested: dict[TopicPartition, Sequence[int] | None] = {}
    async for topic in slices.over(request.topics):
        name = topic.name
        async for partition in slices.over(topic.partitions):
            requested[TopicPartition(name, partition.partition_index)] = partition.replicas
    allowed = request.allow_replication_factor_change
    response = messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allowed, error_code=0, error_message=None, responses=[]
    )
    try:
        work = _alter(broker, context, requested, allowed)
        errors = await slices.wait_for(run_within_timeout(request.timeout_ms, work))
    except (KafkaError, StoreError) as problem:
        error = wire_error(problem)
        response.error_code, response.error_message = error.code, external_text(error)
        return response
    async for topic in slices.over(request.topics):
        name = topic.name
        results = [_result(name, partition, errors) async for partition in slices.over(topic.partitions)]
        response.responses.append(messages.ReassignableTopicResponse(name=topic.name, partitions=results))
    await slices.clear(errors)
    await slices.clear(requested)
    return response


API: Final = declare_api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    0,
    1,
    lambda: messages.AlterPartitionReassignmentsRequest,
    handle,
    to_controller=True,
)


async def _alter(
    broker: Broker, context: RequestContext, requested: Reassignments, allowed: bool
) -> dict[TopicPartition, KafkaError]:
    def accepted(some: Reassignments) -> None:
        started = [f"{key} to {replicas}" for key, replicas in some.items() if replicas is not None]
        log_change(context, "reassignments started", started)
        cancelled = [str(key) for key, replicas in some.items() if replicas is None]
        log_change(context, "reassignments cancelled", cancelled)

    return await broker.controller.reassignments.alter(
        requested, factor_may_change=allowed, accepted=accepted
    )


def _result(
    topic: str, partition: messages.ReassignablePartition, errors: dict[TopicPartition, KafkaError]
) -> messages.ReassignablePartitionResponse:
    number = partition.partition_index
    error = errors.get(TopicPartition(topic, number))
    return messages.ReassignablePartitionResponse(
        partition_index=number,
        error_code=error.code if error is not None else 0,
        error_message=external_text(error) if error is not None else None,
    )
