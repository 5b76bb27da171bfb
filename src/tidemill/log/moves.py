"""A partition on its way from one data directory of the broker to another, while it is written and read.

1. ``<destination>/<topic>-<partition>.<32 hex>-future`` is made, and filled with what the partition holds,
   batch by batch, as a follower would. That takes as long as it takes; a stop or crash interrupts it, and the
   next start goes on with it. Where the partition was cut meanwhile the copy is cut to what both have in
   common (:mod:`tidemill.log.common_history`).
2. When little is missing the copy is synced, its offsets are in the destination's checkpoints, and the file
   ``moved-to`` in the partition's directory names the destination, synced. It is taken away when the move
   does not come about after all.
3. The rest is copied, the ``-future`` directory gets the partition's own name, and the broker goes on with
   it: one turn of the loop, in which nothing is appended. DeleteRecords may have moved the start of the log
   since 2: it is in the destination's checkpoint before this turn.
4. The destination is synced; then the old directory is renamed (``-delete``) and removed later.

Before 3 the old directory is the partition. After it the new one is: a start that finds both, the old one
with ``moved-to``, removes the old one. Both hold the same records at that moment, so that it does not matter
on which side of it a crash falls.

Source: KIP-113; Apache Kafka, ``ReplicaAlterLogDirsThread.java``, ``LogManager.scala``
(``replaceCurrentWithFutureLog``), which has no such file, and stops at a start that finds both.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tidemill.log.common_history import empty, rejoin
from tidemill.log.directories import DataDirectory
from tidemill.log.errors import storage_error
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.names import (
    MOVED_TO,
    RECORDS_LOST,
    future_directory,
    partition_directory,
)
from tidemill.log.offset_checkpoint import OffsetCheckpoint
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition

UNKNOWN: Final = -1
"""As a number of truncations: the partition may have been cut since the copy was begun."""


class Move:
    """One move. Its methods run on the loop, but for those that say so."""

    def __init__(
        self, logs: LogManager, source: Log, future: Log, target: DataDirectory, *, is_found: bool = False
    ) -> None:
        """``is_found``: an earlier move began the copy, and the partition may have been cut since."""
        self.logs = logs
        self.key: TopicPartition = source.topic_partition
        self.source = source
        self.future = future
        self.target = target
        self._truncations = UNKNOWN if is_found else int(source.truncations)
        self._is_distrusted = False

    def is_off(self) -> bool:
        """Whether there is nothing to move: the topic is gone, a directory failed, it was called off."""
        return self.future.closed or self.logs.logs.get(self.key) is not self.source

    @property
    def is_done(self) -> bool:
        """Whether the copy is the partition now."""
        return self.logs.logs.get(self.key) is self.future

    @property
    def may_differ(self) -> bool:
        """Whether what the copy has may be no part of the partition: that was cut, or lost its beginning."""
        source, future = self.source, self.future
        return bool(
            self._is_distrusted
            or source.truncations != self._truncations
            or source.start_offset > future.end_offset
            or future.end_offset > source.end_offset
        )

    @property
    def is_distrusted(self) -> bool:
        """Whether a sync of the copy failed, and the copy was not emptied since."""
        return self._is_distrusted

    @property
    def needs_sync(self) -> bool:
        """Whether the copy was cut, which must be on the disk before other records come in that place."""
        return bool(self.future.truncations != self.future.truncations_synced)

    @property
    def is_overstated(self) -> bool:
        """Whether the copy was cut, so that its recovery point must be written down before more comes."""
        return self.target.overstates(self.future)

    @property
    def is_start_written(self) -> bool:
        """Whether a start that finds the copy in the partition's place begins it where this log begins."""
        return self.target.start_offsets.written(self.key) >= self.source.start_offset

    @property
    def lag(self) -> int:
        """Offsets that the copy lacks."""
        return max(0, int(self.source.end_offset - self.future.end_offset))

    def next_piece(self, bytes_max: int, now_ms: int) -> Slice | None:
        """What is to be copied next; None when the copy has everything. Raises StorageError."""
        source, future = self.source, self.future
        if self.may_differ:
            self._rejoin(now_ms)
        future.advance_start(min(int(source.start_offset), int(future.end_offset)))
        future.begin_after(source.leader_epochs.epoch_of(int(future.start_offset) - 1))
        offset = max(int(future.end_offset), int(source.start_offset))
        if offset >= source.end_offset:
            return None
        piece = source.read(offset, bytes_max, source.end_offset, True)
        if piece is None:
            # Compaction left nothing of the last closed segment: the copy's next one begins where it does.
            future.roll_over_gap(source.end_offset, now_ms)
        return piece

    def _rejoin(self, now_ms: int) -> None:
        """Cuts the copy to what the partition has, too."""
        if self._is_distrusted:
            empty(self.future, self.source, now_ms)
        else:
            rejoin(self.future, self.source, now_ms)
        self._truncations = int(self.source.truncations)
        self._is_distrusted = False

    def distrust(self) -> None:
        """A sync of the copy failed: the system may have dropped what was to be written."""
        self._is_distrusted = True

    def store(self, piece: Slice, now_ms: int) -> int:
        """Copies one piece, in any thread; its bytes. Raises StorageError, CorruptMessage.

        0 where the partition was cut since: the next piece begins where both have the same.
        """
        try:
            data = piece.read()
        except OSError as problem:
            raise storage_error("read", self.source.directory, problem) from problem
        if self.source.truncations != self._truncations:
            # Other records may be in this place by now, and they do not follow what the copy has.
            return 0
        before = self.future.end_offset
        self.future.append_as_follower(data, now_ms)
        # Nobody reads the copy; the partition knows which markers lie above the high watermark.
        self.future.producer_state.transactions.forget_ended()
        if self.future.end_offset == before:
            raise StorageError(f"{self.source.directory}: no whole batch was found at offset {before}")
        return len(data)

    def checkpoints(self) -> list[OffsetCheckpoint]:
        """The offsets that the destination must know before the copy is the partition."""
        return self.logs.log_checkpoints([self.target])

    def mark(self) -> None:
        """Notes in the old directory, durably, that the move is decided; in any thread.

        Raises StorageError.
        """
        path = f"{self.source.directory}/{MOVED_TO}"
        try:
            self.logs.files.replace(path, f"{self.target.path}\n".encode())
        except OSError as problem:
            raise storage_error("write", path, problem) from problem

    def swap(self, now_ms: int, flush: bool) -> Log:
        """Makes the copy the partition; both are equal now. ``flush``: the copy must be on the disk first.

        Raises StorageError; everything is as before then.
        """
        source, future, logs = self.source, self.future, self.logs
        if source.end_offset != future.end_offset or self.is_off():
            raise StorageError(f"{self.key}: the copy in {future.directory} is not complete")
        if future.topic_id != source.topic_id:
            # A power cut took the file that says it: nobody else gives a copy the id of its topic again.
            logs.assign_topic_id(future, source.topic_id)
        future.set_config(source.config)
        future.producer_state.transactions.take_ended(source.producer_state.transactions)
        if flush or source.recovery_point > future.recovery_point:
            try:
                future.flush(now_ms)
            except StorageError:
                self.distrust()
                raise
        old = logs.directory_of(source)
        path = self.target.file(partition_directory(self.key))
        noted_loss = f"{future.directory}/{RECORDS_LOST}"
        is_loss_unheeded = self.key in logs.damaged or old.may_have_lost or old.is_outdated
        try:
            if is_loss_unheeded:
                # The next start must report it, too, and would find nothing wrong with the copy.
                logs.files.replace(noted_loss, b"")
            logs.files.rename(future.directory, path)
        except OSError as problem:
            if is_loss_unheeded:
                with contextlib.suppress(OSError):
                    logs.files.remove(noted_loss)
            raise storage_error("rename", future.directory, problem) from problem
        if is_loss_unheeded:
            logs.damaged.add(self.key)
        relocate(future, path)
        old.remove(self.key)
        old.leaving[self.key] = source
        self.target.remove(self.key, is_copy=True)
        self.target.add(future)
        # A leader knows its epoch also before the first record of it: followers of earlier ones ask for it.
        future.leader_epochs.take_empty(source.leader_epochs, int(source.end_offset))
        future.clean_end = source.clean_end
        logs.logs[self.key] = future
        source.closed = True
        source.release()
        return source

    def sync_target(self) -> None:
        """Brings the new name to the disk, in any thread. Raises StorageError."""
        try:
            self.logs.files.sync_directory(self.target.path)
        except OSError as problem:
            raise storage_error("sync", self.target.path, problem) from problem

    def give_up(self) -> None:
        """Takes the mark of :meth:`mark` away, where the partition stays where it is.

        With it a start that misses the destination would not believe what is here.
        """
        if self.logs.logs.get(self.key) is self.source:
            unmark(self.logs.files, self.source.directory)

    def drop_distrusted(self, now_ms: int) -> None:
        """Removes a copy whose sync failed, so that no later move continues it. Raises StorageError."""
        if self._is_distrusted and not self.future.closed and not self.is_done:
            call_off(self.logs, self.target, self.key, now_ms)

    def retire(self, now_ms: int) -> None:
        """Lets the old directory go, after ``file.delete.delay.ms``. Raises StorageError.

        It went with the partition where that was deleted meanwhile: another may have the name by now.
        """
        old = self.logs.directory_of(self.source)
        if old.leaving.get(self.key) is self.source:
            self.logs.discard(self.source, now_ms)
            old.remove_left(self.key)


def relocate(log: Log, directory: str) -> None:
    """Takes in that the directory of a log was renamed."""
    before = len(log.directory)
    log.removals.relocate(log.directory, directory)
    log.directory = directory
    log.leader_epochs.path = directory + log.leader_epochs.path[before:]
    log.parent_unsynced = True
    for segment in log.segments:
        segment.directory = directory
        segment.path = directory + segment.path[before:]
        segment.index.path = directory + segment.index.path[before:]
        segment.time_index.path = directory + segment.time_index.path[before:]


def begin_move(logs: LogManager, key: TopicPartition, path: str, now_ms: int) -> Move | None:
    """Begins to move a partition to the data directory at ``path``; None when it lies there already.

    A move to another directory that is under way is called off; one to the same goes on as it is. Raises
    KafkaError (LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE, INVALID_TOPIC_EXCEPTION).
    """
    name = future_directory(key)
    target = logs.at_path(path)
    if target is None or not path.startswith("/"):
        known = ", ".join(directory.path for directory in logs.directories)
        raise KafkaError(
            f"{path} is no data directory of this broker: log.dirs has {known}", ErrorCode.LOG_DIR_NOT_FOUND
        )
    if target.failure:
        raise StorageError(f"{key} cannot be moved to {path}: {target.failure}")
    source = logs.logs.get(key)
    if target.path in logs.cordoned and (source is None or logs.directory_of(source) is not target):
        raise KafkaError(
            f"{key} cannot be moved to {path}: cordoned.log.dirs names it",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    for directory in logs.directories:
        if directory is not target and key in directory.arriving:
            call_off(logs, directory, key, now_ms)
    if source is None:
        logs.prefer(key, target.path)
        raise KafkaError(f"{key} has no replica here", ErrorCode.REPLICA_NOT_AVAILABLE)
    if logs.directory_of(source) is target:
        return None
    future = target.arriving.get(key)
    if future is not None:
        return Move(logs, source, future, target, is_found=True)
    future = logs.make_log(target.file(name), key, source.topic_id, source.config, now_ms)
    target.add(future, is_copy=True)
    return Move(logs, source, future, target)


def call_off(logs: LogManager, directory: DataDirectory, key: TopicPartition, now_ms: int) -> None:
    """Gives up a move into ``directory``. Raises StorageError when the copy cannot be renamed."""
    future = directory.remove(key, is_copy=True)
    if future is None:
        return
    future.closed = True
    future.release()
    current = logs.logs.get(key)
    if current is not None:
        unmark(logs.files, current.directory)
    logs.discard(future, now_ms)


def unmark(files: Files, path: str) -> None:
    """The log at ``path`` is not being moved any more."""
    with contextlib.suppress(OSError):
        files.remove(f"{path}/{MOVED_TO}")


def interrupted_moves(logs: LogManager) -> list[Move]:
    """The moves that a stop interrupted."""
    return [
        Move(logs, logs.logs[key], future, directory, is_found=True)
        for directory in logs.working
        for key, future in directory.arriving.items()
        if key in logs.logs
    ]
