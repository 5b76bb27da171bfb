"""ListOffsets: the offset at a time, or at an end of the log.

Version 0 asks for something else: offsets at which segments begin, of those last written at or before a
time, newest first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemill.broker.request_slices import Turns, in_slices
from tidemill.log.time_lookup import TimeLookup, is_warm
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.waiting import CONSUMER
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.replication.partition import Partition

DEBUGGING_REPLICA = -2
"""As a replica id: any replica answers, up to its log end. Controllers ask so before unclean elections."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""A request of an older version may not ask for these."""

EPOCHS_FROM = 4
NOT_AVAILABLE_FROM = 5
"""Older clients know no OFFSET_NOT_AVAILABLE."""

COLD_TRIES = 3
"""A log that changed so often while it was looked into is looked into here, from memory by now."""

Found = dict[tuple[str, int], TimeLookup]
"""Look-ups that a thread did, by topic and partition."""


@in_slices
async def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Looks each partition up; in a thread first where that would wait for the disk."""
    found: Found = {}
    cold = await cold_lookups(broker, context, request) if context.api_version > 0 else {}
    if cold:
        found = await look_up_cold(context.turns, cold)
    return await answer(broker, context, request, found)


async def cold_lookups(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> Found:
    """The look-ups by time whose pages are not all in memory. What is wrong with others is told later."""
    cold: Found = {}
    seen: set[tuple[str, int]] = set()
    async for topic in context.turns.over(request.topics):
        name = context.internal_name(topic.name)
        async for wanted in context.turns.over(topic.partitions):
            key = (name, wanted.partition_index)
            if key in seen or (wanted.timestamp < 0 and wanted.timestamp != MAX_TIMESTAMP):
                continue
            seen.add(key)
            try:
                partition = broker.partition(*key)
                if request.replica_id != DEBUGGING_REPLICA:
                    partition.check_leader(wanted.current_leader_epoch)
                if not is_warm(partition.log, wanted.timestamp):
                    cold[key] = TimeLookup(partition.log, wanted.timestamp)
            except KafkaError:
                continue
    await context.turns.let_go(seen)
    return cold


async def look_up_cold(turns: Turns, cold: Found) -> Found:
    """What a thread finds."""
    found: Found = {}
    loop = asyncio.get_running_loop()
    for _ in range(COLD_TRIES):
        await turns.rest(loop.run_in_executor(None, run_all, list(cold.values())))
        again: Found = {}
        async for key, lookup in turns.over(cold.items()):
            if lookup.is_true():
                found[key] = lookup
            elif not lookup.log.closed:
                again[key] = TimeLookup(lookup.log, lookup.timestamp)
        cold = again
        if not cold:
            break
    return found


def run_all(lookups: list[TimeLookup]) -> None:
    """Looks one after the other; runs in a thread."""
    for lookup in lookups:
        lookup.run()


async def answer(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest, found: Found
) -> ListOffsetsResponse:
    """The response, with what was looked up already; each partition once."""
    topics = []
    seen: set[tuple[str, int]] = set()
    async for topic in context.turns.over(request.topics):
        name = context.internal_name(topic.name)
        answers = []
        async for wanted in context.turns.over(topic.partitions):
            key = (name, wanted.partition_index)
            if key in seen:
                answered = ListOffsetsPartitionResponse(error_code=ErrorCode.INVALID_REQUEST)
            else:
                seen.add(key)
                answered = _answer_one(broker, context, request, key, wanted, found.get(key))
            answered.partition_index = wanted.partition_index
            if context.api_version < EPOCHS_FROM:
                answered.leader_epoch = -1
            answers.append(answered)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    await context.turns.let_go(seen)
    return ListOffsetsResponse(topics=topics)


def _answer_one(
    broker: Broker,
    context: RequestContext,
    request: ListOffsetsRequest,
    key: tuple[str, int],
    wanted: ListOffsetsPartition,
    done: TimeLookup | None,
) -> ListOffsetsPartitionResponse:
    try:
        partition = broker.partition(*key)
        if context.api_version == 0:
            return look_up_segments(partition, wanted, request.replica_id, broker.clock.wall_ms())
        return look_up(partition, wanted, request, context.api_version, done)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(error_code=error.code)


def look_up(
    partition: Partition,
    wanted: ListOffsetsPartition,
    request: ListOffsetsRequest,
    version: int,
    done: TimeLookup | None,
) -> ListOffsetsPartitionResponse:
    """One partition's answer."""
    if request.replica_id == DEBUGGING_REPLICA:
        partition.check_here()
    else:
        partition.check_leader(wanted.current_leader_epoch)
    if version < FIRST_VERSION_OF.get(wanted.timestamp, 0):
        raise KafkaError(
            f"timestamp {wanted.timestamp} needs ListOffsets {FIRST_VERSION_OF[wanted.timestamp]}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if partition.storage.magic == 0 and (wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP):
        raise KafkaError(
            f"{partition.topic} stores message format v0, which has no times: raise message.format.version",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    limit = partition.limit_offset(request.replica_id, request.isolation_level)
    found = find(partition, wanted.timestamp, limit, done)
    if request.replica_id == CONSUMER and (found is None or wanted.timestamp == LATEST):
        check_settled(partition, version)
    if found is None:
        return ListOffsetsPartitionResponse(timestamp=-1, offset=-1, leader_epoch=-1)
    timestamp, offset = found
    epoch = partition.log.leader_epochs.epoch_of(offset) if timestamp >= 0 else partition.leader_epoch
    if wanted.timestamp == LATEST and request.replica_id == DEBUGGING_REPLICA:
        epoch = partition.log.leader_epochs.latest
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        is_emptied = 0 < offset == partition.log.end_offset
        # A follower that begins at the end of an emptied log has no record that tells it the epoch.
        before = 1 if is_emptied and request.replica_id >= 0 else 0
        epoch = partition.log.leader_epochs.epoch_of(offset - before)
    return ListOffsetsPartitionResponse(timestamp=timestamp, offset=offset, leader_epoch=epoch)


def check_settled(partition: Partition, version: int) -> None:
    """Raises while a new leader does not know how far it is committed.

    What consumers were told by the leader before may be beyond its high watermark, which must not seem to go
    back for them. Source: KIP-207.
    """
    if partition.is_unsettled:
        raise KafkaError(
            f"{partition.topic}-{partition.index} is led anew, its followers have not told how far they are",
            ErrorCode.OFFSET_NOT_AVAILABLE
            if version >= NOT_AVAILABLE_FROM
            else ErrorCode.LEADER_NOT_AVAILABLE,
        )


def look_up_segments(
    partition: Partition, wanted: ListOffsetsPartition, replica_id: int, now_ms: int
) -> ListOffsetsPartitionResponse:
    """One partition's answer in version 0: up to ``max_num_offsets`` offsets, never beyond what is committed.

    Source: Apache Kafka, ``UnifiedLog.legacyFetchOffsetsBefore``.
    """
    partition.check_leader(-1)
    starts = partition.log.segment_starts(now_ms)
    if wanted.timestamp == EARLIEST:
        starts = starts[:1]
    elif wanted.timestamp != LATEST:
        while starts and starts[-1][1] > wanted.timestamp:
            starts.pop()
    limit = partition.limit_offset(replica_id, 0)
    offsets = [offset for offset, _ in reversed(starts)][: max(wanted.max_num_offsets, 0)]
    if any(offset > limit for offset in offsets):
        if replica_id == CONSUMER:
            check_settled(partition, 0)
        offsets = [limit, *[offset for offset in offsets if offset <= limit]]
    return ListOffsetsPartitionResponse(old_style_offsets=offsets)


def find(partition: Partition, timestamp: int, limit: int, done: TimeLookup | None) -> tuple[int, int] | None:
    """(timestamp, offset) of what is asked for, before ``limit``; -1 for the time of an end of the log."""
    log = partition.log
    if timestamp == LATEST:
        return -1, limit
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if done is not None and done.log is log and done.is_true():
        if done.problem is not None:
            raise done.problem
        found = done.found
    elif timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    elif timestamp < 0:
        raise KafkaError(f"timestamp {timestamp} means nothing", ErrorCode.UNSUPPORTED_VERSION)
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= limit:
        return None
    return found
