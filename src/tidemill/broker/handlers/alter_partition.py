"""AlterPartition: a leader's request for another ISR to the controller, which is this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.request_context import RequestContext
from tidemill.controller.alter_partition import AlterPartitionItem, IsrMember
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_partition as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.AlterPartitionRequest
) -> messages.AlterPartitionResponse:
    """Returns one result per partition; STALE_BROKER_EPOCH for a broker that has since re-registered."""
    if not broker.is_from_broker(context):
        return messages.AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=[])
    registered = broker.controller.image.brokers.get(request.broker_id)
    if registered is not None and -1 < request.broker_epoch < registered.epoch:
        return messages.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, topics=[])
    slices = context.slices
    wanted = []
    for topic in request.topics:
        async for partition in slices.over(topic.partitions):
            wanted.append(_item(request, topic.topic_id, partition))
    try:
        results = iter(await slices.wait_for(broker.controller.alter_partitions(wanted)))
    except (KafkaError, StoreError) as problem:
        return messages.AlterPartitionResponse(error_code=wire_error(problem).code, topics=[])
    response = messages.AlterPartitionResponse(error_code=0, topics=[])
    for topic in request.topics:
        partitions: list[messages.AlterPartitionResponsePartitionData] = []
        async for partition in slices.over(topic.partitions):
            partitions.append(_result(partition.partition_index, next(results)))
        response.topics.append(
            messages.AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=partitions)
        )
    return response


API: Final = declare_api(ApiKey.ALTER_PARTITION, 3, 3, lambda: messages.AlterPartitionRequest, handle)


def _item(
    request: messages.AlterPartitionRequest,
    topic_id: bytes,
    partition: messages.AlterPartitionRequestPartitionData,
) -> AlterPartitionItem:
    return AlterPartitionItem(
        topic_id=topic_id,
        partition=partition.partition_index,
        leader=request.broker_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[IsrMember(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs],
        broker_epoch=request.broker_epoch,
    )


def _result(index: int, result: PartitionImage | KafkaError) -> messages.AlterPartitionResponsePartitionData:
    if isinstance(result, KafkaError):
        return messages.AlterPartitionResponsePartitionData(partition_index=index, error_code=result.code)
    return messages.AlterPartitionResponsePartitionData(
        partition_index=index,
        error_code=0,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=result.isr,
        partition_epoch=result.partition_epoch,
    )
