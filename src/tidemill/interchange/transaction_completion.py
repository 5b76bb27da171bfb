"""Ends the open transactions of an import with ``--open-as-committed``, which no coordinator will end.

Appends the marker that the coordinator would have appended, so that readers of committed records can read
past the transaction, here and with Kafka. A transaction that its coordinator was about to abort is aborted in
its remaining partitions as well: its producer was notified, and may have sent the records again. A log
without a clean shutdown is recovered first.

Source: Apache Kafka, ``TransactionMarkerChannelManager.scala``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress

from tidemill.interchange.directories import BrokerDirectories, KafkaLogDirectory
from tidemill.interchange.open_transactions import OpenTransaction
from tidemill.log.checkpoint_files import CheckpointDamaged, read_offsets
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.file_names import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, parse_partition_directory
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker


def commit_open(
    files: Files,
    found: BrokerDirectories,
    topics: Container[str],
    transactions: Iterable[OpenTransaction],
    now_ms: int,
    *,
    unpacked_bytes_max: int,
) -> list[str]:
    """Ends ``transactions`` in their partitions of ``topics``.

    Returns a sentence for each, and the warnings of the recovery of their logs.
    Raises StorageError if a log cannot be opened or written; a second call continues.
    """
    transactions = list(transactions)
    aborted = {transaction.producer_id for transaction in transactions if transaction.is_aborted}
    named = {
        parse_partition_directory(name) for transaction in transactions for name in transaction.partitions
    }
    wanted = {key for key in named if key is not None and key.topic in topics}
    done = []
    for directory in found.directories:
        for key in sorted(wanted & directory.partitions.keys()):
            opening = _loader(files, directory, key, now_ms, unpacked_bytes_max)
            log = opening.open()
            done += opening.warnings
            for producer_id, offset in _append_end_markers(log, aborted, now_ms):
                how = "aborted" if producer_id in aborted else "committed"
                done.append(f"{key}: the records of producer {producer_id} from offset {offset} on are {how}")
            log.close(now_ms)
    return done


def _loader(
    files: Files, directory: KafkaLogDirectory, key: TopicPartition, now_ms: int, unpacked_bytes_max: int
) -> LogLoader:
    return LogLoader(
        files,
        directory.partitions[key].path,
        key,
        LogConfig(unpacked_bytes_max=unpacked_bytes_max),
        removals=DelayedFileRemoval(),
        now_ms=now_ms,
        recovery_point=_offset(files, f"{directory.path}/{RECOVERY_POINTS}", key),
        start_offset=_offset(files, f"{directory.path}/{LOG_STARTS}", key),
        high_watermark=_offset(files, f"{directory.path}/{HIGH_WATERMARKS}", key),
        clean=directory.clean,
    )


def _offset(files: Files, path: str, key: TopicPartition) -> int:
    with suppress(CheckpointDamaged):
        return read_offsets(files, path).get(key, 0)
    return 0


def _append_end_markers(log: Log, aborted: Container[int], now_ms: int) -> list[tuple[int, int]]:
    ended = []
    for entry in log.producers():
        first_offset = int(entry.transaction_first_offset)
        if first_offset < 0:
            continue
        coordinator_epoch = max(int(entry.coordinator_epoch), 0)
        is_committed = int(entry.producer_id) not in aborted
        data = build_end_marker(is_committed, now_ms, entry.producer_id, entry.epoch, coordinator_epoch)
        leader_epoch = max(int(log.leader_epochs.latest), 0)
        log.append(parse_batch(data, 0, len(data)), leader_epoch, now_ms)
        ended.append((int(entry.producer_id), first_offset))
    return ended
