"""AddPartitionsToTxn: adds partitions to the transaction of a client; from v4 on it is a request of a broker,
which adds or verifies the partitions of several transactions (KIP-890)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import fenced_error
from tidemill.model.errors import ErrorCode
from tidemill.model.mirror_state import is_mirror
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.transactions.coordinator_effects import AddPartitionsRequest
from tidemill.transactions.transaction_metadata import EPOCH_BUMP_VERSION
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import add_partitions_to_txn as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

BATCHED_FROM: Final = 4
IMPLICIT_FROM: Final = 5
"""From this version on a broker adds partitions for clients with transaction version 2."""
PRODUCER_FENCED_FROM: Final = 2


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.AddPartitionsToTxnRequest
) -> messages.AddPartitionsToTxnResponse:
    """Responds once the partitions are in the log of the coordinator, with an error for each."""
    if context.api_version < BATCHED_FROM:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)

        async def add(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
            name = request.v3_and_below_transactional_id
            errors = await verify_or_add(broker, name, producer, partitions, adds=True, client_version=0)
            has_fenced_error = context.api_version >= PRODUCER_FENCED_FROM
            return {where: fenced_error(error, has_fenced_error) for where, error in errors.items()}

        return messages.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _results(broker, context, request.v3_and_below_topics, add)
        )
    client_version = EPOCH_BUMP_VERSION if context.api_version >= IMPLICIT_FROM else 0
    results = []
    async for one in context.slices.over(request.transactions):

        async def verify_or_add_one(
            partitions: Collection[TopicPartition], one: messages.AddPartitionsToTxnTransaction = one
        ) -> Mapping[TopicPartition, ErrorCode]:
            producer = ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
            return await verify_or_add(
                broker,
                one.transactional_id,
                producer,
                partitions,
                adds=not one.verify_only,
                client_version=client_version,
            )

        results.append(
            messages.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=await _results(broker, context, one.topics, verify_or_add_one),
            )
        )
    return messages.AddPartitionsToTxnResponse(results_by_transaction=results)


API: Final = declare_api(
    ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, lambda: messages.AddPartitionsToTxnRequest, handle
)


async def verify_or_add(
    broker: Broker,
    name: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    adds: bool,
    client_version: int,
) -> Mapping[TopicPartition, ErrorCode]:
    """Adds partitions to a transaction that this broker coordinates, or verifies that they are part of it.

    ``client_version``: the transaction version of the client, for an addition.
    """
    if not adds:
        return broker.transaction_coordinator.verify_partitions(name, producer, partitions)
    error = await broker.transaction_coordinator.add_partitions(
        AddPartitionsRequest(
            transactional_id=name,
            producer=producer,
            partitions=frozenset(partitions),
            client_version=client_version,
        )
    )
    return dict.fromkeys(partitions, error)


async def _results(
    broker: Broker,
    context: RequestContext,
    topics: Sequence[messages.AddPartitionsToTxnTopic],
    apply: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, ErrorCode]]],
) -> list[messages.AddPartitionsToTxnTopicResult]:
    """Applies a change to all partitions, or to none if one of them does not exist, or is of a mirror.

    A mirror has only transactions of another cluster. Clients abort the transaction after POLICY_VIOLATION.
    """
    slices = context.slices
    partitions: set[TopicPartition] = set()
    refused: dict[TopicPartition, ErrorCode] = {}
    async for topic in slices.over(topics):
        image = broker.metadata_cache.topic(topic.name)
        count = 0 if image is None else len(image.partitions)
        of_mirror = image is not None and is_mirror(image.config)
        async for index in slices.over(topic.partitions):
            where = TopicPartition(topic.name, index)
            if not 0 <= index < count:
                refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif of_mirror:
                refused[where] = ErrorCode.POLICY_VIOLATION
            else:
                partitions.add(where)
    errors: Mapping[TopicPartition, ErrorCode] = {}
    default = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not refused:
        errors = await slices.wait_for(apply(partitions))
    results = []
    async for topic in slices.over(topics):
        of_topic = []
        async for index in slices.over(topic.partitions):
            where = TopicPartition(topic.name, index)
            error = refused.get(where) or errors.get(where, default)
            of_topic.append(
                messages.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
            )
        results.append(messages.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=of_topic))
    await slices.clear(partitions)
    await slices.clear(refused)
    return results
