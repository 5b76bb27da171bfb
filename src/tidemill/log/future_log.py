"""The future replica of a partition, which moves it to another data directory while it is in use.

1. ``<destination>/<topic>-<partition>.<32 hex>-future`` is created and filled batch by batch, as on a
   follower. A stop or crash interrupts this; the next start continues. If the current log was truncated
   meanwhile, the future log is truncated to their common end (:mod:`tidemill.log.future_log_history`).
2. When little is missing, the future log is synced, its offsets are written to the destination's checkpoints,
   and the file ``moved-to`` in the current directory names the destination, synced. The file is removed if
   the move is cancelled.
3. The rest is copied and the ``-future`` directory is renamed to the partition's name in one turn of the
   event loop without appends. DeleteRecords may have advanced the log start offset since step 2: the
   destination's checkpoint has the new one before this turn.
4. The destination is synced; then the old directory is renamed (``-delete``) and removed later.

Before step 3 the old directory holds the partition, afterwards the new one: a start that finds both, the old
one with ``moved-to``, removes the old one. At this moment both hold the same records, so a crash on either
side of the rename is safe.

Source: KIP-113; Apache Kafka, ``ReplicaAlterLogDirsThread.java``, ``LogManager.scala``
(``replaceCurrentWithFutureLog``), which has no such file, and stops at a start that finds both.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tidemill.log.errors import storage_error
from tidemill.log.file_names import (
    MOVED_TO,
    RECORDS_LOST,
    future_directory,
    partition_directory,
)
from tidemill.log.future_log_history import empty, truncate_to_common_end
from tidemill.log.log import Log
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.log.log_segment import Slice
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition

UNKNOWN: Final = -1
"""As a number of truncations: the current log may have been truncated since the copy began."""


class FutureLog:
    """One move of a partition. The methods run on the event loop unless they say otherwise."""

    def __init__(
        self, logs: LogManager, source: Log, future: Log, target: DataDirectory, *, is_found: bool = False
    ) -> None:
        """``is_found``: an earlier process began the copy; the current log may have been truncated since."""
        self.logs = logs
        self.key: TopicPartition = source.topic_partition
        self.source = source
        self.future = future
        self.target = target
        self._truncations = UNKNOWN if is_found else int(source.truncations)
        self._is_distrusted = False

    def is_cancelled(self) -> bool:
        """Whether the move is over: the topic was deleted, a directory failed, or the move was cancelled."""
        return self.future.closed or self.logs.logs.get(self.key) is not self.source

    @property
    def is_done(self) -> bool:
        """Whether the future log has replaced the current one."""
        return self.logs.logs.get(self.key) is self.future

    @property
    def may_have_diverged(self) -> bool:
        """Whether the future log may have records that the current one does not have."""
        source, future = self.source, self.future
        return bool(
            self._is_distrusted
            or source.truncations != self._truncations
            or source.start_offset > future.end_offset
            or future.end_offset > source.end_offset
        )

    @property
    def has_failed_sync(self) -> bool:
        """Whether a sync of the future log failed, and it was not emptied since."""
        return self._is_distrusted

    @property
    def needs_sync(self) -> bool:
        """Whether the future log has an unsynced truncation, which must be on disk before further appends."""
        return bool(self.future.truncations != self.future.durability.truncations_synced)

    @property
    def is_overstated(self) -> bool:
        """Whether the future log was truncated below its recovery point in the checkpoint."""
        return self.target.overstates(self.future)

    @property
    def is_start_written(self) -> bool:
        """Whether the destination's checkpoint has the log start offset of the current log."""
        return self.target.start_offsets.written(self.key) >= self.source.start_offset

    @property
    def lag(self) -> int:
        """The number of offsets that the future log lacks."""
        return max(0, int(self.source.end_offset - self.future.end_offset))

    def next_slice(self, bytes_max: int, now_ms: int) -> Slice | None:
        """The next slice to copy; None if the future log is complete. Raises StorageError."""
        source, future = self.source, self.future
        if self.may_have_diverged:
            self._truncate_to_common_end(now_ms)
        future.advance_start(min(int(source.start_offset), int(future.end_offset)))
        future.set_epoch_before_start(source.leader_epochs.epoch_of(int(future.start_offset) - 1))
        offset = max(int(future.end_offset), int(source.start_offset))
        if offset >= source.end_offset:
            return None
        piece = source.read(offset, bytes_max, source.end_offset, True)
        if piece is None:
            # Compaction removed all records at the end of the last closed segment: the future log's next
            # segment begins at the same offset.
            future.roll_over_gap(source.end_offset, now_ms)
        return piece

    def _truncate_to_common_end(self, now_ms: int) -> None:
        """Truncates the future log to its common end with the current log."""
        if self._is_distrusted:
            empty(self.future, self.source, now_ms)
        else:
            truncate_to_common_end(self.future, self.source, now_ms)
        self._truncations = int(self.source.truncations)
        self._is_distrusted = False

    def mark_sync_failed(self) -> None:
        """Records that a sync of the future log failed: the system may have dropped unwritten data."""
        self._is_distrusted = True

    def copy_slice(self, piece: Slice, now_ms: int) -> int:
        """Copies one slice, in any thread. Returns its size in bytes. Raises StorageError, CorruptMessage.

        Returns 0 if the current log was truncated since: the next slice begins at the common end.
        """
        try:
            data = piece.read()
        except OSError as problem:
            raise storage_error("read", self.source.directory, problem) from problem
        if self.source.truncations != self._truncations:
            # The slice may hold other records by now, which do not follow those of the future log.
            return 0
        before = self.future.end_offset
        self.future.append_as_follower(data, now_ms)
        # Nobody reads the future log. The partition knows which markers lie above the high watermark.
        self.future.producer_state.transactions.clear_ended()
        if self.future.end_offset == before:
            raise StorageError(f"{self.source.directory}: no complete batch at offset {before}")
        return len(data)

    def checkpoints(self) -> list[OffsetCheckpoint]:
        """The checkpoints that the destination needs before the future log replaces the current one."""
        return self.logs.log_checkpoints([self.target])

    def mark_moved(self) -> None:
        """Records durably in the current directory that the move is decided. May run in any thread.

        Raises StorageError.
        """
        path = f"{self.source.directory}/{MOVED_TO}"
        try:
            self.logs.files.replace(path, f"{self.target.path}\n".encode())
        except OSError as problem:
            raise storage_error("write", path, problem) from problem

    def replace_current(self, now_ms: int, flush: bool) -> Log:
        """Replaces the current log with the future log, which is equal. ``flush``: sync the future log first.

        Raises StorageError, and then changes nothing.
        """
        source, future, logs = self.source, self.future, self.logs
        if source.end_offset != future.end_offset or self.is_cancelled():
            raise StorageError(f"{self.key}: the copy in {future.directory} is not complete")
        if future.topic_id != source.topic_id:
            # A power failure lost the file with the topic id, which nothing else would restore for the future
            # log.
            logs.assign_topic_id(future, source.topic_id)
        future.set_config(source.config)
        future.producer_state.transactions.copy_ended(source.producer_state.transactions)
        if flush or source.recovery_point > future.recovery_point:
            try:
                future.flush(now_ms)
            except StorageError:
                self.mark_sync_failed()
                raise
        old = logs.dirs.directory_of(source)
        path = self.target.file(partition_directory(self.key))
        noted_loss = f"{future.directory}/{RECORDS_LOST}"
        is_loss_unheeded = self.key in logs.dirs.damaged or old.may_have_lost or old.is_outdated
        try:
            if is_loss_unheeded:
                # The next start must report the loss too, and would find no damage in the future log.
                logs.files.replace(noted_loss, b"")
            logs.files.rename(future.directory, path)
        except OSError as problem:
            if is_loss_unheeded:
                with contextlib.suppress(OSError):
                    logs.files.remove(noted_loss)
            raise storage_error("rename", future.directory, problem) from problem
        if is_loss_unheeded:
            logs.dirs.damaged.add(self.key)
        relocate(future, path)
        old.remove(self.key)
        old.leaving[self.key] = source
        self.target.remove(self.key, is_copy=True)
        self.target.add(future)
        # A leader knows its epoch before its first record: followers of earlier epochs ask for it.
        future.leader_epochs.copy_empty_epochs(source.leader_epochs, int(source.end_offset))
        future.clean_end = source.clean_end
        logs.logs[self.key] = future
        source.closed = True
        source.release()
        return source

    def sync_target(self) -> None:
        """Syncs the rename, in any thread. Raises StorageError."""
        try:
            self.logs.files.sync_directory(self.target.path)
        except OSError as problem:
            raise storage_error("sync", self.target.path, problem) from problem

    def abandon(self) -> None:
        """Removes the file written by :meth:`mark_moved` if the current log stays in use.

        Otherwise a start without the destination would not open the current log.
        """
        if self.logs.logs.get(self.key) is self.source:
            remove_move_mark(self.logs.files, self.source.directory)

    def remove_unsynced(self, now_ms: int) -> None:
        """Removes a future log whose sync failed, so that no later move continues it. Raises StorageError."""
        if self._is_distrusted and not self.future.closed and not self.is_done:
            cancel_move(self.logs, self.target, self.key, now_ms)

    def delete_source(self, now_ms: int) -> None:
        """Removes the old directory after ``file.delete.delay.ms``. Raises StorageError.

        If the partition was deleted meanwhile, its directory was removed with it, and another may have its
        name.
        """
        old = self.logs.dirs.directory_of(self.source)
        if old.leaving.get(self.key) is self.source:
            self.logs.discard(self.source, now_ms)
            old.remove_leaving(self.key)


def relocate(log: Log, directory: str) -> None:
    """Updates a log after a rename of its directory."""
    before = len(log.directory)
    log.segment_list.removals.relocate(log.directory, directory)
    log.segment_list.directory = directory
    log.leader_epochs.path = directory + log.leader_epochs.path[before:]
    log.durability.parent_unsynced = True
    for segment in log.segments:
        segment.directory = directory
        segment.path = directory + segment.path[before:]
        segment.index.path = directory + segment.index.path[before:]
        segment.time_index.path = directory + segment.time_index.path[before:]


def begin_move(logs: LogManager, key: TopicPartition, path: str, now_ms: int) -> FutureLog | None:
    """Starts to move a partition to the data directory at ``path``. Returns None if it is already there.

    Cancels a move to another directory; continues one to the same. Raises KafkaError (LOG_DIR_NOT_FOUND,
    KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE, INVALID_TOPIC_EXCEPTION).
    """
    name = future_directory(key)
    target = logs.dirs.at_path(path)
    if target is None or not path.startswith("/"):
        known = ", ".join(directory.path for directory in logs.dirs.all)
        raise KafkaError(
            f"{path} is not a data directory of this broker: log.dirs has {known}",
            ErrorCode.LOG_DIR_NOT_FOUND,
        )
    if target.failure:
        raise StorageError(f"{key} cannot be moved to {path}: {target.failure}")
    source = logs.logs.get(key)
    if target.path in logs.cordoned and (source is None or logs.dirs.directory_of(source) is not target):
        raise KafkaError(
            f"{key} cannot be moved to {path}: the directory is in cordoned.log.dirs",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    for directory in logs.dirs.all:
        if directory is not target and key in directory.arriving:
            cancel_move(logs, directory, key, now_ms)
    if source is None:
        logs.prefer(key, target.path)
        raise KafkaError(f"{key} has no replica here", ErrorCode.REPLICA_NOT_AVAILABLE)
    if logs.dirs.directory_of(source) is target:
        return None
    future = target.arriving.get(key)
    if future is not None:
        return FutureLog(logs, source, future, target, is_found=True)
    future = logs.make_log(target.file(name), key, source.topic_id, source.config, now_ms)
    target.add(future, is_copy=True)
    return FutureLog(logs, source, future, target)


def cancel_move(logs: LogManager, directory: DataDirectory, key: TopicPartition, now_ms: int) -> None:
    """Cancels a move into ``directory``. Raises StorageError if the future log cannot be renamed."""
    future = directory.remove(key, is_copy=True)
    if future is None:
        return
    future.closed = True
    future.release()
    current = logs.logs.get(key)
    if current is not None:
        remove_move_mark(logs.files, current.directory)
    logs.discard(future, now_ms)


def remove_move_mark(files: Files, path: str) -> None:
    """Removes the file ``moved-to`` of the log at ``path``."""
    with contextlib.suppress(OSError):
        files.remove(f"{path}/{MOVED_TO}")


def interrupted_moves(logs: LogManager) -> list[FutureLog]:
    """The moves that the last stop interrupted."""
    return [
        FutureLog(logs, logs.logs[key], future, directory, is_found=True)
        for directory in logs.dirs.working
        for key, future in directory.arriving.items()
        if key in logs.logs
    ]
