"""ListTransactions (key 66): the transactions that a broker coordinates."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class ListTransactionsRequest(Struct, versions="0-2", flexible="0+"):
    """Filters; an empty filter matches everything."""

    state_filters: list[str] = field([STRING])
    producer_id_filters: list[int] = field([INT64])
    duration_filter: int = field(INT64, "1+", default=-1)  # ms that they run at least; -1 for any
    transactional_id_pattern: str | None = field(STRING, "2+", nullable="2+", default=None)


class TransactionState(Struct):
    """A transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


class ListTransactionsResponse(Struct, versions="0-2", flexible="0+"):
    """The transactions that this broker coordinates."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    unknown_state_filters: list[str] = field([STRING])
    transaction_states: list[TransactionState] = field([TransactionState])
