"""ListPartitionReassignments: the moves of partitions that are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import by_topic, external_text
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


def handle(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Only what moves is listed, whatever was asked for."""
    wanted: list[TopicPartition] | None = None
    if request.topics is not None:
        wanted = [
            TopicPartition(context.internal_name(topic.name), number)
            for topic in request.topics
            for number in topic.partition_indexes
        ]
    try:
        found = broker.controller.moves.under_way(wanted)
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=external_text(error), topics=[]
        )
    return ListPartitionReassignmentsResponse(
        error_code=0,
        error_message=None,
        topics=[
            OngoingTopicReassignment(
                name=context.external_name(name),
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=partition.replicas,
                        adding_replicas=partition.adding,
                        removing_replicas=partition.removing,
                    )
                    for number, partition in partitions.items()
                ],
            )
            for name, partitions in by_topic(found).items()
        ],
    )
