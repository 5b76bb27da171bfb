"""DescribeLogDirs: what lies in each data directory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.log.directories import DataDirectory

log = logging.getLogger("tidemill.broker")


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Tells the sizes of the partitions that are asked for; of all when none is named."""
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = set()
        async for topic in context.turns.over(request.topics):
            name = context.internal_name(topic.topic)
            async for index in context.turns.over(topic.partitions):
                wanted.add((name, index))
    by_directory: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {}
    async for partition in context.turns.over(list(broker.partitions.all())):
        if wanted is not None and (partition.topic, partition.index) not in wanted:
            continue
        if partition.failed:
            continue  # where its files are nobody knows, or the directory answers with an error
        directory = broker.logs.directory_of(partition.log).path
        topics = by_directory.setdefault(directory, {})
        topics.setdefault(partition.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.end_offset),
            )
        )
    for data_directory in broker.logs.working:
        for key, copy in data_directory.arriving.items():
            if wanted is not None and (key.topic, key.partition) not in wanted:
                continue
            current = broker.logs.get(key)
            end_offset = copy.end_offset if current is None else current.end_offset
            topics = by_directory.setdefault(data_directory.path, {})
            topics.setdefault(key.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=key.partition,
                    partition_size=copy.size_bytes,
                    offset_lag=max(0, end_offset - copy.end_offset),
                    is_future_key=True,
                )
            )
    response = DescribeLogDirsResponse()
    for data_directory in broker.logs.directories:
        topics = by_directory.get(data_directory.path, {})
        response.results.append(await describe(broker, data_directory, context, topics))
    await context.turns.let_go(wanted or set())
    return response


async def describe(
    broker: Broker,
    directory: DataDirectory,
    context: RequestContext,
    topics: dict[str, list[DescribeLogDirsPartition]],
) -> DescribeLogDirsResult:
    """One data directory's answer."""
    failed = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    if directory.failure:
        return failed
    try:
        total_bytes = broker.files.total_bytes(directory.path)
        usable_bytes = broker.files.free_bytes(directory.path)
    except OSError as problem:
        log.warning("the space of %s cannot be told: %s", directory.path, problem)
        return failed
    result = DescribeLogDirsResult(
        log_dir=directory.path, total_bytes=total_bytes, usable_bytes=usable_bytes, topics=[]
    )
    async for name, partitions in context.turns.over(topics.items()):
        result.topics.append(DescribeLogDirsTopic(name=context.external_name(name), partitions=partitions))
    await context.turns.let_go(topics)
    return result
