"""Admission of Produce requests: the append to each partition, unless it is refused. Compiled.

The refusals are the table of :mod:`tidemill.broker.produce_admission_checks`. The result for the
:class:`~tidemill.broker.produce_codec.PartitionRecords` of a partition is one of these:

======================  ======================================================================================
Refused                 an error
NothingToAppend         an empty message set
BatchAppend             a validated batch of message format v2
MirroredAppend          batches of the source of a mirror
MessageSetAppend        a checked message set of format v0 or v1
BatchValidation         a batch whose validation would block the event loop
RecordsConversion       records whose conversion to the format of the topic would block it
WrapperCompression      a wrapper of format v0 whose compression would block it
======================  ======================================================================================

The last three are costly: :class:`~tidemill.broker.produce_handler.BackgroundPreparation` makes one of the
others from each, or appends the records.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeGuard

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.broker.produce_admission_checks import (
    ONE_BATCH_FROM,
    refusal_of_batch,
    refusal_of_mirrored,
    refusal_of_partition,
    refusal_of_records,
    refusal_of_request,
)
from tidemill.broker.produce_codec import (
    BY_ID,
    NothingToAppend,
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    Refused,
)
from tidemill.broker.rejected_batches import RETRIED, RejectedBatches
from tidemill.log.log import AppendResult
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Clock
from tidemill.net.peer import Listener
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, Batch, parse_batch
from tidemill.records.batch_validation import is_costly, validate
from tidemill.records.format_conversion import for_storage, is_costly_for_storage
from tidemill.records.message_set import MessageSet
from tidemill.replication.hosted_topics import TopicEntry, TopicTable
from tidemill.replication.partition import Partition

WRAPPER_BYTES_MAX: Final = 16 * 1024
"""The largest message set that the event loop compresses into a wrapper of format v0."""


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


class MirroredAppend(ReadyAppend):
    """Batches of the source of a mirror: the records in the frame ``data``."""

    def __init__(self, records: PartitionRecords, partition: Partition, data: bytes) -> None:
        super().__init__(records, partition)
        self.data: Final = data

    def append(self, acks: i32, now_ms: i64) -> AppendResult:
        records = self.records
        return self.partition.append_mirrored(self.data, records.start, records.end, acks, now_ms)


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


ValidatedPartition: TypeAlias = (
    ReadyAppend | NothingToAppend | Refused | RecordsConversion | WrapperCompression
)
"""The result of an admission after the validation of its batch."""
AdmissionResult: TypeAlias = ValidatedPartition | BatchValidation
PreparedPartition: TypeAlias = ReadyAppend | PartitionResult
"""The records to append to a partition, or its result."""


def append_of_stored(
    records: PartitionRecords, partition: Partition, data: bytes, stored: Batch | MessageSet
) -> ReadyAppend | WrapperCompression:
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


def is_immediate(admitted: list[AdmissionResult]) -> TypeGuard[list[PreparedPartition]]:
    """Whether all records can be appended now.

    Otherwise a partition is costly, or its log end is reserved for a wrapper that is being compressed.
    """
    for one in admitted:
        if isinstance(one, ReadyAppend):
            if one.partition.reserved:
                return False
        elif isinstance(one, CostlyAppend):
            return False
    return True


class Admission:
    """Admits the partitions of decoded requests, or refuses them."""

    def __init__(
        self, topics: TopicTable, clock: Clock, rejected: RejectedBatches, inter_broker_listener: str
    ) -> None:
        self.topics = topics
        self.clock = clock
        self.rejected = rejected
        self.inter_broker_listener = inter_broker_listener
        """The name of the listener that accepts batches of the sources of mirrors."""

    def admit(
        self, request: ProduceRequest, data: bytes, now_ms: i64, listener: Listener
    ) -> list[AdmissionResult]:
        """Returns the result for each partition of ``request``, in the same order.

        ``data`` is the frame of the request, which has arrived at ``listener``.
        """
        admitted: list[AdmissionResult] = []
        error = refusal_of_request(request)
        topics = self.topics.by_id if request.version >= BY_ID else self.topics.by_name
        for topic in request.topics:
            entry = topics.get(topic.key)
            for records in topic.partitions:
                partition = None if entry is None else entry.partition(records.index)
                is_mirror = partition is not None and partition.is_mirror
                if partition is not None and is_mirror and self.is_mirrored(request, listener):
                    admitted.append(admit_mirrored(request, data, records, entry, partition))
                elif (
                    error is not None
                    and not is_mirror
                    and (partition is not None or not self.is_mirrored(request, listener))
                ):
                    # Not for a batch of a mirror's source, which has no transactional id, at a broker that
                    # does not have the partition: the sender must learn that another one leads it.
                    admitted.append(Refused(records.index, error))
                else:
                    admitted.append(self.admit_partition(request, data, records, entry, partition, now_ms))
        return admitted

    def is_mirrored(self, request: ProduceRequest, listener: Listener) -> bool:
        """Whether a request can have batches of the sources of mirrors.

        Only an old client sends a version before 3, and its messages of formats v0 and v1 do not differ from
        those of a source.
        """
        return listener.name == self.inter_broker_listener and request.version >= ONE_BATCH_FROM

    def admit_partition(
        self,
        request: ProduceRequest,
        data: bytes,
        records: PartitionRecords,
        topic: TopicEntry | None,
        partition: Partition | None,
        now_ms: i64,
    ) -> AdmissionResult:
        """Returns the result for one partition."""
        error = refusal_of_partition(request, records, topic, partition)
        if error is not None:
            self.record_rejected(request, data, records, partition, error)
            return Refused(records.index, error)
        if partition is None:
            raise RuntimeError(f"a partition without a replica here was admitted: {records.index}")
        try:
            return admit_records(request, data, records, partition, now_ms)
        except KafkaError as problem:
            return Refused(records.index, problem)

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
            batch = parse_batch(data, records.start, records.end)
        except KafkaError:
            return
        if batch.size != records.end - records.start:
            return
        self.rejected.record(records, partition, batch, error, self.clock.monotonic_ms())


def admit_mirrored(
    request: ProduceRequest,
    data: bytes,
    records: PartitionRecords,
    topic: TopicEntry | None,
    partition: Partition,
) -> AdmissionResult:
    """Returns the result for the batches of the source of a mirror."""
    error = refusal_of_mirrored(request, records, topic, partition)
    if error is not None:
        return Refused(records.index, error)
    return MirroredAppend(records, partition, data)


def admit_records(
    request: ProduceRequest, data: bytes, records: PartitionRecords, partition: Partition, now_ms: i64
) -> AdmissionResult:
    """Returns the result for the records of an admitted partition. Raises KafkaError for invalid records."""
    error = refusal_of_records(request, data, records)
    if error is not None:
        return Refused(records.index, error)
    if records.start == records.end:
        # An empty message set was never an error: Kafka returns offset -1.
        return NothingToAppend(records.index)
    message_format = partition.message_format
    if request.version >= ONE_BATCH_FROM or has_batch(data, records):
        batch = parse_batch(data, records.start, records.end)
        error = refusal_of_batch(request, records, partition, batch)
        if error is not None:
            return Refused(records.index, error)
        if message_format.as_produced:
            if is_costly(batch):
                return BatchValidation(records, partition, batch)
            return BatchAppend(records, partition, validate(batch, partition.validation_limits, now_ms))
    if is_costly_for_storage(data, records.start, records.end, message_format.magic, message_format.codec):
        return RecordsConversion(records, partition, data)
    stored = for_storage(
        data,
        records.start,
        records.end,
        message_format.magic,
        message_format.codec,
        partition.validation_limits,
        now_ms,
        message_format.append_time,
        message_format.level,
    )
    return append_of_stored(records, partition, data, stored)


def has_batch(data: bytes, records: PartitionRecords) -> bool:
    """Whether ``records`` begin with a batch of format v2, and not with an entry of format v0 or v1."""
    return records.end - records.start > MAGIC and data[records.start + MAGIC] >= CURRENT_MAGIC
