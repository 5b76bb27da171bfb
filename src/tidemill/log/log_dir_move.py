"""Moves a partition to another data directory by a future log, while the partition is in use.

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

from tidemill.log.errors import StorageErrors, storage_error
from tidemill.log.file_names import (
    MOVED_TO,
    RECORDS_LOST,
    future_directory,
    partition_directory,
)
from tidemill.log.future_log_history import truncate_to_common_end
from tidemill.log.log import Log
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.log.log_segment import LogRange
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition


class LogDirMove:
    """The move of one partition. The methods run on the event loop unless they say otherwise."""

    def __init__(
        self, logs: LogManager, current: Log, future: Log, target: DataDirectory, *, is_found: bool = False
    ) -> None:
        """``is_found``: an earlier process began the copy; the current log may have been truncated since."""
        self.logs = logs
        self.key: TopicPartition = current.topic_partition
        self.current_log = current
        self.future_log = future
        self.target = target
        self._truncations = None if is_found else int(current.truncations)
        """The truncations of the current log when the copy began; None if there may be others since then."""
        self.has_failed_sync = False
        """Whether a sync of the future log failed, and it was not emptied since."""

    def is_cancelled(self) -> bool:
        """Whether the move is over: the topic was deleted, a directory failed, or the move was cancelled."""
        return self.future_log.closed or self.logs.logs.get(self.key) is not self.current_log

    @property
    def is_done(self) -> bool:
        """Whether the future log has replaced the current one."""
        return self.logs.logs.get(self.key) is self.future_log

    @property
    def may_have_diverged(self) -> bool:
        """Whether the future log may have records that the current one does not have."""
        current, future = self.current_log, self.future_log
        return bool(
            self.has_failed_sync
            or current.truncations != self._truncations
            or current.start_offset > future.end_offset
            or future.end_offset > current.end_offset
        )

    @property
    def needs_sync(self) -> bool:
        """Whether the future log has an unsynced truncation, which must be on disk before further appends."""
        return bool(self.future_log.truncations != self.future_log.durability.truncations_synced)

    @property
    def is_overstated(self) -> bool:
        """Whether the future log was truncated below its recovery point in the checkpoint."""
        return self.target.overstates(self.future_log)

    @property
    def is_start_written(self) -> bool:
        """Whether the destination's checkpoint has the log start offset of the current log."""
        return self.target.start_offsets.written(self.key) >= self.current_log.start_offset

    @property
    def lag(self) -> int:
        """The number of offsets that the future log lacks."""
        return max(0, int(self.current_log.end_offset - self.future_log.end_offset))

    def next_range(self, bytes_max: int, now_ms: int) -> LogRange | None:
        """The next range to copy; None if the future log is complete. Raises StorageError."""
        current, future = self.current_log, self.future_log
        if self.may_have_diverged:
            self._truncate_to_common_end(now_ms)
        future.advance_start(min(int(current.start_offset), int(future.end_offset)))
        future.set_epoch_before_start(current.leader_epochs.epoch_of(int(future.start_offset) - 1))
        offset = max(int(future.end_offset), int(current.start_offset))
        if offset >= current.end_offset:
            return None
        piece = current.read(offset, bytes_max, current.end_offset, True)
        if piece is None:
            # Compaction removed all records at the end of the last closed segment: the future log's next
            # segment begins at the same offset.
            future.roll_over_gap(current.end_offset, now_ms)
        return piece

    def _truncate_to_common_end(self, now_ms: int) -> None:
        """Truncates the future log to its common end with the current log."""
        if self.has_failed_sync:
            self.future_log.truncate_fully_and_start_at(self.current_log.start_offset, now_ms)
        else:
            truncate_to_common_end(self.future_log, self.current_log, now_ms)
        self._truncations = int(self.current_log.truncations)
        self.has_failed_sync = False

    def mark_sync_failed(self) -> None:
        """Records that a sync of the future log failed: the system may have dropped unwritten data."""
        self.has_failed_sync = True

    def copy_range(self, piece: LogRange, now_ms: int) -> int:
        """Copies one range, in any thread. Returns its size in bytes. Raises StorageError, CorruptMessage.

        Returns 0 if the current log was truncated since: the next range begins at the common end.
        """
        with StorageErrors("read", self.current_log.directory):
            data = piece.read()
        if self.current_log.truncations != self._truncations:
            # The range may hold other records by now, which do not follow those of the future log.
            return 0
        before = self.future_log.end_offset
        self.future_log.append_copied(data, now_ms)
        # Nobody reads the future log. The partition knows which markers lie above the high watermark.
        self.future_log.producer_state.transactions.clear_ended()
        if self.future_log.end_offset == before:
            raise StorageError(f"{self.current_log.directory}: no complete batch at offset {before}")
        return len(data)

    def checkpoints(self) -> list[OffsetCheckpoint]:
        """The checkpoints that the destination needs before the future log replaces the current one."""
        return self.logs.log_checkpoints([self.target])

    def mark_moved(self) -> None:
        """Records durably in the current directory that the move is decided. May run in any thread.

        Raises StorageError.
        """
        path = f"{self.current_log.directory}/{MOVED_TO}"
        with StorageErrors("write", path):
            self.logs.files.replace(path, f"{self.target.path}\n".encode())

    def replace_current(self, now_ms: int, flush: bool) -> Log:
        """Replaces the current log with the future log, which is equal. ``flush``: sync the future log first.

        Raises StorageError, and then changes nothing.
        """
        current, future, logs = self.current_log, self.future_log, self.logs
        if current.end_offset != future.end_offset or self.is_cancelled():
            raise StorageError(f"{self.key}: the copy in {future.directory} is not complete")
        if future.topic_id != current.topic_id:
            # A power failure lost the file with the topic id, which nothing else would restore for the future
            # log.
            logs.assign_topic_id(future, current.topic_id)
        future.set_config(current.config)
        future.producer_state.transactions.copy_ended(current.producer_state.transactions)
        if flush or current.recovery_point > future.recovery_point:
            try:
                future.flush(now_ms)
            except StorageError:
                self.mark_sync_failed()
                raise
        old = logs.dirs.directory_of(current)
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
        old.replaced_logs[self.key] = current
        self.target.remove(self.key, is_future=True)
        self.target.add(future)
        # A leader knows its epoch before its first record: followers of earlier epochs ask for it.
        future.leader_epochs.copy_empty_epochs(current.leader_epochs, int(current.end_offset))
        future.clean_end = current.clean_end
        logs.logs[self.key] = future
        current.closed = True
        current.close_handlers()
        return current

    def sync_target(self) -> None:
        """Syncs the rename, in any thread. Raises StorageError."""
        with StorageErrors("sync", self.target.path):
            self.logs.files.sync_directory(self.target.path)

    def abandon(self) -> None:
        """Removes the file written by :meth:`mark_moved` if the current log stays in use.

        Otherwise a start without the destination would not open the current log.
        """
        if self.logs.logs.get(self.key) is self.current_log:
            remove_move_mark(self.logs.files, self.current_log.directory)

    def remove_unsynced(self, now_ms: int) -> None:
        """Removes a future log whose sync failed, so that no later move continues it. Raises StorageError."""
        if self.has_failed_sync and not self.future_log.closed and not self.is_done:
            cancel_move(self.logs, self.target, self.key, now_ms)

    def delete_replaced(self, now_ms: int) -> None:
        """Removes the old directory after ``file.delete.delay.ms``. Raises StorageError.

        If the partition was deleted meanwhile, its directory was removed with it, and another may have its
        name.
        """
        old = self.logs.dirs.directory_of(self.current_log)
        if old.replaced_logs.get(self.key) is self.current_log:
            self.logs.discard(self.current_log, now_ms)
            old.remove_replaced(self.key)


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


def begin_move(logs: LogManager, key: TopicPartition, path: str, now_ms: int) -> LogDirMove | None:
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
    if target.is_offline:
        raise StorageError(f"{key} cannot be moved to {path}: {target.offline_reason}")
    current = logs.logs.get(key)
    if target.path in logs.cordoned and (current is None or logs.dirs.directory_of(current) is not target):
        raise KafkaError(
            f"{key} cannot be moved to {path}: the directory is in cordoned.log.dirs",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    for directory in logs.dirs.all:
        if directory is not target and key in directory.future_logs:
            cancel_move(logs, directory, key, now_ms)
    if current is None:
        logs.set_preferred_directory(key, target.path)
        raise KafkaError(f"{key} has no replica here", ErrorCode.REPLICA_NOT_AVAILABLE)
    if logs.dirs.directory_of(current) is target:
        return None
    future = target.future_logs.get(key)
    if future is not None:
        return LogDirMove(logs, current, future, target, is_found=True)
    path = target.file(name)
    future = logs.make_log(path, key, current.topic_id, current.config, now_ms, is_future=True)
    target.add(future, is_future=True)
    return LogDirMove(logs, current, future, target)


def cancel_move(logs: LogManager, directory: DataDirectory, key: TopicPartition, now_ms: int) -> None:
    """Cancels a move into ``directory``. Raises StorageError if the future log cannot be renamed."""
    future = directory.remove(key, is_future=True)
    if future is None:
        return
    future.closed = True
    future.close_handlers()
    current = logs.logs.get(key)
    if current is not None:
        remove_move_mark(logs.files, current.directory)
    logs.discard(future, now_ms)


def remove_move_mark(files: Files, path: str) -> None:
    """Removes the file ``moved-to`` of the log at ``path``."""
    with contextlib.suppress(OSError):
        files.remove(f"{path}/{MOVED_TO}")


def interrupted_moves(logs: LogManager) -> list[LogDirMove]:
    """The moves that the last stop interrupted."""
    return [
        LogDirMove(logs, logs.logs[key], future, directory, is_found=True)
        for directory in logs.dirs.online
        for key, future in directory.future_logs.items()
        if key in logs.logs
    ]
