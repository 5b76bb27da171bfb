"""ListPartitionReassignments: the moves of partitions that are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text
from tidemill.broker.metadata import PartitionImage
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Only what moves is listed, whatever was asked for; a partition once."""
    turns = context.turns
    moves = broker.controller.moves
    response = ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
    found: dict[str, dict[int, OngoingPartitionReassignment]] = {}
    try:
        every = moves.under_way()
        if request.topics is None:
            async for key, partition in turns.over(every):
                found.setdefault(key.topic, {})[key.partition] = _ongoing(partition)
        async for topic in turns.over(request.topics or ()):
            name = context.internal_name(topic.name)
            async for number in turns.over(topic.partition_indexes):
                for _, partition in moves.under_way([TopicPartition(name, number)]):
                    found.setdefault(name, {})[number] = _ongoing(partition)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, external_text(error)
        return response
    async for name, partitions in turns.over(found.items()):
        response.topics.append(
            OngoingTopicReassignment(name=context.external_name(name), partitions=list(partitions.values()))
        )
    return response


def _ongoing(partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition.partition,
        replicas=partition.replicas,
        adding_replicas=partition.adding,
        removing_replicas=partition.removing,
    )
