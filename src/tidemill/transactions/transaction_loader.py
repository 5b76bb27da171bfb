"""Loads ``__transaction_state`` into the state machine of its transactional ids."""

from __future__ import annotations

import logging

from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordinator_runtime.log_loader import LogLoader
from tidemill.records.batch import Batch
from tidemill.records.legacy_formats import Entry
from tidemill.transactions.transaction_log import TransactionRecord, decode_record
from tidemill.transactions.transaction_state_manager import TransactionStateManager

logger = logging.getLogger("tidemill.transactions")


def transaction_loader(
    machine: TransactionStateManager, partition: int, unpacked_bytes_max: int
) -> LogLoader[TransactionRecord]:
    """Returns the loader of a partition."""
    return LogLoader(
        topic=TRANSACTION_TOPIC,
        partition=partition,
        decode=_decode,
        apply=machine.replay,
        unpacked_bytes_max=unpacked_bytes_max,
        logger=logger,
    )


def _decode(stored: Batch | Entry, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    if isinstance(stored, Batch) and stored.is_control:
        return None
    return decode_record(key, value)
