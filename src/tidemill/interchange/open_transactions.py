"""Finds open transactions, which Kafka's coordinator records in ``__transaction_state``.

The last record of a transactional id has the state of its transaction; a record without a value means that
there is none. An incomplete batch that a crash left at the end of a log is skipped. Damaged batches, and the
rest of a file without further batches, are skipped and reported.

Source: Apache Kafka, ``TransactionLog.scala``, ``TransactionState.java``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemill.interchange.decoders import TransactionLogKey, TransactionLogValue
from tidemill.interchange.directories import BrokerDirectories, PartitionDirectory
from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import LOG, OFFSET_DIGITS, offset_of
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.system_interfaces import Files
from tidemill.records.batch import parse_batch
from tidemill.records.record_reader import read_stored
from tidemill.wire.codec import VERSION_BYTES, decode

TOPIC: Final = "__transaction_state"
OPEN: Final = {1: "ongoing", 2: "being committed", 3: "being aborted"}
"""States in which markers are still missing."""
BEING_ABORTED: Final = 3


class OpenTransaction(NamedTuple):
    """An open transaction: its transactional id, its state, and the partitions of its records."""

    transactional_id: str
    state: str
    timeout_ms: int
    partitions: list[str]
    producer_id: int
    is_aborted: bool
    """Whether its coordinator had decided to abort it: some partitions may have abort markers already."""


def open_transactions(
    files: Files, found: BrokerDirectories, damage: list[str], *, unpacked_bytes_max: int
) -> list[OpenTransaction]:
    """Returns the open transactions whose coordinator was the broker of these directories.

    Appends to ``damage`` the records of the coordinator that cannot be read; reads the rest.
    """
    last: dict[str, TransactionLogValue | None] = {}
    for directory in found.directories:
        for key, partition in sorted(directory.partitions.items()):
            if key.topic == TOPIC:
                records = _records(files, partition, directory.clean, damage, unpacked_bytes_max)
                for record_key, record_value in records:
                    _apply_record(last, record_key, record_value)
    return [
        OpenTransaction(
            name,
            OPEN[value.transaction_status],
            value.transaction_timeout_ms,
            [
                f"{transaction_partition.topic}-{number}"
                for transaction_partition in value.transaction_partitions
                for number in transaction_partition.partition_ids
            ],
            value.producer_id,
            value.transaction_status == BEING_ABORTED,
        )
        for name, value in sorted(last.items())
        if value is not None and value.transaction_status in OPEN and value.transaction_partitions
    ]


def _apply_record(
    last: dict[str, TransactionLogValue | None], key: bytes | None, value: bytes | None
) -> None:
    try:
        if key is None or int.from_bytes(key[:VERSION_BYTES], "big") != 0:
            return
        name = decode(TransactionLogKey, 0, key, VERSION_BYTES).transactional_id
        if value is None:
            last[name] = None
            return
        version = int.from_bytes(value[:VERSION_BYTES], "big")
        last[name] = decode(TransactionLogValue, version, value, VERSION_BYTES)
    except ProtocolError:
        return  # from a later Kafka, or damaged: the check of the log reports it


def _records(
    files: Files,
    partition: PartitionDirectory,
    is_clean: bool,
    damage: list[str],
    unpacked_bytes_max: int,
) -> Iterator[tuple[bytes | None, bytes | None]]:
    bases = sorted(base for name in files.list(partition.path) if (base := offset_of(name, LOG)) >= 0)
    for base in bases:
        path = f"{partition.path}/{base:0{OFFSET_DIGITS}d}{LOG}"
        with files.open(path, read_only=True) as file:
            scan = BatchScan(file, 0, file.size())
            while scan.step():
                data, at = scan.whole()
                try:
                    records = read_stored(parse_batch(data, at, at + scan.size), True, unpacked_bytes_max)
                except KafkaError as problem:
                    damage.append(_unreadable(path, f"the batch at byte {scan.position}", str(problem)))
                    continue
                for record in records:
                    yield record.key, record.value
            if scan.fault and (is_clean or base != bases[-1]):
                what = f"the part from byte {scan.position} on"
                damage.append(_unreadable(path, what, scan.fault))


def _unreadable(path: str, description: str, problem: str) -> str:
    return f"{path}: {description} cannot be read ({problem}): whether it has open transactions is unknown"
