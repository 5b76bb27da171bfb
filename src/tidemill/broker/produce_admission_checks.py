"""The refusals of Produce requests, which are checked before any record is read. Compiled.

The five functions ``refusal_of_...`` are the table of all refusals, in the order of their precedence: the
first error is the response.

====================  ================================  ==================================================
function              is called for                     and knows
====================  ================================  ==================================================
refusal_of_request    each request                      the decoded request
refusal_of_partition  each partition                    the topic and the partition, if they exist here
refusal_of_records    each partition of this broker     the bytes of the records
refusal_of_batch      each batch of message format v2   the header of the batch, the limits of its topic
refusal_of_mirrored   each partition that is a mirror   the request, if it is from a copy of the source
====================  ================================  ==================================================

A header that cannot be parsed is refused before the checks of the batch. The table has no check that needs
more than the header of a batch. The validation of the records checks the checksum, the records, and the size
of each entry of a message set of format v0 or v1 (:mod:`tidemill.records.batch_validation`,
:mod:`tidemill.records.message_set_validation`). The conversion checks the size with which converted records
would be stored (:mod:`tidemill.records.format_conversion`). The append checks the sequence of the producer,
the number of in-sync replicas, and ``segment.bytes``.

To add a refusal (by tenant, access rules or a quota), write a function that returns its error, and call it in
one of the five before the checks that it precedes. The fields of the request that it needs become fields of
:class:`~tidemill.broker.produce_codec.ProduceRequest`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.broker.produce_codec import BY_ID, PartitionRecords, ProduceRequest
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, ZSTD, Batch
from tidemill.records.format_conversion import check_can_be_old, several_batches_error
from tidemill.records.mirrored_batch import MIRRORED
from tidemill.replication.hosted_topics import TopicEntry
from tidemill.replication.partition import Partition

ONE_BATCH_FROM: Final = 3
"""From this version on a request has one batch of format v2 for a partition, and before it a message set."""
ZSTD_FROM: Final = 7


def transaction_error(request: ProduceRequest) -> KafkaError | None:
    """Returns the error of a batch that belongs to a transaction of no transactional id."""
    if not request.is_transactional or request.transactional_id:
        return None
    return KafkaError(
        "a batch belongs to a transaction, and the request has no transactional id: send both, or none",
        ErrorCode.INVALID_TXN_STATE,
    )


def acks_error(request: ProduceRequest) -> KafkaError | None:
    """Returns an error unless ``acks`` is -1, 0 or 1."""
    if -1 <= request.acks <= 1:
        return None
    return KafkaError(f"acks={request.acks} is not one of -1 (all), 0 and 1", ErrorCode.INVALID_REQUIRED_ACKS)


def unknown_partition_error(
    request: ProduceRequest, records: PartitionRecords, topic: TopicEntry | None, partition: Partition | None
) -> KafkaError | None:
    """Returns an error unless this broker has a replica of the partition."""
    if partition is not None:
        return None
    by_id = request.version >= BY_ID
    if by_id and topic is None:
        return KafkaError(f"no topic has the id {records.topic.hex()}", ErrorCode.UNKNOWN_TOPIC_ID)
    name = records.topic.hex() if by_id else records.topic.decode("utf-8", "replace")
    return KafkaError(f"{name}-{records.index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def internal_topic_error(topic: TopicEntry | None) -> KafkaError | None:
    """Returns the error of an internal topic, where a client could forge committed offsets."""
    if topic is None or not topic.internal:
        return None
    return KafkaError(
        f"{topic.name} is an internal topic, which clients cannot write to",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    )


def mirror_error(partition: Partition | None) -> KafkaError | None:
    """Returns the error of a mirror, which accepts only batches of its source."""
    if partition is None or not partition.is_mirror:
        return None
    return partition.mirror_error()


def mirrored_batch_error(partition: Partition, batch: Batch) -> KafkaError | None:
    """Returns the error of a batch of the source of a mirror, for a topic that is no mirror any more."""
    if batch.leader_epoch > MIRRORED:
        return None
    return KafkaError(
        f"a batch of another cluster with its offsets, and {partition.topic} is not a mirror: stop the job"
        " that mirrors it, or leave the topic out of it",
        ErrorCode.POLICY_VIOLATION,
    )


def leader_error(partition: Partition | None) -> KafkaError | None:
    """Returns an error unless this broker leads the partition, and its log is writable."""
    if partition is None:
        return None
    try:
        partition.check_leader(-1)
    except KafkaError as error:
        return error
    return None


def no_records_error(records: PartitionRecords) -> KafkaError | None:
    """Returns the error of a request of version 3 or later that has no records for a partition."""
    if records.start < records.end:
        return None
    return InvalidRecord("no records: from version 3 on a Produce request has one batch for a partition")


def message_format_error(
    request: ProduceRequest, data: bytes, records: PartitionRecords
) -> KafkaError | None:
    """Returns an error for no records, and for records of another format than v2, from version 3 on."""
    if request.version < ONE_BATCH_FROM:
        return None
    size: i64 = records.end - records.start
    if size == 0:
        return no_records_error(records)
    if size > MAGIC and data[records.start + MAGIC] != CURRENT_MAGIC:
        return InvalidRecord(
            f"a batch of message format {data[records.start + MAGIC]}: from version 3 on a Produce"
            " request has format 2"
        )
    return None


def single_batch_error(records: PartitionRecords, batch: Batch) -> KafkaError | None:
    """Returns an error unless the batch is the only one of the records."""
    size: i64 = records.end - records.start
    return None if batch.size == size else several_batches_error(batch, size)


def zstd_error(request: ProduceRequest, batch: Batch) -> KafkaError | None:
    """Returns the error of a batch in zstd, which clients of the request's version do not know."""
    if batch.codec != ZSTD or request.version >= ZSTD_FROM or request.version < ONE_BATCH_FROM:
        return None
    return KafkaError(
        f"zstd in Produce version {request.version}: it is supported from version {ZSTD_FROM} on",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    )


def topic_format_error(partition: Partition, batch: Batch) -> KafkaError | None:
    """Returns the error of a batch with features that the message format of the topic does not have."""
    message_format = partition.message_format
    if message_format.magic == CURRENT_MAGIC:
        return None
    try:
        check_can_be_old(batch, message_format.codec, message_format.magic)
    except KafkaError as error:
        return error
    return None


def size_error(partition: Partition, batch: Batch) -> KafkaError | None:
    """Returns the error of a batch that, as sent, is larger than ``max.message.bytes`` of its topic."""
    bytes_max: i64 = partition.validation_limits.max_batch_bytes
    if batch.size <= bytes_max:
        return None
    return KafkaError(
        f"the batch has {batch.size} bytes, this topic accepts {bytes_max} "
        "(max.message.bytes): lower batch.size of the producer, or raise the topic's limit",
        ErrorCode.MESSAGE_TOO_LARGE,
    )


def refusal_of_request(request: ProduceRequest) -> KafkaError | None:
    """Returns the error of all partitions of ``request``; None admits it."""
    return transaction_error(request) or acks_error(request)


def refusal_of_partition(
    request: ProduceRequest, records: PartitionRecords, topic: TopicEntry | None, partition: Partition | None
) -> KafkaError | None:
    """Returns the error of one partition; None admits it.

    ``topic`` is None for an unknown topic, ``partition`` for a partition without a replica here.
    """
    return (
        unknown_partition_error(request, records, topic, partition)
        or internal_topic_error(topic)
        or mirror_error(partition)
        or leader_error(partition)
    )


def refusal_of_records(request: ProduceRequest, data: bytes, records: PartitionRecords) -> KafkaError | None:
    """Returns the error of the records in the frame ``data``; None admits them."""
    return message_format_error(request, data, records)


def refusal_of_batch(
    request: ProduceRequest, records: PartitionRecords, partition: Partition, batch: Batch
) -> KafkaError | None:
    """Returns the error of the batch with which ``records`` begin; None admits it."""
    return (
        mirrored_batch_error(partition, batch)
        or single_batch_error(records, batch)
        or zstd_error(request, batch)
        or topic_format_error(partition, batch)
        or size_error(partition, batch)
    )


def refusal_of_mirrored(
    request: ProduceRequest, records: PartitionRecords, topic: TopicEntry | None, partition: Partition
) -> KafkaError | None:
    """Returns the error of batches of the source of a mirror; None admits them.

    They belong to transactions of another cluster: the request has no transactional id. The append checks
    the batches.
    """
    return (
        acks_error(request)
        or internal_topic_error(topic)
        or leader_error(partition)
        or no_records_error(records)
    )
