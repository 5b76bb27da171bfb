"""ListOffsets: the offset at a time, or at an end of the log.

Version 0 asks for something else: offsets at which segments begin, of those last written at or before a
time, newest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.errors import ErrorCode, KafkaError
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

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""A request of an older version may not ask for these."""

EPOCHS_FROM = 4


def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Looks each partition up; once, as a look-up by time reads from the disk."""
    topics = []
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        name = context.internal_name(topic.name)
        answers = []
        for wanted in topic.partitions:
            try:
                if (name, wanted.partition_index) in seen:
                    raise KafkaError("the partition comes twice in this request", ErrorCode.INVALID_REQUEST)
                seen.add((name, wanted.partition_index))
                partition = broker.partition(name, wanted.partition_index)
                if context.api_version == 0:
                    answer = look_up_segments(partition, wanted, request.replica_id, broker.clock.wall_ms())
                else:
                    answer = look_up(partition, wanted, request, context.api_version)
            except KafkaError as error:
                answer = ListOffsetsPartitionResponse(error_code=error.code)
            answer.partition_index = wanted.partition_index
            if context.api_version < EPOCHS_FROM:
                answer.leader_epoch = -1
            answers.append(answer)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def look_up(
    partition: Partition, wanted: ListOffsetsPartition, request: ListOffsetsRequest, version: int
) -> ListOffsetsPartitionResponse:
    """One partition's answer."""
    partition.check_leader(wanted.current_leader_epoch)
    if version < FIRST_VERSION_OF.get(wanted.timestamp, 0):
        raise KafkaError(
            f"timestamp {wanted.timestamp} needs ListOffsets {FIRST_VERSION_OF[wanted.timestamp]}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    found = find(partition, wanted.timestamp, request.replica_id, request.isolation_level)
    if found is None:
        return ListOffsetsPartitionResponse(timestamp=-1, offset=-1, leader_epoch=-1)
    timestamp, offset = found
    epoch = partition.log.leader_epochs.epoch_of(offset) if timestamp >= 0 else partition.leader_epoch
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = partition.log.leader_epochs.epoch_of(offset)
    return ListOffsetsPartitionResponse(timestamp=timestamp, offset=offset, leader_epoch=epoch)


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
        offsets = [limit, *[offset for offset in offsets if offset <= limit]]
    return ListOffsetsPartitionResponse(old_style_offsets=offsets)


def find(partition: Partition, timestamp: int, replica_id: int, isolation: int) -> tuple[int, int] | None:
    """(timestamp, offset) of what is asked for; -1 for the time of an end of the log."""
    log = partition.log
    limit = partition.limit_offset(replica_id, isolation)
    if timestamp == LATEST:
        return -1, limit
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    elif timestamp < 0:
        raise KafkaError(f"timestamp {timestamp} means nothing", ErrorCode.UNSUPPORTED_VERSION)
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found[1] >= limit:
        return None
    return found
