"""ListPartitionReassignments: the ongoing reassignments of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import external_text
from tidemill.broker.metadata_cache import PartitionImage
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import list_partition_reassignments as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """Lists only ongoing reassignments among the requested partitions; each partition once."""
    slices = context.slices
    moves = broker.controller.reassignments
    response = messages.ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
    found: dict[str, dict[int, messages.OngoingPartitionReassignment]] = {}
    try:
        every = moves.in_progress()
        if request.topics is None:
            async for key, partition in slices.over(every):
                found.setdefault(key.topic, {})[key.partition] = _ongoing(partition)
        async for topic in slices.over(request.topics or ()):
            name = topic.name
            async for number in slices.over(topic.partition_indexes):
                for _, partition in moves.in_progress([TopicPartition(name, number)]):
                    found.setdefault(name, {})[number] = _ongoing(partition)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, external_text(error)
        return response
    async for name, partitions in slices.over(found.items()):
        response.topics.append(
            messages.OngoingTopicReassignment(name=name, partitions=list(partitions.values()))
        )
    return response


API: Final = declare_api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    0,
    0,
    lambda: messages.ListPartitionReassignmentsRequest,
    handle,
    to_controller=True,
)


def _ongoing(partition: PartitionImage) -> messages.OngoingPartitionReassignment:
    return messages.OngoingPartitionReassignment(
        partition_index=partition.partition,
        replicas=partition.replicas,
        adding_replicas=partition.adding,
        removing_replicas=partition.removing,
    )
