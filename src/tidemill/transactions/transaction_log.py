"""The records of ``__transaction_state``, byte for byte as Apache Kafka writes and reads them.

A key and a value each begin with their version (INT16); the fields follow in the protocol's types,
big-endian.

========================  ====================================================================================
key                       after the version
========================  ====================================================================================
0  transactional id       transactional id STRING
others                    records of later versions of Kafka: ignored
========================  ====================================================================================

========================  ====================================================================================
value                     after the version
========================  ====================================================================================
0                         producer id INT64, producer epoch INT16, timeout INT32, state INT8 (see
                          :class:`~tidemill.transactions.transaction_metadata.TransactionState`), partitions
                          NULLABLE ARRAY of (topic STRING, partitions ARRAY of INT32), last update INT64,
                          start INT64
1                         as 0 in compact types, then tagged fields; tag 0: previous producer id INT64, tag 1:
                          next producer id INT64, tag 2: transaction version of the client INT16, tag 3: next
                          producer epoch INT16 (Kafka 4.3 reads it, and does not use it)
========================  ====================================================================================

Times are milliseconds. The partitions are null in the state Empty. A null value is a tombstone: the
transactional id has expired. The writer uses version 1 from the feature ``transaction.version`` 1 on.

Source: ``TransactionLogKey.json``, ``TransactionLogValue.json`` among Apache Kafka's message definitions;
``TransactionLog.java``; KIP-890, KIP-915.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemill.model.errors import CorruptMessage, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.transactions.transaction_metadata import TransactionMetadata, TransactionState
from tidemill.wire.codec import VERSION_BYTES, decode, encode_versioned, version_of
from tidemill.wire.schema import INT8, INT16, INT32, INT64, STRING, Struct, field

KEY_VERSION: Final = 0
FLEXIBLE_VERSION: Final = 1


class TransactionLogKey(Struct, versions="0"):
    """The key of a transactional id's record."""

    transactional_id: str = field(STRING)


class TransactionPartitions(Struct):
    """The partitions of a topic in a transaction."""

    topic: str = field(STRING)
    partition_ids: list[int] = field([INT32])


class TransactionLogValue(Struct, versions="0-1", flexible="1+"):
    """The state of a transactional id."""

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, "1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = field(INT64, "1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = field(INT16)
    next_producer_epoch: int = field(INT16, "1+", tag=3, default=-1, ignorable=True)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: list[TransactionPartitions] | None = field([TransactionPartitions], nullable="0+")
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, "1+", tag=2, default=0, ignorable=True)


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None for a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None
    version: int = FLEXIBLE_VERSION
    """The version of the value."""

    def key_bytes(self) -> bytes:
        """The record's key."""
        return encode_versioned(TransactionLogKey(transactional_id=self.transactional_id), KEY_VERSION)

    def value_bytes(self) -> bytes | None:
        """The record's value; None for a tombstone."""
        metadata = self.metadata
        if metadata is None:
            return None
        partitions: dict[str, list[int]] = {}
        for topic, partition in sorted(metadata.partitions):
            partitions.setdefault(topic, []).append(partition)
        value = TransactionLogValue(
            producer_id=metadata.producer_id,
            previous_producer_id=metadata.previous_producer_id,
            next_producer_id=metadata.next_producer_id,
            next_producer_epoch=metadata.next_producer_epoch,
            producer_epoch=metadata.producer_epoch,
            transaction_timeout_ms=metadata.timeout_ms,
            transaction_status=int(metadata.state),
            transaction_partitions=None
            if metadata.state is TransactionState.EMPTY
            else [
                TransactionPartitions(topic=topic, partition_ids=numbers)
                for topic, numbers in partitions.items()
            ],
            transaction_last_update_timestamp_ms=metadata.update_ms,
            transaction_start_timestamp_ms=metadata.start_ms,
            client_transaction_version=metadata.client_version,
        )
        return encode_versioned(value, self.version)


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Decodes a record of the topic; returns None for a record of a later version of Kafka.

    Raises :class:`CorruptMessage` when the bytes match none of the layouts above.
    """
    if key is None or len(key) < VERSION_BYTES:
        raise CorruptMessage(
            f"a record of __transaction_state has the key {key!r}, which contains no version"
        )
    if version_of(key) != KEY_VERSION:
        return None
    try:
        name = decode(TransactionLogKey, KEY_VERSION, key, VERSION_BYTES).transactional_id
        if value is None:
            return TransactionRecord(name, None)
        version = version_of(value)
        message = decode(TransactionLogValue, version, value, VERSION_BYTES)
        return TransactionRecord(name, _metadata(message), version)
    except (ProtocolError, ValueError) as problem:
        raise CorruptMessage(f"a record of __transaction_state with key {key!r}: {problem}") from problem


def _metadata(value: TransactionLogValue) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        partitions=frozenset(
            TopicPartition(one.topic, partition)
            for one in value.transaction_partitions or ()
            for partition in one.partition_ids
        ),
        update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_version=value.client_transaction_version,
    )
