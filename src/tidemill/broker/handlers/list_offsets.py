"""ListOffsets: the offset for a timestamp, or the log start or end offset.

Version 0 differs: it requests the base offsets of segments that were last modified at or before a time,
newest first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.large_requests import RequestSlices
from tidemill.log.timestamp_lookup_job import TimeLookup, is_cached_lookup
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.delayed_operations import CONSUMER
from tidemill.wire.apis import ApiKey
from tidemill.wire.list_offset_timestamps import (
    DEBUGGING_REPLICA,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    FIRST_VERSION_OF,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from tidemill.wire.messages import list_offsets as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext
    from tidemill.replication.partition import Partition

EPOCHS_FROM = 4
NOT_AVAILABLE_FROM = 5
"""Older clients do not know OFFSET_NOT_AVAILABLE."""

COLD_TRIES = 3
"""After this many attempts on a changing log, the event loop does the lookup: the pages are in memory by
then."""

Found = dict[tuple[str, int], TimeLookup]
"""Lookups by topic and partition."""


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.ListOffsetsRequest
) -> messages.ListOffsetsResponse:
    """Looks up each partition; in a thread first where that would wait for the disk."""
    found: Found = {}
    cold = await cold_lookups(broker, context, request) if context.api_version > 0 else {}
    if cold:
        found = await look_up_cold(context.slices, cold)
    return await respond(broker, context, request, found)


API: Final = declare_api(ApiKey.LIST_OFFSETS, 0, 11, lambda: messages.ListOffsetsRequest, handle)


async def cold_lookups(
    broker: Broker, context: RequestContext, request: messages.ListOffsetsRequest
) -> Found:
    """Returns the lookups by timestamp whose pages are not all in memory. Errors are reported later."""
    cold: Found = {}
    seen: set[tuple[str, int]] = set()
    async for topic in context.slices.over(request.topics):
        name = topic.name
        async for wanted in context.slices.over(topic.partitions):
            key = (name, wanted.partition_index)
            if key in seen or (wanted.timestamp < 0 and wanted.timestamp != MAX_TIMESTAMP):
                continue
            seen.add(key)
            try:
                partition = broker.partition(*key)
                if request.replica_id != DEBUGGING_REPLICA:
                    partition.check_leader(wanted.current_leader_epoch)
                if not is_cached_lookup(partition.log, wanted.timestamp):
                    cold[key] = TimeLookup(partition.log, wanted.timestamp)
            except KafkaError:
                continue
    await context.slices.clear(seen)
    return cold


async def look_up_cold(slices: RequestSlices, cold: Found) -> Found:
    """Runs the lookups in a thread; returns those whose result is valid."""
    found: Found = {}
    for _ in range(COLD_TRIES):
        await slices.wait_for(asyncio.get_running_loop().run_in_executor(None, run_all, list(cold.values())))
        again: Found = {}
        async for key, lookup in slices.over(cold.items()):
            if lookup.is_valid():
                found[key] = lookup
            elif not lookup.log.closed:
                again[key] = TimeLookup(lookup.log, lookup.timestamp)
        cold = again
        if not cold:
            break
    return found


def run_all(lookups: list[TimeLookup]) -> None:
    """Runs the lookups one after the other, in a thread."""
    for lookup in lookups:
        lookup.run()


async def respond(
    broker: Broker, context: RequestContext, request: messages.ListOffsetsRequest, found: Found
) -> messages.ListOffsetsResponse:
    """Builds the response from the finished lookups; each partition is looked up once."""
    topics = []
    seen: set[tuple[str, int]] = set()
    async for topic in context.slices.over(request.topics):
        name = topic.name
        results = []
        async for wanted in context.slices.over(topic.partitions):
            key = (name, wanted.partition_index)
            if key in seen:
                result = messages.ListOffsetsPartitionResponse(error_code=ErrorCode.INVALID_REQUEST)
            else:
                seen.add(key)
                result = _respond_for_partition(broker, context, request, key, wanted, found.get(key))
            result.partition_index = wanted.partition_index
            if context.api_version < EPOCHS_FROM:
                result.leader_epoch = -1
            results.append(result)
        topics.append(messages.ListOffsetsTopicResponse(name=topic.name, partitions=results))
    await context.slices.clear(seen)
    return messages.ListOffsetsResponse(topics=topics)


def _respond_for_partition(
    broker: Broker,
    context: RequestContext,
    request: messages.ListOffsetsRequest,
    key: tuple[str, int],
    wanted: messages.ListOffsetsPartition,
    done: TimeLookup | None,
) -> messages.ListOffsetsPartitionResponse:
    try:
        partition = broker.partition(*key)
        if context.api_version == 0:
            return look_up_segments(partition, wanted, request.replica_id, broker.clock.wall_ms())
        return look_up(partition, wanted, request, context.api_version, done)
    except KafkaError as error:
        return messages.ListOffsetsPartitionResponse(error_code=error.code)


def look_up(
    partition: Partition,
    wanted: messages.ListOffsetsPartition,
    request: messages.ListOffsetsRequest,
    version: int,
    done: TimeLookup | None,
) -> messages.ListOffsetsPartitionResponse:
    """Looks up one partition."""
    if request.replica_id == DEBUGGING_REPLICA:
        partition.check_here()
    else:
        partition.check_leader(wanted.current_leader_epoch)
    if version < FIRST_VERSION_OF.get(wanted.timestamp, 0):
        raise KafkaError(
            f"timestamp {wanted.timestamp} needs ListOffsets {FIRST_VERSION_OF[wanted.timestamp]}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if partition.message_format.magic == 0 and (wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP):
        raise KafkaError(
            f"{partition.topic} stores message format v0, which has no times: raise message.format.version",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    limit = partition.read_limits.limit_offset(request.replica_id, request.isolation_level)
    found = find(partition, wanted.timestamp, limit, done)
    if request.replica_id == CONSUMER and (found is None or wanted.timestamp == LATEST):
        check_high_watermark_known(partition, version)
    if found is None:
        return messages.ListOffsetsPartitionResponse(timestamp=-1, offset=-1, leader_epoch=-1)
    timestamp, offset = found
    epoch = partition.log.leader_epochs.epoch_of(offset) if timestamp >= 0 else partition.leader_epoch
    if wanted.timestamp == LATEST and request.replica_id == DEBUGGING_REPLICA:
        epoch = partition.log.leader_epochs.latest
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        is_emptied = 0 < offset == partition.log.end_offset
        # A follower that starts at the end of an emptied log has no record that shows the epoch.
        before = 1 if is_emptied and request.replica_id >= 0 else 0
        epoch = partition.log.leader_epochs.epoch_of(offset - before)
    return messages.ListOffsetsPartitionResponse(timestamp=timestamp, offset=offset, leader_epoch=epoch)


def check_high_watermark_known(partition: Partition, version: int) -> None:
    """Raises while a new leader does not know the committed offsets.

    Offsets that the previous leader returned to consumers may be beyond this leader's high watermark, which
    must not appear to move back. Source: KIP-207.
    """
    if partition.awaits_high_watermark:
        raise KafkaError(
            f"{partition.topic}-{partition.index} has a new leader, which awaits its followers' offsets",
            ErrorCode.OFFSET_NOT_AVAILABLE
            if version >= NOT_AVAILABLE_FROM
            else ErrorCode.LEADER_NOT_AVAILABLE,
        )


def look_up_segments(
    partition: Partition, wanted: messages.ListOffsetsPartition, replica_id: int, now_ms: int
) -> messages.ListOffsetsPartitionResponse:
    """Looks up one partition in version 0: up to ``max_num_offsets`` offsets, never beyond the committed.

    Source: Apache Kafka, ``UnifiedLog.legacyFetchOffsetsBefore``.
    """
    partition.check_leader(-1)
    starts = partition.log.segment_starts(now_ms)
    if wanted.timestamp == EARLIEST:
        starts = starts[:1]
    elif wanted.timestamp != LATEST:
        while starts and starts[-1][1] > wanted.timestamp:
            starts.pop()
    limit = partition.read_limits.limit_offset(replica_id, 0)
    offsets = [offset for offset, _ in reversed(starts)][: max(wanted.max_num_offsets, 0)]
    if any(offset > limit for offset in offsets):
        if replica_id == CONSUMER:
            check_high_watermark_known(partition, 0)
        offsets = [limit, *[offset for offset in offsets if offset <= limit]]
    return messages.ListOffsetsPartitionResponse(old_style_offsets=offsets)


def find(partition: Partition, timestamp: int, limit: int, done: TimeLookup | None) -> tuple[int, int] | None:
    """Returns (timestamp, offset) below ``limit``; timestamp -1 for the log start or end offset."""
    log = partition.log
    if timestamp == LATEST:
        return -1, limit
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if done is not None and done.log is log and done.is_valid():
        if done.problem is not None:
            raise done.problem
        found = done.found
    elif timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    elif timestamp < 0:
        raise KafkaError(f"timestamp {timestamp} has no meaning", ErrorCode.UNSUPPORTED_VERSION)
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= limit:
        return None
    return found
