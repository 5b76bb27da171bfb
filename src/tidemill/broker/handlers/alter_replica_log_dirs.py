"""AlterReplicaLogDirs: moves partitions between the data directories of this broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

log = logging.getLogger("tidemill.broker")


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begins the moves, and answers at once: DescribeLogDirs shows how far they are."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    started: list[str] = []
    async for wanted in context.turns.over(request.dirs):
        async for topic in context.turns.over(wanted.topics):
            partitions = results.setdefault(topic.name, [])
            async for index in context.turns.over(topic.partitions):
                key = TopicPartition(context.internal_name(topic.name), index)
                code = begin(broker, key, wanted.path)
                if code == ErrorCode.NONE:
                    started.append(f"{key} to {wanted.path}")
                partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    await note_each(context, "moves between directories started", started, str)
    response = AlterReplicaLogDirsResponse()
    async for name, partitions in context.turns.over(results.items()):
        response.results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    await context.turns.let_go(results)
    return response


def begin(broker: Broker, key: TopicPartition, path: str) -> int:
    """Begins one move; the code that the client is told."""
    try:
        found = broker.partitions.find(key.topic, key.partition)
        if found is not None and found.failed:
            raise KafkaError(found.failed, ErrorCode.KAFKA_STORAGE_ERROR)
        broker.partitions.mover.begin(key, path)
    except KafkaError as problem:
        log.info("a move was refused: %s", problem)
        return problem.code
    return ErrorCode.NONE
