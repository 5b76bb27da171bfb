"""Transactions that nobody ended, as Kafka's coordinator noted them in ``__transaction_state``.

The last record of a transactional id says how far its transaction is; a record without a value, that there is
none. What a crash left unfinished at the end of a log is passed over, and so are damaged batches, and the
rest of a file where no batch is found any more; those are told.

Source: Apache Kafka, ``TransactionLog.scala``, ``TransactionState.java``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemill.interchange.decoders import TransactionLogKey, TransactionLogValue
from tidemill.interchange.directories import Found, FoundPartition
from tidemill.log.names import LOG, OFFSET_DIGITS, offset_of
from tidemill.log.scan import BatchScan
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.ports import Files
from tidemill.records.batch import check_crc, parse_batch
from tidemill.records.reader import read_records
from tidemill.wire.schema import decode

TOPIC: Final = "__transaction_state"
OPEN: Final = {1: "ongoing", 2: "being committed", 3: "being aborted"}
"""States in which markers are still to be written."""
BEING_ABORTED: Final = 3
VERSION_BYTES: Final = 2


class OpenTransaction(NamedTuple):
    """A transaction that was not ended: its id, how far it is, and where its records are."""

    transactional_id: str
    state: str
    timeout_ms: int
    partitions: list[str]
    producer_id: int
    is_aborted: bool
    """Its coordinator had decided that: markers may be in some of the partitions, and say so."""


def open_transactions(files: Files, found: Found, damage: list[str]) -> list[OpenTransaction]:
    """Those of all transactional ids whose coordinator was the broker of these directories.

    ``damage`` is told what of the coordinator's notes cannot be read; the rest is.
    """
    last: dict[str, TransactionLogValue | None] = {}
    for directory in found.directories:
        for key, partition in sorted(directory.partitions.items()):
            if key.topic == TOPIC:
                for record_key, record_value in _records(files, partition, directory.clean, damage):
                    _take(last, record_key, record_value)
    return [
        OpenTransaction(
            name,
            OPEN[value.transaction_status],
            value.transaction_timeout_ms,
            [f"{one.topic}-{number}" for one in value.transaction_partitions for number in one.partition_ids],
            value.producer_id,
            value.transaction_status == BEING_ABORTED,
        )
        for name, value in sorted(last.items())
        if value is not None and value.transaction_status in OPEN and value.transaction_partitions
    ]


def _take(last: dict[str, TransactionLogValue | None], key: bytes | None, value: bytes | None) -> None:
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
        return  # of a later Kafka, or damaged: the check of the log says so


def _records(
    files: Files, partition: FoundPartition, is_clean: bool, damage: list[str]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    bases = sorted(base for name in files.list(partition.path) if (base := offset_of(name, LOG)) >= 0)
    for base in bases:
        path = f"{partition.path}/{base:0{OFFSET_DIGITS}d}{LOG}"
        file = files.open(path, read_only=True)
        scan = BatchScan(file, 0, file.size())
        try:
            while scan.step():
                data, at = scan.whole()
                try:
                    batch = parse_batch(data, at, at + scan.size)
                    check_crc(batch)
                    records = read_records(batch)
                except KafkaError as problem:
                    damage.append(_unknown(path, f"the batch at byte {scan.position}", str(problem), "it"))
                    continue
                for record in records:
                    yield record.key, record.value
            if scan.fault and (is_clean or base != bases[-1]):
                what = f"what begins at byte {scan.position}"
                damage.append(_unknown(path, what, scan.fault, "what lies there"))
        finally:
            file.close()


def _unknown(path: str, what: str, problem: str, it: str) -> str:
    return f"{path}: {what} cannot be read ({problem}): whether {it} tells of open transactions is not known"
