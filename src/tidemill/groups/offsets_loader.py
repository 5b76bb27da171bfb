"""Loads ``__consumer_offsets`` into the state machine of its groups.

Offsets of a transaction take effect at its commit marker, and are dropped at an abort marker: see
:mod:`tidemill.groups.transactional_offsets`.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeAlias

from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.coordinator_runtime.log_loader import LogLoader
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import (
    OffsetRecord,
    OffsetsRecord,
    TransactionalOffset,
    decode_record,
)
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import COMMIT, decode_control_record
from tidemill.records.legacy_formats import Entry

logger = logging.getLogger("tidemill.groups")


class TransactionEnd(NamedTuple):
    """The marker of a transaction."""

    producer_id: int
    is_commit: bool


Change: TypeAlias = OffsetsRecord | TransactionEnd


def offsets_loader(
    machine: GroupMetadataManager, partition: int, unpacked_bytes_max: int
) -> LogLoader[Change]:
    """Returns the loader of a partition."""

    def apply(change: Change, now: Now) -> None:
        if isinstance(change, TransactionEnd):
            machine.transaction_ended(change.producer_id, change.is_commit, now)
        else:
            machine.replay(change, now)

    return LogLoader(
        topic=OFFSETS_TOPIC,
        partition=partition,
        decode=_decode,
        apply=apply,
        unpacked_bytes_max=unpacked_bytes_max,
        logger=logger,
    )


def _decode(stored: Batch | Entry, key: bytes | None, value: bytes | None) -> Change | None:
    if isinstance(stored, Entry):
        return decode_record(key, value)
    if stored.is_control:
        kind = decode_control_record(key, value).control_type
        return TransactionEnd(int(stored.producer_id), kind == COMMIT)
    change = decode_record(key, value)
    if stored.is_transactional and isinstance(change, OffsetRecord):
        return TransactionalOffset(int(stored.producer_id), change)
    return change
