"""DescribeTopicPartitions: topics and partitions in the order of names, in pages.

A page ends when it holds as many partitions as either side allows; its cursor says where the next begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import (
    NO_LEADER,
    TOPIC_OPERATIONS,
    leader_error,
    missing_topic_error,
    offline_replicas,
    served_partitions,
)
from tidemill.broker.metadata import ClusterImage, PartitionImage
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID
from tidemill.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page, from the cursor on (its topic included)."""
    cursor = request.cursor
    image = broker.metadata.image
    turns = context.turns
    asked = [topic.name for topic in request.topics]
    names = await turns.unique(asked or map(context.external_name, image.topics))
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names)
    ):
        refused = DescribeTopicPartitionsResponse()
        async for name in turns.over(await turns.in_order(names)):
            refused.topics.append(_refused(name, ErrorCode.INVALID_REQUEST))
        return refused
    first = cursor.topic_name if cursor is not None else ""
    limit = broker.config.int("max.request.partition.size.limit")
    left = max(1, min(limit, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    async for name in turns.over(await turns.in_order(names)):
        if name < first:
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        topic = image.topics.get(context.internal_name(name))
        if topic is None:
            if request.topics:
                response.topics.append(_refused(name, missing_topic_error(context.internal_name(name))))
            continue
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=start)
            break
        page = served_partitions(broker, topic)[start : start + left]
        left -= len(page)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.NONE,
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.internal,
                partitions=[_partition(image, context, partition) for partition in page],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if start + len(page) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=start + len(page))
            break
    await turns.let_go(names)
    return response


def _refused(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=ZERO_ID)


def _partition(
    image: ClusterImage, context: RequestContext, partition: PartitionImage
) -> DescribeTopicPartitionsResponsePartition:
    error = leader_error(image, partition, context.listener.name)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=partition.partition,
        leader_id=partition.leader if error == ErrorCode.NONE else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=offline_replicas(image, partition),
    )
