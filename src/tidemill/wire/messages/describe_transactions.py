"""DescribeTransactions (key 65): the state of transactions."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class DescribeTransactionsRequest(Struct, versions="0", flexible="0+"):
    """The transactions of the request."""

    transactional_ids: list[str] = field([STRING])


class TopicData(Struct):
    """One topic's partitions in the transaction."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class TransactionState(Struct):
    """A transaction."""

    error_code: int = field(INT16)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: list[TopicData] = field([TopicData])


class DescribeTransactionsResponse(Struct, versions="0", flexible="0+"):
    """The transactions."""

    throttle_time_ms: int = field(INT32)
    transaction_states: list[TransactionState] = field([TransactionState])
