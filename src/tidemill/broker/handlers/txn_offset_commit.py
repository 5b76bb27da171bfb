"""TxnOffsetCommit: offsets that take effect when the transaction of a producer is committed.

From v5 on the partition of ``__consumer_offsets`` is added to the transaction here; older clients have sent
AddOffsetsToTxn before (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.transaction_guard import TransactionGuard, check_guard
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import TransactionProducer
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import offset_commit
from tidemill.wire.messages import txn_offset_commit as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

ADDS_FROM: Final = 5
ABORTABLE_FROM: Final = 4
"""From this version on, clients know TRANSACTION_ABORTABLE."""
TEMPORARY: Final = frozenset(
    {ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""Errors of the transaction coordinator. As its own error, a client would look up the group coordinator."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.TxnOffsetCommitRequest
) -> messages.TxnOffsetCommitResponse:
    """Responds once the offsets are in the log, with an error for each partition."""
    slices = context.slices
    offsets: dict[TopicPartition, OffsetToCommit] = {}
    async for topic in slices.over(request.topics):
        image = broker.metadata_cache.topic(topic.name)
        async for one in slices.over(topic.partitions):
            if image is not None and 0 <= one.partition_index < len(image.partitions):
                offsets[TopicPartition(topic.name, one.partition_index)] = OffsetToCommit(
                    topic=topic.name,
                    partition=one.partition_index,
                    offset=one.committed_offset,
                    leader_epoch=one.committed_leader_epoch,
                    metadata=one.committed_metadata,
                    topic_id=image.topic_id,
                )
    errors = await _commit(broker, context, request, offsets)
    topics = []
    async for topic in slices.over(request.topics):
        partitions = []
        async for one in slices.over(topic.partitions):
            error = errors.get(
                TopicPartition(topic.name, one.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            partitions.append(
                offset_commit.OffsetCommitResponsePartition(
                    partition_index=one.partition_index, error_code=error
                )
            )
        topics.append(messages.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    await slices.clear(offsets)
    return messages.TxnOffsetCommitResponse(topics=topics)


API: Final = declare_api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, lambda: messages.TxnOffsetCommitRequest, handle)


async def _commit(
    broker: Broker,
    context: RequestContext,
    request: messages.TxnOffsetCommitRequest,
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> Mapping[TopicPartition, ErrorCode]:
    if not request.group_id:
        return dict.fromkeys(offsets, ErrorCode.INVALID_GROUP_ID)
    shard, error = broker.group_coordinator.runtime.find(request.group_id)
    if shard is None:
        return dict.fromkeys(offsets, error)
    partition = broker.replica_manager.find(OFFSETS_TOPIC, shard.partition)
    if partition is None:
        # The topic is being deleted, and its coordinator ends after it.
        return dict.fromkeys(offsets, ErrorCode.NOT_COORDINATOR)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    guard = None
    if not partition.log.producer_state.has_transaction(*producer):
        guard = TransactionGuard(shard.partition, partition, *producer, context.api_version >= ADDS_FROM)
    try:
        if guard is not None:
            error = await context.slices.wait_for(
                _verify(broker, context, request, producer, shard.partition)
            )
            if error is not ErrorCode.NONE:
                return dict.fromkeys(offsets, error)
        return await _append(broker, context, request, producer, guard, offsets)
    finally:
        if guard is not None:
            guard.end()


async def _verify(
    broker: Broker,
    context: RequestContext,
    request: messages.TxnOffsetCommitRequest,
    producer: ProducerIdAndEpoch,
    partition: int,
) -> ErrorCode:
    adds = context.api_version >= ADDS_FROM
    if not adds and not broker.config.bool("transaction.partition.verification.enable"):
        return ErrorCode.NONE
    where = TopicPartition(OFFSETS_TOPIC, partition)
    errors = await broker.add_partitions_to_txn.add_or_verify(
        request.transactional_id, producer, [where], adds
    )
    error = errors.get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error in TEMPORARY or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error


async def _append(
    broker: Broker,
    context: RequestContext,
    request: messages.TxnOffsetCommitRequest,
    producer: ProducerIdAndEpoch,
    guard: TransactionGuard | None,
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> Mapping[TopicPartition, ErrorCode]:
    transaction = TransactionProducer(producer=producer, check=lambda: check_guard(guard))
    errors: dict[TopicPartition, ErrorCode] = {}
    for some in slices_of(list(offsets.values())):
        results = await context.slices.wait_for(_commit_some(broker, request, transaction, some))
        for offset, error in zip(some, results, strict=True):
            errors[TopicPartition(offset.topic, offset.partition)] = error
    return errors


async def _commit_some(
    broker: Broker,
    request: messages.TxnOffsetCommitRequest,
    transaction: TransactionProducer,
    offsets: Sequence[OffsetToCommit],
) -> tuple[ErrorCode, ...]:
    result = await broker.group_coordinator.commit(
        CommitRequest(
            group_id=request.group_id,
            offsets=tuple(offsets),
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            producer=transaction,
        )
    )
    return result.errors
