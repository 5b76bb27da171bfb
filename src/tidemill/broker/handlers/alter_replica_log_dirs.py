"""AlterReplicaLogDirs: moves partitions between the data directories of this broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_replica_log_dirs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

logger = logging.getLogger("tidemill.broker")


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.AlterReplicaLogDirsRequest
) -> messages.AlterReplicaLogDirsResponse:
    """Starts the moves, and responds at once: DescribeLogDirs shows their progress."""
    results: dict[str, list[messages.AlterReplicaLogDirPartitionResult]] = {}
    started: list[str] = []
    async for wanted in context.slices.over(request.dirs):
        async for topic in context.slices.over(wanted.topics):
            partitions = results.setdefault(topic.name, [])
            async for index in context.slices.over(topic.partitions):
                key = TopicPartition(topic.name, index)
                code = begin(broker, key, wanted.path)
                if code == ErrorCode.NONE:
                    started.append(f"{key} to {wanted.path}")
                partitions.append(
                    messages.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    await log_changes(context, "moves between directories started", started, str)
    response = messages.AlterReplicaLogDirsResponse()
    async for name, partitions in context.slices.over(results.items()):
        response.results.append(
            messages.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
        )
    await context.slices.clear(results)
    return response


API: Final = declare_api(
    ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, lambda: messages.AlterReplicaLogDirsRequest, handle
)


def begin(broker: Broker, key: TopicPartition, path: str) -> int:
    """Starts one move; returns the error code for the client."""
    try:
        found = broker.replica_manager.find(key.topic, key.partition)
        if found is not None and found.is_offline:
            raise KafkaError(found.offline_reason, ErrorCode.KAFKA_STORAGE_ERROR)
        broker.replica_manager.replica_alter_log_dirs.begin(key, path)
    except KafkaError as problem:
        logger.info("a move was refused: %s", problem)
        return problem.code
    return ErrorCode.NONE
