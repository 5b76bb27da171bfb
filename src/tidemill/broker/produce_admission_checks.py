"""The refusals of Produce requests: one table, which is checked before any record is read. Compiled.

=====================  ================================  ==================================================
kind of check          is called for                     and knows
=====================  ================================  ==================================================
ProduceRequestCheck    each request                      the decoded request
ProducePartitionCheck  each partition                    the topic and the partition, if they exist here
ProduceRecordsCheck    each partition of this broker     the bytes of the records
ProduceBatchCheck      each batch of message format v2   the header of the batch, the limits of its topic
=====================  ================================  ==================================================

The table has no check that needs more than the header of a batch. The validation of the records checks the
checksum, the records, and the size of each entry of a message set of format v0 or v1
(:mod:`tidemill.records.batch_validation`, :mod:`tidemill.records.message_set_validation`). The conversion
checks the size with which converted records would be stored (:mod:`tidemill.records.format_conversion`). The
append checks the sequence of the producer, the number of in-sync replicas, and ``segment.bytes``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from tidemill.broker.produce_codec import BY_ID, PartitionRecords, ProduceRequest
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, ZSTD, Batch
from tidemill.records.format_conversion import check_can_be_old, several_batches_error
from tidemill.replication.hosted_topics import TopicEntry
from tidemill.replication.partition import Partition

ONE_BATCH_FROM: Final = 3
"""From this version on a request has one batch of format v2 for a partition, and before it a message set."""
ZSTD_FROM: Final = 7


class ProduceAdmissionCheck:
    """A reason to refuse records."""

    name: ClassVar[str] = ""


class ProduceRequestCheck(ProduceAdmissionCheck):
    """A reason to refuse all partitions of a request."""

    def refuse_request(self, request: ProduceRequest) -> KafkaError | None:
        """Returns the error of all partitions of ``request``; None admits it."""
        raise NotImplementedError


class ProducePartitionCheck(ProduceAdmissionCheck):
    """A reason to refuse one partition."""

    def refuse_partition(
        self,
        request: ProduceRequest,
        records: PartitionRecords,
        topic: TopicEntry | None,
        partition: Partition | None,
    ) -> KafkaError | None:
        """Returns the error of one partition; None admits it.

        ``topic`` is None for an unknown topic, ``partition`` for a partition without a replica here.
        """
        raise NotImplementedError


class ProduceRecordsCheck(ProduceAdmissionCheck):
    """A reason to refuse the records of a partition that this broker leads."""

    def refuse_records(
        self, request: ProduceRequest, data: bytes, records: PartitionRecords
    ) -> KafkaError | None:
        """Returns the error of the records in the frame ``data``; None admits them."""
        raise NotImplementedError


class ProduceBatchCheck(ProduceAdmissionCheck):
    """A reason to refuse a batch of message format v2, whose header is parsed."""

    def refuse_batch(
        self, request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
    ) -> KafkaError | None:
        """Returns the error of the batch with which ``records`` begin; None admits it."""
        raise NotImplementedError


class ProduceTransactionCheck(ProduceRequestCheck):
    """Transactions are not supported: docs/decisions/transactions-refused.md."""

    name = "transaction"

    def refuse_request(self, request: ProduceRequest) -> KafkaError | None:
        if not request.is_transactional:
            return None
        return KafkaError(
            "transactions are not supported by this version: produce without transactional.id, "
            "and no batch as part of a transaction",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )


class ProduceAcksCheck(ProduceRequestCheck):
    """``acks`` is -1, 0 or 1."""

    name = "acks"

    def refuse_request(self, request: ProduceRequest) -> KafkaError | None:
        if -1 <= request.acks <= 1:
            return None
        return KafkaError(
            f"acks={request.acks} is not one of -1 (all), 0 and 1", ErrorCode.INVALID_REQUIRED_ACKS
        )


class ProduceUnknownPartitionCheck(ProducePartitionCheck):
    """This broker has a replica of the partition."""

    name = "unknown partition"

    def refuse_partition(
        self,
        request: ProduceRequest,
        records: PartitionRecords,
        topic: TopicEntry | None,
        partition: Partition | None,
    ) -> KafkaError | None:
        if partition is not None:
            return None
        by_id = request.version >= BY_ID
        if by_id and topic is None:
            return KafkaError(f"no topic has the id {records.topic.hex()}", ErrorCode.UNKNOWN_TOPIC_ID)
        name = records.topic.hex() if by_id else records.topic.decode("utf-8", "replace")
        return KafkaError(f"{name}-{records.index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class ProduceInternalTopicCheck(ProducePartitionCheck):
    """Only brokers write to internal topics: a client could forge committed offsets there."""

    name = "internal topic"

    def refuse_partition(
        self,
        request: ProduceRequest,
        records: PartitionRecords,
        topic: TopicEntry | None,
        partition: Partition | None,
    ) -> KafkaError | None:
        if topic is None or not topic.internal:
            return None
        return KafkaError(
            f"{topic.name} is an internal topic, which clients cannot write to",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )


class ProduceLeaderCheck(ProducePartitionCheck):
    """This broker leads the partition, and its log is writable."""

    name = "leader"

    def refuse_partition(
        self,
        request: ProduceRequest,
        records: PartitionRecords,
        topic: TopicEntry | None,
        partition: Partition | None,
    ) -> KafkaError | None:
        if partition is None:
            return None
        try:
            partition.check_leader(-1)
        except KafkaError as error:
            return error
        return None


class ProduceCurrentFormatCheck(ProduceRecordsCheck):
    """From version 3 on there are records, and their message format is v2."""

    name = "message format"

    def refuse_records(
        self, request: ProduceRequest, data: bytes, records: PartitionRecords
    ) -> KafkaError | None:
        if request.version < ONE_BATCH_FROM:
            return None
        size: i64 = records.end - records.start
        if size == 0:
            return InvalidRecord(
                "no records: from version 3 on a Produce request has one batch for a partition"
            )
        if size > MAGIC and data[records.start + MAGIC] != CURRENT_MAGIC:
            return InvalidRecord(
                f"a batch of message format {data[records.start + MAGIC]}: from version 3 on a Produce"
                " request has format 2"
            )
        return None


class ProduceSingleBatchCheck(ProduceBatchCheck):
    """The batch is the only one."""

    name = "single batch"

    def refuse_batch(
        self, request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
    ) -> KafkaError | None:
        size: i64 = records.end - records.start
        return None if batch.size == size else several_batches_error(batch, size)


class ProduceZstdCheck(ProduceBatchCheck):
    """Clients of the request's version know zstd."""

    name = "zstd"

    def refuse_batch(
        self, request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
    ) -> KafkaError | None:
        if batch.codec != ZSTD or request.version >= ZSTD_FROM or request.version < ONE_BATCH_FROM:
            return None
        return KafkaError(
            f"zstd in Produce version {request.version}: it is supported from version {ZSTD_FROM} on",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


class ProduceTopicFormatCheck(ProduceBatchCheck):
    """The message format of the topic has the features of the batch."""

    name = "topic format"

    def refuse_batch(
        self, request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
    ) -> KafkaError | None:
        message_format = partition.message_format
        if message_format.magic == CURRENT_MAGIC:
            return None
        try:
            check_can_be_old(batch, message_format.codec, message_format.magic)
        except KafkaError as error:
            return error
        return None


class ProduceSizeCheck(ProduceBatchCheck):
    """The batch as sent is not larger than ``max.message.bytes`` of its topic."""

    name = "size"

    def refuse_batch(
        self, request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
    ) -> KafkaError | None:
        bytes_max: i64 = partition.validation_limits.max_batch_bytes
        if batch.size <= bytes_max:
            return None
        return KafkaError(
            f"the batch has {batch.size} bytes, this topic accepts {bytes_max} "
            "(max.message.bytes): lower batch.size of the producer, or raise the topic's limit",
            ErrorCode.MESSAGE_TOO_LARGE,
        )


CHECKS: Final[list[ProduceAdmissionCheck]] = [
    ProduceTransactionCheck(),
    ProduceAcksCheck(),
    ProduceUnknownPartitionCheck(),
    ProduceInternalTopicCheck(),
    ProduceLeaderCheck(),
    ProduceCurrentFormatCheck(),
    ProduceSingleBatchCheck(),
    ProduceZstdCheck(),
    ProduceTopicFormatCheck(),
    ProduceSizeCheck(),
]
"""All refusals, in the order of their precedence: the first error is the response.

The checks of a request come before those of its partitions, these before those of the records, and these
before those of the batch. A header that cannot be parsed is refused before the checks of the batch.

To add a refusal (by tenant, access rules or a quota), write a subclass of one of the four kinds, and add it
here, before the checks that it precedes. What it needs of the request becomes a field of
:class:`~tidemill.broker.produce_codec.ProduceRequest`.
"""
REQUEST_CHECKS: Final[list[ProduceRequestCheck]] = [
    one for one in CHECKS if isinstance(one, ProduceRequestCheck)
]
PARTITION_CHECKS: Final[list[ProducePartitionCheck]] = [
    one for one in CHECKS if isinstance(one, ProducePartitionCheck)
]
RECORDS_CHECKS: Final[list[ProduceRecordsCheck]] = [
    one for one in CHECKS if isinstance(one, ProduceRecordsCheck)
]
BATCH_CHECKS: Final[list[ProduceBatchCheck]] = [one for one in CHECKS if isinstance(one, ProduceBatchCheck)]


def refusal_of_request(request: ProduceRequest) -> KafkaError | None:
    """Returns the first error of the table for a request."""
    for check in REQUEST_CHECKS:
        error = check.refuse_request(request)
        if error is not None:
            return error
    return None


def refusal_of_partition(
    request: ProduceRequest, records: PartitionRecords, topic: TopicEntry | None, partition: Partition | None
) -> KafkaError | None:
    """Returns the first error of the table for a partition."""
    for check in PARTITION_CHECKS:
        error = check.refuse_partition(request, records, topic, partition)
        if error is not None:
            return error
    return None


def refusal_of_records(request: ProduceRequest, data: bytes, records: PartitionRecords) -> KafkaError | None:
    """Returns the first error of the table for the records of a partition."""
    for check in RECORDS_CHECKS:
        error = check.refuse_records(request, data, records)
        if error is not None:
            return error
    return None


def refusal_of_batch(
    request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
) -> KafkaError | None:
    """Returns the first error of the table for a batch."""
    for check in BATCH_CHECKS:
        error = check.refuse_batch(request, records, partition, batch)
        if error is not None:
            return error
    return None
