"""Committed offsets: checks of commits, deletion and expiry.

An offset expires ``offsets.retention.minutes`` after its start time (KIP-211):

==========================================  =============================================================
group                                       start time
==========================================  =============================================================
committed with a retention of its own       the given expiry time is used (commits of v2-4)
(OffsetCommit v2-4)
no protocol type (simple consumers)         the commit
Empty                                       when the group became empty; if unknown, the commit
Stable consumers, topic not subscribed      the commit
all others                                  never
==========================================  =============================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from tidemill.coordinator_runtime.coordinator_effects import Waiter
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    CommitResult,
    DeleteOffsetsResult,
    GroupState,
    OffsetsRemoved,
    OffsetsStored,
    OffsetToCommit,
)
from tidemill.groups.event_context import EventContext
from tidemill.groups.group_metadata import CONSUMER_PROTOCOL, GroupMetadata
from tidemill.groups.membership import check_generation
from tidemill.groups.offset_records import (
    NO_EXPIRY,
    CommittedOffset,
    OffsetRecord,
    OffsetsRecord,
    TransactionalOffset,
)
from tidemill.groups.rebalance import touch
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID

EXPIRY_MS_MAX: Final = 2**63 - 1
"""The latest time that a record can hold: a client may request a retention of this many milliseconds."""


def check_commit(group: GroupMetadata, request: CommitRequest) -> ErrorCode:
    """Whether this member, or this client outside the group, may commit now.

    Producers from before KIP-447 commit offsets of a group with members, and name none. A rebalance does not
    prevent the end of a transaction.
    """
    if group.deleting or group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    is_empty = group.state is GroupState.EMPTY
    if request.generation < 0 and is_empty:
        return ErrorCode.NONE
    if request.generation >= 0 or request.member_id or request.instance_id is not None:
        error = check_generation(group, request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
    elif not is_empty and request.producer is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.COMPLETING_REBALANCE and request.producer is None:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def commit(group: GroupMetadata, request: CommitRequest, waiter: Waiter, context: EventContext) -> None:
    """Writes the offsets, and responds once they are committed."""
    error = check_commit(group, request)
    if error is not ErrorCode.NONE:
        context.reply(waiter, CommitResult(errors=(error,) * len(request.offsets)))
        return
    member = group.members.get(request.member_id)
    if member is not None:
        touch(group, member, context)
    committed = []
    errors = []
    for offset in request.offsets:
        if len(offset.metadata or "") > context.config.offset_metadata_size_max:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        errors.append(ErrorCode.NONE)
        value = _committed(offset, request.retention_ms, context.now.wall_ms)
        committed.append((OffsetRecord(group.group_id, offset.topic, offset.partition, value), value))
    if not committed:
        context.reply(waiter, CommitResult(errors=tuple(errors)))
        return
    partitions = tuple((record.topic, record.partition, value.topic_id) for record, value in committed)
    group.in_flight.update(partitions)
    then = OffsetsStored(waiter=waiter, group_id=group.group_id, partitions=partitions, errors=tuple(errors))
    records: Iterator[OffsetsRecord] = (record for record, _ in committed)
    if request.producer is not None:
        producer_id = request.producer.producer.producer_id
        records = (TransactionalOffset(producer_id, record) for record, _ in committed)
    context.append(tuple(records), then, replay=True, producer=request.producer)


def _committed(offset: OffsetToCommit, retention_ms: int, wall_ms: int) -> CommittedOffset:
    return CommittedOffset(
        offset.offset,
        offset.leader_epoch,
        offset.metadata or "",
        wall_ms if offset.commit_timestamp_ms == -1 else offset.commit_timestamp_ms,
        NO_EXPIRY if retention_ms == -1 else min(wall_ms + retention_ms, EXPIRY_MS_MAX),
        offset.topic_id,
    )


def respond_to_commit(done: OffsetsStored, error: ErrorCode, context: EventContext) -> None:
    """Responds to a commit: the offsets that were accepted have the outcome ``error`` of the write."""
    errors = tuple(error if code is ErrorCode.NONE else code for code in done.errors)
    context.reply(done.waiter, CommitResult(errors=errors))


def check_delete_offsets(group: GroupMetadata) -> ErrorCode:
    """Whether offsets may be deleted; with members, only of consumer groups, whose topics are known."""
    if group.deleting or group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def delete_offsets(
    group: GroupMetadata, partitions: tuple[tuple[str, int], ...], waiter: Waiter, context: EventContext
) -> None:
    """Removes the offsets of partitions that no member consumes."""
    error = check_delete_offsets(group)
    if error is not ErrorCode.NONE:
        context.reply(waiter, DeleteOffsetsResult(error=error))
        return
    records = []
    errors = []
    awaited = pending_commits(group) | group.unstable.keys()
    for topic, partition in partitions:
        if group.is_subscribed(topic):
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        errors.append(ErrorCode.NONE)
        # A pending commit, also that of a transaction, counts: its record precedes the tombstone in the log.
        if partition in group.offsets.get(topic, {}) or (topic, partition) in awaited:
            records.append(OffsetRecord(group.group_id, topic, partition, None))
    if records:
        context.append(tuple(records), OffsetsRemoved(waiter=waiter, errors=tuple(errors)), replay=True)
    else:
        context.reply(waiter, DeleteOffsetsResult(error=ErrorCode.NONE, errors=tuple(errors)))


def offsets_removed(done: OffsetsRemoved, error: ErrorCode, context: EventContext) -> None:
    """Responds to a deletion of offsets."""
    errors = done.errors if error is ErrorCode.NONE else ()
    context.reply(done.waiter, DeleteOffsetsResult(error=error, errors=errors))


def tombstones(group_id: str, partitions: Mapping[str, Iterable[int]]) -> Iterator[OffsetRecord]:
    """Yields the tombstones of the offsets of ``partitions``, given by topic."""
    for topic, of_topic in partitions.items():
        for partition in of_topic:
            yield OffsetRecord(group_id, topic, partition, None)


def all_partitions(group: GroupMetadata) -> dict[str, set[int]]:
    """Returns the partitions for which the group has offsets, or will have after its pending commits and its
    transactions.
    """
    found = {topic: set(of_topic) for topic, of_topic in group.offsets.items()}
    for topic, partition in chain(((topic, number) for topic, number, _ in group.in_flight), group.unstable):
        found.setdefault(topic, set()).add(partition)
    return found


def partitions_of_deleted_topics(
    group: GroupMetadata, topics: Mapping[str, bytes], in_transactions: Iterable[tuple[str, int, bytes]]
) -> dict[str, set[int]]:
    """Returns those of :func:`all_partitions` that belong to deleted topics, given as a map of name to id.

    ``in_transactions``: the partitions with offsets in open transactions, with the ids of their topics.

    An offset that was committed for another topic of the same name stays: a new coordinator may read it
    before it receives the deletion of the earlier topic. The same holds for a pending commit and for that of
    a transaction, which replace the stored offset.
    """
    found = {
        topic: {
            partition
            for partition, offset in group.offsets[topic].items()
            if may_belong_to(offset.topic_id, topics[topic])
        }
        for topic in group.offsets.keys() & topics.keys()
    }
    pending = [commit for commit in chain(group.in_flight, in_transactions) if commit[0] in topics]
    for topic, partition, topic_id in pending:
        if may_belong_to(topic_id, topics[topic]):
            found.setdefault(topic, set()).add(partition)
    for topic, partition, topic_id in pending:
        if not may_belong_to(topic_id, topics[topic]) and topic in found:
            found[topic].discard(partition)
    return {topic: partitions for topic, partitions in found.items() if partitions}


def may_belong_to(known_id: bytes, topic_id: bytes) -> bool:
    """Whether an offset committed for the topic with ``known_id`` may belong to the topic with ``topic_id``.

    It does unless both ids are known and differ.
    """
    return ZERO_ID in (topic_id, known_id) or known_id == topic_id


def pending_commits(group: GroupMetadata) -> set[tuple[str, int]]:
    """Returns the partitions with a commit that is not in the log yet."""
    return {(topic, partition) for topic, partition, _ in group.in_flight}


def expired(group: GroupMetadata, retention_ms: int, wall_ms: int) -> dict[str, list[int]]:
    """Returns the partitions whose offsets have expired, by topic."""
    if group.protocol_type is not None and group.state is GroupState.EMPTY:
        since_ms = group.state_timestamp_ms
    elif group.protocol_type is None or (
        group.protocol_type == CONSUMER_PROTOCOL
        and group.state is GroupState.STABLE
        and group.subscribed_topics is not None
    ):
        since_ms = -1
    else:
        return {}
    found = {}
    awaited = pending_commits(group)
    for topic, of_topic in group.offsets.items():
        if group.is_subscribed(topic):
            continue
        partitions = [
            partition
            for partition, offset in of_topic.items()
            if _is_expired(offset, since_ms, retention_ms, wall_ms)
            and (topic, partition) not in awaited
            and (topic, partition) not in group.unstable
        ]
        if partitions:
            found[topic] = partitions
    return found


def _is_expired(offset: CommittedOffset, since_ms: int, retention_ms: int, wall_ms: int) -> bool:
    if offset.expire_timestamp_ms != NO_EXPIRY:
        return wall_ms >= offset.expire_timestamp_ms
    start_ms = since_ms if since_ms != -1 else offset.commit_timestamp_ms
    return wall_ms - start_ms >= retention_ms
