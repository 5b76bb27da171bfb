"""DeleteRecords: advances the log start offset.

The response waits until every live replica has deleted the records, as in Apache Kafka
(``DelayedDeleteRecords``): after a failover to one of them, the records stay deleted. The response contains
the smallest log start offset of the live replicas.

The log start offset of a mirror follows that of its source: at the inter-broker listener it may be set above
the log end offset. The log is then empty, and continues there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.broker_links import inter_broker_listener
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import slices_of
from tidemill.records.batch import BASE_OFFSET_MAX
from tidemill.replication.delayed_operations import OffsetCallback
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import delete_records as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext
    from tidemill.log.log_directories import DataDirectory
    from tidemill.replication.partition import Partition

HIGH_WATERMARK = -1
NO_WATERMARK = -1


class Deletion(NamedTuple):
    """The deletion in one partition: ``done`` gets its error, or None once all live replicas applied it."""

    partition: Partition
    offset: int
    """All records below it are deleted."""
    result: messages.DeleteRecordsPartitionResult
    waiter: OffsetCallback
    done: asyncio.Future[KafkaError | None]


async def handle(
    broker: Broker, context: RequestContext, request: messages.DeleteRecordsRequest
) -> messages.DeleteRecordsResponse:
    """Deletes up to the offset of each partition; -1 means its high watermark."""
    topics = []
    deletions = []
    async for topic in context.slices.over(request.topics):
        name = topic.name
        results = []
        async for wanted in context.slices.over(topic.partitions):
            result = messages.DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=NO_WATERMARK
            )
            try:
                partition = broker.partition(name, wanted.partition_index)
                if restarts(broker, context, partition, wanted.offset):
                    restart(broker, partition, wanted.offset)
                deletions.append(begin(partition, wanted.offset, result))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(messages.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    try:
        if deletions:
            await log_changes(context, "records deleted", deletions, _shown)
            await _wait(broker, context, deletions, request.timeout_ms)
        while deletions:
            await context.slices.step()
            deletion = deletions.pop()
            deletion.partition.delayed.stop_waiting_deleted(deletion.waiter)
    finally:
        for deletion in deletions:
            deletion.partition.delayed.stop_waiting_deleted(deletion.waiter)
    return messages.DeleteRecordsResponse(topics=topics)


API: Final = declare_api(ApiKey.DELETE_RECORDS, 0, 2, lambda: messages.DeleteRecordsRequest, handle)


def _shown(deletion: Deletion) -> str:
    return f"{deletion.partition.topic}-{deletion.partition.index} below {deletion.offset}"


def restarts(broker: Broker, context: RequestContext, partition: Partition, offset: int) -> bool:
    """Whether the log of a mirror restarts at ``offset``: it is above the log end offset."""
    return (
        partition.is_leader
        and partition.is_mirror
        and not partition.is_promoting
        and partition.log.end_offset < offset <= BASE_OFFSET_MAX
        and context.listener.name == inter_broker_listener(broker.config)
    )


def restart(broker: Broker, partition: Partition, offset: int) -> None:
    """Restarts the log of a mirror at ``offset``. Raises StorageError."""
    partition.check_leader(-1)
    try:
        partition.restart_mirror_at(offset, broker.clock.wall_ms())
    except StorageError as error:
        partition.events.on_storage_error(partition, error)
        raise


def begin(partition: Partition, offset: int, result: messages.DeleteRecordsPartitionResult) -> Deletion:
    """Advances the log start offset here to ``offset``, and waits for the followers."""
    target = delete(partition, offset)
    done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    waiter = OffsetCallback(lambda error: None if done.done() else done.set_result(error))
    partition.wait_deleted(target, waiter)
    return Deletion(partition, target, result, waiter, done)


def delete(partition: Partition, offset: int) -> int:
    """Advances the log start offset to ``offset``; returns the resolved offset."""
    partition.check_leader(-1)
    if partition.is_promoting:
        raise KafkaError(
            f"{partition.topic} is a mirror that is promoted: try again once the promotion has ended",
            ErrorCode.POLICY_VIOLATION,
        )
    if not partition.log.config.delete and not partition.is_mirror:
        raise KafkaError(
            f"{partition.topic} is compacted only: records are removed when their key has a newer value",
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
    """Waits until all deletions are done, or ``timeout_ms`` has passed, and fills in the results."""
    slices = context.slices
    directories: dict[DataDirectory, list[StorageError]] = {}
    pending: list[asyncio.Future[KafkaError | None]] = []
    async for deletion in slices.over(deletions):
        directories[broker.log_manager.dirs.directory_of(deletion.partition.log)] = []
        if not deletion.done.done():
            pending.append(deletion.done)
    clock = broker.clock
    until = clock.monotonic() + timeout_ms / 1000
    for directory in directories:
        # Without the checkpoint, the records would return after a crash of this broker, which leads.
        checkpoints = broker.replica_manager.checkpoints
        directories[directory] = await slices.wait_for(checkpoints.write_log_starts_in([directory]))
    for some in slices_of(pending):
        await slices.wait_for(asyncio.wait(some, timeout=max(until - clock.monotonic(), 0.0)))
    async for deletion in slices.over(deletions):
        error = deletion.done.result() if deletion.done.done() else None
        problems = directories.get(broker.log_manager.dirs.directory_of(deletion.partition.log))
        if error is None and problems:
            error = problems[0]
        if error is not None:
            deletion.result.error_code = error.code
            continue
        if not deletion.done.done():
            deletion.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        # Retention may have advanced the start since: a power failure would restore those records.
        directory = broker.log_manager.dirs.directory_of(deletion.partition.log)
        written = directory.start_offsets.written(deletion.partition.log.topic_partition)
        deletion.result.low_watermark = min(
            int(deletion.partition.low_watermark()), max(deletion.offset, written)
        )
