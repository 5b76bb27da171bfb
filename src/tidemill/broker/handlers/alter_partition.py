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
    wanted = [
        WantedIsr(
            topic.topic_id,
            one.partition_index,
            IsrChange(
                request.broker_id,
                one.leader_epoch,
                one.partition_epoch,
                [(member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs],
                request.broker_epoch,
            ),
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    try:
        results = iter(await broker.failover.alter_isr(wanted))
    except KafkaError as problem:
        return AlterPartitionResponse(error_code=problem.code, topics=[])
    except StoreError:
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER, topics=[])
    return AlterPartitionResponse(
        error_code=0,
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[_result(one.partition_index, next(results)) for one in topic.partitions],
            )
            for topic in request.topics
        ],
    )


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
