"""InitProducerId: assigns an id and an epoch to an idempotent or transactional producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import fenced_error
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tidemill.transactions.coordinator_effects import (
    InitProducerIdRequest,
    ProducerResult,
)
from tidemill.transactions.transaction_metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
)
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import init_producer_id as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

PRODUCER_FENCED_FROM: Final = 4


async def handle(
    broker: Broker, context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """Assigns an id that no producer had before, or the next epoch of a transactional id.

    A producer that continues after an error sends its id and epoch, both of them or none. Transactions of a
    two-phase commit have no timeout, and must be allowed by ``transaction.two.phase.commit.enable``.
    """
    if request.transactional_id is None:
        result = await _idempotent(broker)
    elif request.enable2_pc and not broker.transaction_coordinator.config.has_two_phase_commit:
        result = ProducerResult(error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        result = ProducerResult(error=ErrorCode.INVALID_REQUEST)
    else:
        expected = (
            None
            if request.producer_id == NO_PRODUCER_ID
            else ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        )
        result = await context.slices.wait_for(
            broker.transaction_coordinator.init_producer_id(
                InitProducerIdRequest(
                    transactional_id=request.transactional_id,
                    timeout_ms=NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms,
                    expected=expected,
                    keeps_prepared=request.keep_prepared_txn,
                )
            )
        )
    return messages.InitProducerIdResponse(
        error_code=fenced_error(result.error, context.api_version >= PRODUCER_FENCED_FROM),
        producer_id=result.producer_id,
        producer_epoch=result.epoch,
        ongoing_txn_producer_id=result.kept.producer_id,
        ongoing_txn_producer_epoch=result.kept.epoch,
    )


async def _idempotent(broker: Broker) -> ProducerResult:
    try:
        producer_id = await broker.producer_id_manager.next()
    except KafkaError as error:
        return ProducerResult(error=error.code)
    return ProducerResult(error=ErrorCode.NONE, producer_id=producer_id, epoch=0)


API: Final = declare_api(ApiKey.INIT_PRODUCER_ID, 0, 6, lambda: messages.InitProducerIdRequest, handle)
