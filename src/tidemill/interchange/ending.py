"""Ends transactions that nobody else will end, where an import is told that they count as committed.

Each gets its marker, as a coordinator would have appended it: then readers of committed records get past it,
here as with Kafka. One that its coordinator was about to abort is aborted in the rest of its partitions, too:
its producer was told so, and may have sent the records again. A log whose broker did not stop in order is
checked before that.

Source: Apache Kafka, ``TransactionMarkerChannelManager.scala``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress

from tidemill.interchange.directories import Found, FoundDirectory
from tidemill.interchange.transactions import OpenTransaction
from tidemill.log.checkpoints import CheckpointDamaged, read_offsets
from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.names import LOG_STARTS, RECOVERY_POINTS, parse_partition_directory
from tidemill.log.recovery import open_log
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker


def commit_open(
    files: Files,
    found: Found,
    topics: Container[str],
    transactions: Iterable[OpenTransaction],
    now_ms: int,
) -> list[str]:
    """Commits what is open in those partitions of ``transactions`` that are of ``topics``; what was done.

    Raises StorageError where a log cannot be opened or written; called again it goes on.
    """
    transactions = list(transactions)
    aborted = {one.producer_id for one in transactions if one.is_aborted}
    named = {parse_partition_directory(name) for one in transactions for name in one.partitions}
    wanted = {key for key in named if key is not None and key.topic in topics}
    done = []
    for directory in found.directories:
        for key in sorted(wanted & directory.partitions.keys()):
            log = _opened(files, directory, key, now_ms)
            for producer_id, offset in _end(log, aborted, now_ms):
                how = "aborted" if producer_id in aborted else "committed"
                done.append(f"{key}: what producer {producer_id} wrote from offset {offset} on is {how}")
            log.close(now_ms)
    return done


def _opened(files: Files, directory: FoundDirectory, key: TopicPartition, now_ms: int) -> Log:
    return open_log(
        files,
        directory.partitions[key].path,
        key,
        LogConfig(),
        now_ms=now_ms,
        recovery_point=_offset(files, f"{directory.path}/{RECOVERY_POINTS}", key),
        start_offset=_offset(files, f"{directory.path}/{LOG_STARTS}", key),
        clean=directory.clean,
    )


def _offset(files: Files, path: str, key: TopicPartition) -> int:
    with suppress(CheckpointDamaged):
        return read_offsets(files, path).get(key, 0)
    return 0


def _end(log: Log, aborted: Container[int], now_ms: int) -> list[tuple[int, int]]:
    ended = []
    for entry in log.producers():
        first_offset = int(entry.transaction_first_offset)
        if first_offset < 0:
            continue
        coordinator_epoch = max(int(entry.coordinator_epoch), 0)
        is_committed = int(entry.producer_id) not in aborted
        data = build_end_marker(is_committed, now_ms, entry.producer_id, entry.epoch, coordinator_epoch)
        leader_epoch = max(int(log.leader_epochs.latest), 0)
        log.append([parse_batch(data, 0, len(data))], leader_epoch, now_ms)
        ended.append((int(entry.producer_id), first_offset))
    return ended
