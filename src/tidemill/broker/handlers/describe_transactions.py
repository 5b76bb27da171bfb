"""DescribeTransactions: the states of transactional ids, by their coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.transactions.transaction_metadata import STATE_NAMES, TransactionMetadata
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_transactions as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    """Returns one result per id, in the order of the request; once per id, even if repeated."""
    states = []
    requested = await context.slices.unique(request.transactional_ids)
    async for name in context.slices.over(requested):
        found = broker.transaction_coordinator.describe(name)
        if isinstance(found, ErrorCode):
            states.append(messages.TransactionState(transactional_id=name, error_code=found))
        else:
            states.append(_described(name, found))
    await context.slices.clear(requested)
    return messages.DescribeTransactionsResponse(transaction_states=states)


API: Final = declare_api(
    ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, lambda: messages.DescribeTransactionsRequest, handle
)


def _described(name: str, found: TransactionMetadata) -> messages.TransactionState:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        topics.setdefault(topic, []).append(partition)
    return messages.TransactionState(
        transactional_id=name,
        transaction_state=STATE_NAMES[found.state],
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[messages.TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
    )
