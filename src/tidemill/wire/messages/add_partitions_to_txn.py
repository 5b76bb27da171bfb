"""AddPartitionsToTxn (key 24): make partitions part of a transaction."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class AddPartitionsToTxnTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[int] = field([INT32])


class AddPartitionsToTxnTransaction(Struct):
    """A transaction and the partitions to add."""

    transactional_id: str = field(STRING, "4+")
    producer_id: int = field(INT64, "4+")
    producer_epoch: int = field(INT16, "4+")
    verify_only: bool = field(BOOL, "4+")  # check, but add nothing
    topics: list[AddPartitionsToTxnTopic] = field([AddPartitionsToTxnTopic], "4+")


class AddPartitionsToTxnRequest(Struct, versions="0-5", flexible="3+"):
    """One transaction from a client up to version 3, several from a broker from version 4 on."""

    transactions: list[AddPartitionsToTxnTransaction] = field([AddPartitionsToTxnTransaction], "4+")
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field([AddPartitionsToTxnTopic], "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """Whether one partition is part of the transaction."""

    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


class AddPartitionsToTxnTopicResult(Struct):
    """One topic's results."""

    name: str = field(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field([AddPartitionsToTxnPartitionResult])


class AddPartitionsToTxnResult(Struct):
    """One transaction's results."""

    transactional_id: str = field(STRING, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field([AddPartitionsToTxnTopicResult], "4+")


class AddPartitionsToTxnResponse(Struct, versions="0-5", flexible="3+"):
    """The result of each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field([AddPartitionsToTxnResult], "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        [AddPartitionsToTxnTopicResult], "0-3"
    )
