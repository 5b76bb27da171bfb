"""Admission of Produce requests: the table of refusals, and the append to each partition. Compiled.

The result for the :class:`~tidemill.broker.produce_codec.PartitionRecords` of a partition is one of these:

======================  ======================================================================================
PartitionResponse       an error, or success for an empty message set, of which nothing is appended
BatchAppend             a validated batch of message format v2
MessageSetAppend        a checked message set of format v0 or v1
BatchValidation         a batch whose validation would block the event loop
RecordsConversion       records whose conversion to the format of the topic would block it
WrapperCompression      a wrapper of format v0 whose compression would block it
======================  ======================================================================================

The last three are costly: :class:`~tidemill.broker.produce_handler.BackgroundPreparation` replaces each by
one of the others.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.broker.produce_codec import (
    BY_ID,
    PartitionRecords,
    PartitionResponse,
    ProduceRequest,
    error_response,
)
from tidemill.broker.rejected_batches import RETRIED, RejectedBatches
from tidemill.log.log import AppendResult
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.model.system_interfaces import Clock
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, ZSTD, Batch, parse_batch
from tidemill.records.batch_validation import is_costly, validate
from tidemill.records.format_conversion import for_storage, is_costly_for_storage
from tidemill.records.message_set import MessageSet
from tidemill.replication.hosted_topics import TopicEntry, TopicTable
from tidemill.replication.partition import Partition

ONE_BATCH_FROM: Final = 3
"""From this version on a request has one batch of format v2 for a partition, and before it a message set."""
ZSTD_FROM: Final = 7
WRAPPER_BYTES_MAX: Final = 16 * 1024
"""The largest message set that the event loop compresses into a wrapper of format v0."""


# Refusals.


class AdmissionCheck:
    """A reason to refuse records."""

    name: ClassVar[str] = ""


class RequestCheck(AdmissionCheck):
    """A reason to refuse all partitions of a request."""

    def refuse_request(self, request: ProduceRequest) -> KafkaError | None:
        """Returns the error of all partitions of ``request``; None admits it."""
        raise NotImplementedError


class PartitionCheck(AdmissionCheck):
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


class BatchCheck(AdmissionCheck):
    """A reason to refuse a batch, from version 3 on. The header of the batch is parsed."""

    def refuse_batch(self, request: ProduceRequest, batch: Batch) -> KafkaError | None:
        """Returns the error of a batch; None admits it."""
        raise NotImplementedError


class TransactionCheck(RequestCheck):
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


class AcksCheck(RequestCheck):
    """``acks`` is -1, 0 or 1."""

    name = "acks"

    def refuse_request(self, request: ProduceRequest) -> KafkaError | None:
        if -1 <= request.acks <= 1:
            return None
        return KafkaError(
            f"acks={request.acks} is not one of -1 (all), 0 and 1", ErrorCode.INVALID_REQUIRED_ACKS
        )


class UnknownPartitionCheck(PartitionCheck):
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


class InternalTopicCheck(PartitionCheck):
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


class LeaderCheck(PartitionCheck):
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


class ZstdCheck(BatchCheck):
    """Clients of the request's version know zstd."""

    name = "zstd"

    def refuse_batch(self, request: ProduceRequest, batch: Batch) -> KafkaError | None:
        if batch.codec != ZSTD or request.version >= ZSTD_FROM:
            return None
        return KafkaError(
            f"zstd in Produce version {request.version}: it is supported from version {ZSTD_FROM} on",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


CHECKS: Final[list[AdmissionCheck]] = [
    TransactionCheck(),
    AcksCheck(),
    UnknownPartitionCheck(),
    InternalTopicCheck(),
    LeaderCheck(),
    ZstdCheck(),
]
"""All refusals, in the order of their precedence: the first error is the response.

The checks of a request come before those of its partitions, and these before those of a partition's batch.

To add a refusal (by access rules, a quota or a size), write a subclass of
:class:`RequestCheck`, :class:`PartitionCheck` or :class:`BatchCheck`, and add it here, before the checks that
it precedes. What it needs of the request becomes a field of
:class:`~tidemill.broker.produce_codec.ProduceRequest`.
"""
REQUEST_CHECKS: Final[list[RequestCheck]] = [one for one in CHECKS if isinstance(one, RequestCheck)]
PARTITION_CHECKS: Final[list[PartitionCheck]] = [one for one in CHECKS if isinstance(one, PartitionCheck)]
BATCH_CHECKS: Final[list[BatchCheck]] = [one for one in CHECKS if isinstance(one, BatchCheck)]


# Admitted partitions.


class PartitionAppend:
    """The records to append to a partition.

    Not acyclic: it refers to the partition, which refers to delayed requests.
    """

    def __init__(self, records: PartitionRecords, partition: Partition) -> None:
        self.records: Final = records
        self.partition: Final = partition


class ReadyAppend(PartitionAppend):
    """Records that are checked and have the format of the topic."""

    def append(self, acks: i32, now_ms: i64) -> AppendResult:
        """Appends the records; raises KafkaError as :meth:`Partition.append`."""
        raise NotImplementedError


@mypyc_attr(free_list_len=1)
class BatchAppend(ReadyAppend):
    """A validated batch."""

    def __init__(self, records: PartitionRecords, partition: Partition, batch: Batch) -> None:
        super().__init__(records, partition)
        self.batch: Final = batch

    def append(self, acks: i32, now_ms: i64) -> AppendResult:
        return self.partition.append(self.batch, acks, now_ms)


class MessageSetAppend(ReadyAppend):
    """A checked message set, for a topic of format v0 or v1."""

    def __init__(self, records: PartitionRecords, partition: Partition, messages: MessageSet) -> None:
        super().__init__(records, partition)
        self.messages: Final = messages

    def append(self, acks: i32, now_ms: i64) -> AppendResult:
        return self.partition.append_messages(self.messages, acks, now_ms)


class CostlyAppend(PartitionAppend):
    """Records that must be prepared first, because that would block the event loop."""


class BatchValidation(CostlyAppend):
    """A batch to validate."""

    def __init__(self, records: PartitionRecords, partition: Partition, batch: Batch) -> None:
        super().__init__(records, partition)
        self.batch: Final = batch


class RecordsConversion(CostlyAppend):
    """Records of the frame ``data`` to check and to convert to the format of the topic."""

    def __init__(self, records: PartitionRecords, partition: Partition, data: bytes) -> None:
        super().__init__(records, partition)
        self.data: Final = data


class WrapperCompression(CostlyAppend):
    """A checked message set to compress into a wrapper of format v0.

    The compressed messages contain their offsets, so the wrapper is valid for one log end only.
    """

    def __init__(
        self, records: PartitionRecords, partition: Partition, messages: MessageSet, unpacked: bytes
    ) -> None:
        super().__init__(records, partition)
        self.messages: Final = messages
        self.unpacked: Final = unpacked


AdmittedPartition: TypeAlias = PartitionResponse | PartitionAppend


def append_of_stored(
    records: PartitionRecords, partition: Partition, data: bytes, stored: Batch | MessageSet
) -> PartitionAppend:
    """Returns the append of ``stored``, to which ``records`` of the frame ``data`` were converted.

    Counts the records as converted if their format has changed.
    """
    magic: i64 = stored.magic
    if i64(data[records.start + MAGIC]) != magic:
        partition.produce_conversions += stored.record_count
    if isinstance(stored, Batch):
        return BatchAppend(records, partition, stored)
    unpacked = stored.unpacked
    if unpacked is not None and len(unpacked) > WRAPPER_BYTES_MAX:
        return WrapperCompression(records, partition, stored, unpacked)
    return MessageSetAppend(records, partition, stored)


def is_immediate(admitted: list[AdmittedPartition]) -> bool:
    """Whether all records can be appended now.

    Otherwise a partition is costly, or its log end is reserved for a wrapper that is being compressed.
    """
    for one in admitted:
        if isinstance(one, PartitionAppend) and (one.partition.reserved or isinstance(one, CostlyAppend)):
            return False
    return True


class Admission:
    """Admits the partitions of decoded requests, or refuses them."""

    def __init__(self, topics: TopicTable, clock: Clock, rejected: RejectedBatches) -> None:
        self.topics = topics
        self.clock = clock
        self.rejected = rejected

    def admit(self, request: ProduceRequest, data: bytes, now_ms: i64) -> list[AdmittedPartition]:
        """Returns the result for each partition of ``request``, in the same order.

        ``data`` is the frame of the request.
        """
        admitted: list[AdmittedPartition] = []
        error = refusal_of_request(request)
        topics = self.topics.by_id if request.version >= BY_ID else self.topics.by_name
        for topic in request.topics:
            entry = topics.get(topic.key)
            for records in topic.partitions:
                if error is not None:
                    admitted.append(error_response(records.index, error))
                else:
                    admitted.append(self.admit_partition(request, data, records, entry, now_ms))
        return admitted

    def admit_partition(
        self,
        request: ProduceRequest,
        data: bytes,
        records: PartitionRecords,
        topic: TopicEntry | None,
        now_ms: i64,
    ) -> AdmittedPartition:
        """Returns the result for one partition."""
        partition = None if topic is None else topic.partition(records.index)
        error = refusal_of_partition(request, records, topic, partition)
        if error is not None:
            self.record_rejected(request, data, records, partition, error)
            return error_response(records.index, error)
        if partition is None:
            raise RuntimeError(f"a partition without a replica here was admitted: {records.index}")
        try:
            return admit_records(request, data, records, partition, now_ms)
        except KafkaError as problem:
            return error_response(records.index, problem)

    def record_rejected(
        self,
        request: ProduceRequest,
        data: bytes,
        records: PartitionRecords,
        partition: Partition | None,
        error: KafkaError,
    ) -> None:
        """Records the rejected batch of a partition, so that no later batch is stored before it."""
        if request.version < ONE_BATCH_FROM or error.code not in RETRIED:
            return
        try:
            batch = only_batch(data, records.start, records.end)
        except KafkaError:
            return
        self.rejected.record(records, partition, batch, error, self.clock.monotonic_ms())


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


def refusal_of_batch(request: ProduceRequest, batch: Batch) -> KafkaError | None:
    """Returns the first error of the table for a batch."""
    for check in BATCH_CHECKS:
        error = check.refuse_batch(request, batch)
        if error is not None:
            return error
    return None


def admit_records(
    request: ProduceRequest, data: bytes, records: PartitionRecords, partition: Partition, now_ms: i64
) -> AdmittedPartition:
    """Returns the result for the records of an admitted partition. Raises KafkaError for invalid records."""
    storage = partition.storage
    if request.version >= ONE_BATCH_FROM:
        batch = only_batch(data, records.start, records.end)
        error = refusal_of_batch(request, batch)
        if error is not None:
            return error_response(records.index, error)
        if storage.as_produced:
            if is_costly(batch):
                return BatchValidation(records, partition, batch)
            return BatchAppend(records, partition, validate(batch, partition.limits, now_ms))
    elif records.start == records.end:
        # An empty message set was never an error: Kafka returns offset -1.
        return PartitionResponse(records.index)
    if is_costly_for_storage(data, records.start, records.end, storage.magic, storage.codec):
        return RecordsConversion(records, partition, data)
    stored = for_storage(
        data,
        records.start,
        records.end,
        storage.magic,
        storage.codec,
        partition.limits,
        now_ms,
        storage.append_time,
        storage.level,
    )
    return append_of_stored(records, partition, data, stored)


def only_batch(data: bytes, start: i64, end: i64) -> Batch:
    """Returns the batch between ``start`` and ``end``; raises KafkaError unless there is exactly one."""
    if end == start:
        raise InvalidRecord("no records: from version 3 on a Produce request has one batch for a partition")
    if end - start > MAGIC and data[start + MAGIC] != CURRENT_MAGIC:
        raise InvalidRecord(
            f"a batch of message format {data[start + MAGIC]}: from version 3 on a Produce request has"
            " format 2"
        )
    batch = parse_batch(data, start, end)
    if batch.size != end - start:
        raise InvalidRecord(
            f"{end - start} bytes of records hold more than one batch (the first has {batch.size} bytes)"
        )
    return batch
