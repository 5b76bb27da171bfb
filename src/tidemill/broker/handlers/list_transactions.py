"""ListTransactions: the transactional ids of this broker, filtered by state, producer, duration and name.

A pattern is a regular expression in the syntax of RE2, as in Apache Kafka: its time grows with the length of
the names only, whatever a client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.transactions.transaction_metadata import ENDED, STATE_NAMES, TransactionState
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import list_transactions as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

STATES: Final = {name: state for state, name in STATE_NAMES.items()}
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 20


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    """Names the unknown states among the filters; an empty filter accepts all."""
    slices = context.slices
    error, found = broker.transaction_coordinator.list_transactions()
    if error is not ErrorCode.NONE:
        return messages.ListTransactionsResponse(error_code=error)
    matches = _pattern(request.transactional_id_pattern)
    if matches is None:
        return messages.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states: set[TransactionState] = set()
    response = messages.ListTransactionsResponse()
    async for name in slices.over(request.state_filters):
        if name in STATES:
            states.add(STATES[name])
        else:
            response.unknown_state_filters.append(name)
    producers = {producer_id async for producer_id in slices.over(request.producer_id_filters)}
    began_before_ms = broker.clock.wall_ms() - request.duration_filter
    for transactions in found:
        async for name, one in slices.over(list(transactions.items())):
            if (
                (request.state_filters and one.state not in states)
                or (producers and one.producer_id not in producers)
                or (request.duration_filter >= 0 and (one.state in ENDED or one.start_ms > began_before_ms))
                or not matches(name)
            ):
                continue
            response.transaction_states.append(
                messages.TransactionState(
                    transactional_id=name,
                    producer_id=one.producer_id,
                    transaction_state=STATE_NAMES[one.state],
                )
            )
    await slices.clear(producers)
    return response


API: Final = declare_api(ApiKey.LIST_TRANSACTIONS, 0, 2, lambda: messages.ListTransactionsRequest, handle)


def _pattern(text: str | None) -> Callable[[str], object] | None:
    """Returns the check of a name against a pattern; None if the pattern is invalid."""
    if not text:
        return lambda name: True
    # Imported late: few brokers are asked for a pattern.
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        matches: Callable[[str], object] = re2.compile(text, options).fullmatch
        return matches
    except re2.error:
        return None
