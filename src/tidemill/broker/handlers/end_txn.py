"""EndTxn: commits or aborts a transaction. From v5 on the response has the next epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import fenced_error
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.transactions.coordinator_effects import EndTransactionRequest
from tidemill.transactions.transaction_metadata import EPOCH_BUMP_VERSION
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import end_txn as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

EPOCH_BUMP_FROM: Final = 5
PRODUCER_FENCED_FROM: Final = 2


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.EndTxnRequest
) -> messages.EndTxnResponse:
    """Responds once the decision is in the log; the markers follow."""
    version = context.api_version
    result = await context.slices.wait_for(
        broker.transaction_coordinator.end_transaction(
            EndTransactionRequest(
                transactional_id=request.transactional_id,
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                is_commit=request.committed,
                client_version=EPOCH_BUMP_VERSION if version >= EPOCH_BUMP_FROM else 0,
            )
        )
    )
    return messages.EndTxnResponse(
        error_code=fenced_error(result.error, version >= PRODUCER_FENCED_FROM),
        producer_id=result.producer_id,
        producer_epoch=result.epoch,
    )


API: Final = declare_api(ApiKey.END_TXN, 0, 5, lambda: messages.EndTxnRequest, handle)
