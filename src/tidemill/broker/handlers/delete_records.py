"""DeleteRecords: moves the start of a log forward.

The answer waits until every live replica has deleted the records, as in Apache Kafka
(``DelayedDeleteRecords``): no failover to one of them brings the records back. It holds the least start of
the live replicas.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.admin_log import note_each
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.slices import slices_of
from tidemill.replication.waiting import DeletionCallback
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.log.directories import DataDirectory
    from tidemill.replication.partition import Partition

HIGH_WATERMARK = -1
NO_WATERMARK = -1


class Deletion(NamedTuple):
    """One partition's: ``done`` has its error, or None, once all live replicas have deleted the records."""

    partition: Partition
    offset: int
    """Everything below goes."""
    result: DeleteRecordsPartitionResult
    waiter: DeletionCallback
    done: asyncio.Future[KafkaError | None]


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Deletes up to the offset that each partition names; -1 stands for its high watermark."""
    topics = []
    deletions = []
    async for topic in context.turns.over(request.topics):
        name = context.internal_name(topic.name)
        results = []
        async for wanted in context.turns.over(topic.partitions):
            result = DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=NO_WATERMARK
            )
            try:
                partition = broker.partition(name, wanted.partition_index)
                deletions.append(begin(partition, wanted.offset, result))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    try:
        if deletions:
            await note_each(context, "records deleted", deletions, _shown)
            await _wait(broker, context, deletions, request.timeout_ms)
        while deletions:
            await context.turns.step()
            one = deletions.pop()
            one.partition.stop_waiting_deleted(one.waiter)
    finally:
        for one in deletions:
            one.partition.stop_waiting_deleted(one.waiter)
    return DeleteRecordsResponse(topics=topics)


def _shown(one: Deletion) -> str:
    return f"{one.partition.topic}-{one.partition.index} below {one.offset}"


def begin(partition: Partition, offset: int, result: DeleteRecordsPartitionResult) -> Deletion:
    """Moves the log's start to ``offset`` here, and waits for the followers."""
    target = delete(partition, offset)
    done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    waiter = DeletionCallback(lambda error: None if done.done() else done.set_result(error))
    partition.wait_deleted(target, waiter)
    return Deletion(partition, target, result, waiter, done)


def delete(partition: Partition, offset: int) -> int:
    """Moves the log's start to ``offset``; the offset that is meant."""
    partition.check_leader(-1)
    if not partition.log.config.delete:
        raise KafkaError(
            f"{partition.topic} is compacted only: records go when their key has a newer value",
            ErrorCode.POLICY_VIOLATION,
        )
    target = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if target < 0 or target > partition.high_watermark:
        raise KafkaError(
            f"offset {offset} is not between 0 and the high watermark {partition.high_watermark}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    partition.advance_start(target)
    return int(target)


async def _wait(broker: Broker, context: RequestContext, deletions: list[Deletion], timeout_ms: int) -> None:
    """Waits until all are done, or ``timeout_ms`` is over, and fills in the results."""
    turns = context.turns
    directories: dict[DataDirectory, list[StorageError]] = {}
    pending: list[asyncio.Future[KafkaError | None]] = []
    async for one in turns.over(deletions):
        directories[broker.logs.directory_of(one.partition.log)] = []
        if not one.done.done():
            pending.append(one.done)
    clock = broker.clock
    until = clock.monotonic() + timeout_ms / 1000
    for directory in directories:
        # What is not written down would be there again after a crash of this broker, which leads.
        checkpoints = broker.partitions.checkpoints
        directories[directory] = await turns.rest(checkpoints.log_starts_in([directory]))
    for some in slices_of(pending):
        await turns.rest(asyncio.wait(some, timeout=max(until - clock.monotonic(), 0.0)))
    async for one in turns.over(deletions):
        error = one.done.result() if one.done.done() else None
        problems = directories.get(broker.logs.directory_of(one.partition.log))
        if error is None and problems:
            error = problems[0]
        if error is not None:
            one.result.error_code = error.code
            continue
        if not one.done.done():
            one.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        # Retention may have moved the start meanwhile: a power cut would bring what it took back.
        directory = broker.logs.directory_of(one.partition.log)
        written = directory.start_offsets.written(one.partition.log.topic_partition)
        one.result.low_watermark = min(int(one.partition.low_watermark()), max(one.offset, written))
