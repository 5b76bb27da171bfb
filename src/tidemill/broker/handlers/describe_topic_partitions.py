"""DescribeTopicPartitions: topics and partitions in the order of names, in pages.

A page ends when it has as many partitions as either side allows; its cursor is the start of the next page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import (
    TOPIC_OPERATIONS,
    leader_error,
    missing_topic_error,
    offline_replicas,
    served_partitions,
)
from tidemill.broker.metadata_cache import ClusterImage, PartitionImage
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.model.types import NO_BROKER, ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_topic_partitions as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse:
    """Returns one page, starting at the cursor (including its topic)."""
    cursor = request.cursor
    image = broker.metadata_cache.image
    slices = context.slices
    requested = [topic.name for topic in request.topics]
    names = await slices.unique(requested or image.topics)
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names)
    ):
        refused = messages.DescribeTopicPartitionsResponse()
        async for name in slices.over(await slices.sorted(names)):
            refused.topics.append(_refused(name, ErrorCode.INVALID_REQUEST))
        return refused
    first = cursor.topic_name if cursor is not None else ""
    limit = broker.config.int("max.request.partition.size.limit")
    left = max(1, min(limit, request.response_partition_limit))
    response = messages.DescribeTopicPartitionsResponse()
    async for name in slices.over(await slices.sorted(names)):
        if name < first:
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        topic = image.topics.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(_refused(name, missing_topic_error(name)))
            continue
        if left == 0:
            response.next_cursor = messages.Cursor(topic_name=name, partition_index=start)
            break
        page = served_partitions(broker, topic)[start : start + left]
        left -= len(page)
        response.topics.append(
            messages.DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.NONE,
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.internal,
                partitions=[_partition(image, context, partition) for partition in page],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if start + len(page) < len(topic.partitions):
            response.next_cursor = messages.Cursor(topic_name=name, partition_index=start + len(page))
            break
    await slices.clear(names)
    return response


API: Final = declare_api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, lambda: messages.DescribeTopicPartitionsRequest, handle
)


def _refused(name: str, code: ErrorCode) -> messages.DescribeTopicPartitionsResponseTopic:
    return messages.DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=ZERO_ID)


def _partition(
    image: ClusterImage, context: RequestContext, partition: PartitionImage
) -> messages.DescribeTopicPartitionsResponsePartition:
    error = leader_error(image, partition, context.listener.name)
    return messages.DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=partition.partition,
        leader_id=partition.leader if error == ErrorCode.NONE else NO_BROKER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline_replicas(image, partition),
    )
