"""DescribeLogDirs: the replicas in each data directory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_log_dirs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext
    from tidemill.log.log_directories import DataDirectory

logger = logging.getLogger("tidemill.broker")


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeLogDirsRequest
) -> messages.DescribeLogDirsResponse:
    """Returns the sizes of the requested partitions; of all partitions when none is requested."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = set()
        async for topic in context.slices.over(request.topics):
            name = topic.topic
            async for index in context.slices.over(topic.partitions):
                wanted.add((name, index))
    by_directory: dict[str, dict[str, list[messages.DescribeLogDirsPartition]]] = {}
    async for partition in context.slices.over(list(broker.replica_manager.all())):
        if wanted is not None and (partition.topic, partition.index) not in wanted:
            continue
        if partition.is_offline:
            continue  # The location of its files is unknown, or the directory itself has an error.
        directory = broker.log_manager.dirs.directory_of(partition.log).path
        topics = by_directory.setdefault(directory, {})
        topics.setdefault(partition.topic, []).append(
            messages.DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.end_offset),
            )
        )
    for data_directory in broker.log_manager.dirs.online:
        for key, copy in data_directory.future_logs.items():
            if wanted is not None and (key.topic, key.partition) not in wanted:
                continue
            current = broker.log_manager.get(key)
            end_offset = copy.end_offset if current is None else current.end_offset
            topics = by_directory.setdefault(data_directory.path, {})
            topics.setdefault(key.topic, []).append(
                messages.DescribeLogDirsPartition(
                    partition_index=key.partition,
                    partition_size=copy.size_bytes,
                    offset_lag=max(0, end_offset - copy.end_offset),
                    is_future_key=True,
                )
            )
    response = messages.DescribeLogDirsResponse()
    for data_directory in broker.log_manager.dirs.all:
        topics = by_directory.get(data_directory.path, {})
        response.results.append(await describe(broker, data_directory, context, topics))
    await context.slices.clear(wanted or set())
    return response


API: Final = declare_api(ApiKey.DESCRIBE_LOG_DIRS, 0, 5, lambda: messages.DescribeLogDirsRequest, handle)


async def describe(
    broker: Broker,
    directory: DataDirectory,
    context: RequestContext,
    topics: dict[str, list[messages.DescribeLogDirsPartition]],
) -> messages.DescribeLogDirsResult:
    """Returns the result of one data directory."""
    failed = messages.DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    if directory.is_offline:
        return failed
    try:
        total_bytes = broker.files.total_bytes(directory.path)
        usable_bytes = broker.files.free_bytes(directory.path)
    except OSError as problem:
        logger.warning("the space of %s cannot be determined: %s", directory.path, problem)
        return failed
    result = messages.DescribeLogDirsResult(
        log_dir=directory.path, total_bytes=total_bytes, usable_bytes=usable_bytes, topics=[]
    )
    async for name, partitions in context.slices.over(topics.items()):
        result.topics.append(messages.DescribeLogDirsTopic(name=name, partitions=partitions))
    await context.slices.clear(topics)
    return result
