"""AlterPartition: a leader asks the controller, which is this broker, for another in-sync set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.controller.failover import WantedIsr
from tidemill.controller.isr import IsrChange
from tidemill.coordination.image import PartitionImage
from tidemill.coordination.port import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    """One result a partition; STALE_BROKER_EPOCH for a broker that has registered anew since."""
    if not broker.commands.are_open_to(context):
        return AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=[])
    registered = broker.controller.image.brokers.get(request.broker_id)
    if registered is not None and -1 < request.broker_epoch < registered.epoch:
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, topics=[])
    turns = context.turns
    wanted = []
    for topic in request.topics:
        async for one in turns.over(topic.partitions):
            wanted.append(_wanted(request, topic.topic_id, one))
    try:
        results = iter(await turns.rest(broker.failover.alter_isr(wanted)))
    except KafkaError as problem:
        return AlterPartitionResponse(error_code=problem.code, topics=[])
    except StoreError:
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER, topics=[])
    response = AlterPartitionResponse(error_code=0, topics=[])
    for topic in request.topics:
        partitions: list[AlterPartitionResponsePartitionData] = []
        async for one in turns.over(topic.partitions):
            partitions.append(_result(one.partition_index, next(results)))
        response.topics.append(
            AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=partitions)
        )
    return response


def _wanted(
    request: AlterPartitionRequest, topic_id: bytes, one: AlterPartitionRequestPartitionData
) -> WantedIsr:
    members = [(member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs]
    change = IsrChange(
        request.broker_id, one.leader_epoch, one.partition_epoch, members, request.broker_epoch
    )
    return WantedIsr(topic_id, one.partition_index, change)


def _result(index: int, result: PartitionImage | KafkaError) -> AlterPartitionResponsePartitionData:
    if isinstance(result, KafkaError):
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=result.code)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        error_code=0,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=result.isr,
        partition_epoch=result.partition_epoch,
    )
