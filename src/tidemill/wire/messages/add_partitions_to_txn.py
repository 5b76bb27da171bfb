"""AddPartitionsToTxn (key 24)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class AddPartitionsToTxnTopic(Struct):
    """Add Partitions To Txn Topic."""

    name: str = field(STRING)
    partitions: list[int] = field([INT32])


class AddPartitionsToTxnTransaction(Struct):
    """Add Partitions To Txn Transaction."""

    transactional_id: str = field(STRING, "4+")
    producer_id: int = field(INT64, "4+")
    producer_epoch: int = field(INT16, "4+")
    verify_only: bool = field(BOOL, "4+")
    topics: list[AddPartitionsToTxnTopic] = field([AddPartitionsToTxnTopic], "4+")


class AddPartitionsToTxnRequest(Struct, versions="0-5", flexible="3+"):
    """Add Partitions To Txn Request."""

    transactions: list[AddPartitionsToTxnTransaction] = field([AddPartitionsToTxnTransaction], "4+")
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field([AddPartitionsToTxnTopic], "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """Add Partitions To Txn Partition Result."""

    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


class AddPartitionsToTxnTopicResult(Struct):
    """Add Partitions To Txn Topic Result."""

    name: str = field(STRING)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field([AddPartitionsToTxnPartitionResult])


class AddPartitionsToTxnResult(Struct):
    """Add Partitions To Txn Result."""

    transactional_id: str = field(STRING, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field([AddPartitionsToTxnTopicResult], "4+")


class AddPartitionsToTxnResponse(Struct, versions="0-5", flexible="3+"):
    """Add Partitions To Txn Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field([AddPartitionsToTxnResult], "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        [AddPartitionsToTxnTopicResult], "0-3"
    )
