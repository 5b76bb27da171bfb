"""Finds the producer ids of transactional ids, for an import without metadata.

Kafka's metadata has the next producer id. Without it, the first start takes ids above those in the logs of
partitions (:mod:`tidemill.controller.producer_id_blocks`). A transactional id may keep a producer id for
longer than any log, in ``__transaction_state``: another producer must not get it.
"""

from __future__ import annotations

from tidemill.controller.producer_id_blocks import SKIPPED_IDS
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.interchange.directories import BrokerDirectories
from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import LOG, offset_of
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Files
from tidemill.records.batch import parse_batch
from tidemill.records.record_reader import read_stored
from tidemill.transactions.transaction_log import decode_record
from tidemill.transactions.transaction_metadata import NO_PRODUCER_ID


def next_producer_id(files: Files, found: BrokerDirectories, *, unpacked_bytes_max: int) -> int:
    """Returns an id after those of all transactional ids; 0 without any.

    As after the loss of a store, it skips the ids that other producers may have.
    Records that cannot be read are skipped: the coordinator does not load them either, and reports them.
    """
    largest = NO_PRODUCER_ID
    for key, partition in found.partitions.items():
        if key.topic != TRANSACTION_TOPIC:
            continue
        for name in files.list(partition.path):
            if offset_of(name, LOG) >= 0:
                in_segment = _largest_in(files, f"{partition.path}/{name}", unpacked_bytes_max)
                largest = max(largest, in_segment)
    return 0 if largest == NO_PRODUCER_ID else largest + 1 + SKIPPED_IDS


def _largest_in(files: Files, path: str, unpacked_bytes_max: int) -> int:
    largest = NO_PRODUCER_ID
    with files.open(path, read_only=True) as file:
        scan = BatchScan(file, 0, file.size())
        while scan.step():
            data, at = scan.whole()
            try:
                records = read_stored(parse_batch(data, at, at + scan.size), True, unpacked_bytes_max)
            except KafkaError:
                continue
            for record in records:
                largest = max(largest, _largest_of(record.key, record.value))
    return largest


def _largest_of(key: bytes | None, value: bytes | None) -> int:
    try:
        record = decode_record(key, value)
    except KafkaError:
        return NO_PRODUCER_ID
    if record is None or record.metadata is None:
        return NO_PRODUCER_ID
    metadata = record.metadata
    return max(metadata.producer_id, metadata.previous_producer_id, metadata.next_producer_id)
