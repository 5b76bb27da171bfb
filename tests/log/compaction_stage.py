"""A log that is written and cleaned, and a model of its expected records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from faulty_files import FaultyFiles, Killed
from log_stage import stored

from default_limits import read_stored
from log_start import NOW, open_log
from record_builders import build_batch, build_message_set
from tidemill.log.cleaner import Cleaner
from tidemill.log.cleaner_messages import CleanCounts
from tidemill.log.log import Log
from tidemill.log.log_cleaner_manager import CleanerSettings, candidate, job_for
from tidemill.log.log_config import LogConfig
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.builder import build_end_marker

PARTITION = TopicPartition("t", 0)
SMALL = {"cleanup_policy": ("compact",), "segment_index_bytes": 4096, "index_interval_bytes": 100}

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


class MortalFiles(FaultyFiles):
    """Ends the process before an operation, after ``left`` more operations."""

    left = -1

    def check(self, operation: str, path: str) -> None:
        if self.left == 0:
            raise Killed(f"before {operation} of {path}")
        self.left -= 1
        super().check(operation, path)


def opened(files: Files, directory: str, **options: Any) -> Log:
    """Opens the log in ``directory``; ``settings`` override the small defaults."""
    settings = LogConfig(**{**SMALL, **options.pop("settings", {})})
    return open_log(files, directory, PARTITION, settings, now_ms=NOW, **options)


def write(log: Log, records: Sequence[tuple[int, bytes | None, bytes | None]], **options: Any) -> int:
    """Appends a batch of (timestamp, key, value) as a leader sent it; returns its base offset."""
    base = int(log.end_offset)
    rows = [(timestamp, key, value, None) for timestamp, key, value in records]
    log.append_copied(build_batch(rows, base_offset=base, leader_epoch=0, **options), NOW)
    return base


def put(log: Log, *pairs: tuple[str, str | None], timestamp: int = NOW, **options: Any) -> int:
    """Appends a batch of (key, value) of texts; returns its base offset."""
    rows = [(timestamp, key.encode(), None if value is None else value.encode()) for key, value in pairs]
    return write(log, rows, **options)


def end_transaction(log: Log, producer_id: int, committed: bool) -> int:
    """Appends a marker; returns its offset."""
    offset = int(log.end_offset)
    marker = build_end_marker(committed, NOW, producer_id, 0, 0, leader_epoch=0, base_offset=offset)
    log.append_copied(marker, NOW)
    return offset


def clean(
    log: Log, now_ms: int = NOW, settings: CleanerSettings | None = None, chunk_bytes: int = 4096
) -> CleanCounts:
    """Cleans the log in one process, without the broker's cleaner process."""
    if log.recovery_point < log.active.base_offset:
        sync = log.begin_flush(whole=False)
        sync.run()
        log.finish_flush(sync, now_ms)
    chosen = candidate(log, int(log.end_offset), now_ms)
    job = job_for(chosen, settings or CleanerSettings(1 << 20, 0.9, chunk_bytes), now_ms)
    cleaner = Cleaner(log.segment_list.files, job, lambda count: None)
    with closing(cleaner.run()) as run:
        for group in run:
            swap = log.begin_swap(list(group.old), group.size)
            assert swap is not None
            assert swap.run()
            assert log.finish_swap(swap, now_ms)
    log.clean_end = cleaner.counts.end_offset
    return cleaner.counts


def write_old(
    log: Log,
    magic: int,
    records: Sequence[tuple[int, bytes | None, bytes | None]],
    codec: int = 0,
    append_time_ms: int = -1,
) -> int:
    """Appends messages of format v0 or v1, with a codec as one wrapper; returns the first offset."""
    base = int(log.end_offset)
    data = build_message_set(magic, records, codec, base_offset=base, append_time_ms=append_time_ms)
    log.append_copied(data, NOW)
    return base


def rows(log: Log) -> list[Row]:
    """Returns every record except markers."""
    return [
        (record.offset, record.timestamp, record.key, record.value)
        for one in stored(log)
        if not (isinstance(one, Batch) and one.is_control)
        for record in read_stored(one)
    ]


def values(log: Log) -> dict[str, str | None]:
    """Returns the last value of every key."""
    return {
        (key or b"").decode(): None if value is None else value.decode() for _, _, key, value in rows(log)
    }
