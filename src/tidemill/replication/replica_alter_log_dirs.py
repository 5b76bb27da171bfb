"""Moves partitions between data directories in the background (:mod:`tidemill.log.log_dir_move`).

At most ``num.replica.alter.log.dirs.threads`` moves run at once (default: one per data directory); others
wait. Threads copy one range at a time, within ``replica.alter.log.dirs.io.max.bytes.per.second`` for all
moves together. A move without disk space waits, and does not delay others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidemill.log.errors import DiskFull, is_transient
from tidemill.log.log_dir_move import LogDirMove, begin_move, interrupted_moves, remove_move_mark
from tidemill.log.log_manager import LogManager
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import cancel_all
from tidemill.model.types import TopicPartition
from tidemill.replication.checkpoint_writer import Checkpoints
from tidemill.replication.full_disk_reports import FullDiskLog
from tidemill.replication.hosted_topics import TopicTable
from tidemill.replication.log_failure_handler import LogFailureHandler
from tidemill.replication.replication_quota import Turns

logger = logging.getLogger("tidemill.replication")

PIECE_BYTES: Final = 1024 * 1024
"""The number of bytes per copy step; also the limit for the turn of the event loop that replaces the log."""
CATCH_UP_OFFSETS: Final = 64
"""Up to this number of missing offsets are copied on the event loop."""
RETRY_S: Final = 0.05
FULL_RETRY_S: Final = 10.0
"""The delay before a move without disk space is retried."""
RATE_CHECK_S: Final = 1.0
"""A move that waits for its rate checks it again after this time, because it may have changed."""


class ReplicaAlterLogDirs:
    """The moves of one broker. ``bytes_per_second`` may change at any time."""

    def __init__(
        self,
        logs: LogManager,
        topics: TopicTable,
        checkpoints: Checkpoints,
        full_disks: FullDiskLog,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        failures: LogFailureHandler,
    ) -> None:
        """``failures`` handles those of future logs."""
        self._logs = logs
        self._topics = topics
        self._checkpoints = checkpoints
        self._full_disks = full_disks
        self._clock = clock
        self._loop = loop
        self._failures = failures
        self.full_retry_s = FULL_RETRY_S
        self.piece_bytes = PIECE_BYTES
        self.moves: dict[TopicPartition, LogDirMove] = {}
        self._tasks: dict[asyncio.Task[None], TopicPartition] = {}
        self._places = asyncio.Semaphore(max(1, len(logs.dirs.all)))
        self._turns = Turns()

    def set_limits(self, at_once: int | None, bytes_per_second: int) -> None:
        """Sets the number of parallel moves (None: one per data directory) and their rate, before the first
        move.
        """
        self._places = asyncio.Semaphore(at_once or max(1, len(self._logs.dirs.all)))
        self.set_bytes_per_second(bytes_per_second)

    def set_bytes_per_second(self, rate: int) -> None:
        """Sets the rate limit of all moves together."""
        self._turns.bytes_per_second = rate

    def begin(self, key: TopicPartition, path: str) -> None:
        """Moves a partition to the data directory at ``path``. Raises KafkaError."""
        move = begin_move(self._logs, key, path, self._clock.wall_ms())
        before = self.moves.get(key)
        if move is None or (before is not None and before.future_log is move.future_log):
            return
        logger.info("moving %s from %s to %s", key, move.current_log.directory, path)
        self._spawn(move)

    def resume(self) -> None:
        """Continues interrupted moves."""
        for move in interrupted_moves(self._logs):
            logger.info("continuing the move of %s to %s", move.key, move.target.path)
            self._spawn(move)

    def _spawn(self, move: LogDirMove) -> None:
        self.moves[move.key] = move
        before = [task for task, key in self._tasks.items() if key == move.key]
        task = self._loop.create_task(self._run(move, before))
        self._tasks[task] = move.key
        task.add_done_callback(self._tasks.pop)

    async def _run(self, move: LogDirMove, before: list[asyncio.Task[None]]) -> None:
        try:
            if before:
                # A cancelled move may still write or remove the mark in the partition's directory.
                await asyncio.wait(before)
            while True:
                if await self._try(move):
                    break
                await asyncio.sleep(self.full_retry_s)
        except KafkaError as problem:
            if move.is_done:
                left = move.current_log.directory
                logger.error("%s was moved, but %s stays until the next start: %s", move.key, left, problem)
            elif not move.is_cancelled():
                # The future log stays, and the next start or request continues.
                logger.error("%s could not be moved to %s: %s", move.key, move.target.path, problem)
        except Exception:
            logger.exception("the move of %s to %s failed", move.key, move.target.path)
        finally:
            if self.moves.get(move.key) is move:
                del self.moves[move.key]
                move.abandon()
                self._remove_unsynced(move)

    def _remove_unsynced(self, move: LogDirMove) -> None:
        try:
            move.remove_unsynced(self._clock.wall_ms())
        except StorageError as problem:
            # After a clean shutdown the next start would continue the copy.
            self._failures.storage_failed(move.future_log, problem)

    async def _try(self, move: LogDirMove) -> bool:
        """Runs a move when it is its turn. Returns False if it needs a retry for lack of disk space."""
        async with self._places:
            try:
                await self._copy(move)
            except DiskFull as problem:
                if move.is_done:
                    raise
                move.abandon()
                self._full_disks.move_delayed(move.key, problem)
                return False
        return True

    async def _copy(self, move: LogDirMove) -> None:
        """Copies until the partition was moved, or the move is over."""
        marked = False
        while not move.is_cancelled():
            if move.current_log.cleaning:
                # Compaction may remove a copied value, and its tombstone before that is copied. No compaction
                # begins while a log is moved.
                await asyncio.sleep(RETRY_S)
                continue
            marked = marked and not move.may_have_diverged
            if move.lag > CATCH_UP_OFFSETS or not marked or not move.is_start_written:
                await self._copy_pieces(move)
                if move.is_cancelled():
                    return
                # It was truncated at the end, and nothing was copied afterwards.
                marked = marked and not move.needs_sync and not move.is_overstated
            if not marked:
                await self._prepare(move)
                marked = True
            elif not move.is_start_written:
                # DeleteRecords was answered meanwhile: that must hold for the future log, too.
                await self._checkpoints.write(move.checkpoints)
            elif move.lag <= CATCH_UP_OFFSETS:
                await self._replace_log(move)
                return

    async def _copy_pieces(self, move: LogDirMove) -> None:
        """Copies up to the current end of the log."""
        while not move.is_cancelled():
            piece = move.next_range(self.piece_bytes, self._clock.wall_ms())
            if piece is None:
                return
            if move.needs_sync:
                await self._sync(move)
            if move.is_overstated:
                await self._checkpoints.write(move.checkpoints)
            await self._pace(move, piece.size)
            if move.is_cancelled():
                return
            await self._in_thread(move.copy_range, piece, self._clock.wall_ms())

    async def _pace(self, move: LogDirMove, count: int) -> None:
        turn = self._turns.append(count, self._clock.monotonic())
        while True:
            wait_s = self._turns.wait_s(turn, self._clock.monotonic())
            if wait_s <= RETRY_S or move.is_cancelled():
                return
            await asyncio.sleep(min(wait_s, RATE_CHECK_S))

    async def _prepare(self, move: LogDirMove) -> None:
        """Syncs the future log, and then records the decision."""
        await self._sync(move)
        await self._checkpoints.write(move.checkpoints)
        await self._in_thread(move.mark_moved)
        if move.is_cancelled():
            remove_move_mark(move.logs.files, move.current_log.directory)

    async def _sync(self, move: LogDirMove) -> None:
        """Syncs the future log."""
        await self._uninterrupted(self._flush(move))

    async def _flush(self, move: LogDirMove) -> None:
        job = move.future_log.begin_flush()
        try:
            await self._loop.run_in_executor(None, job.run)
        except StorageError as problem:
            self._sync_failed(move, problem)
            raise
        move.future_log.finish_flush(job, self._clock.wall_ms())

    def _sync_failed(self, move: LogDirMove, problem: StorageError) -> None:
        """Discards the future log, and its data directory unless the disk was only full."""
        if not is_transient(problem):
            move.mark_sync_failed()
        if not isinstance(problem, DiskFull):
            self._failures.sync_failed(move.future_log, problem)

    async def _replace_log(self, move: LogDirMove) -> None:
        """Replaces the log in one turn of the event loop, then removes the old directory."""
        now_ms = self._clock.wall_ms()
        while (piece := move.next_range(self.piece_bytes, now_ms)) is not None:
            move.copy_range(piece, now_ms)
        partition = self._topics.find(move.key.topic, move.key.partition)
        # The old log's sync in progress has to be repeated for the future log before produces are
        # acknowledged.
        flush = partition is not None and partition.flush_under_way
        try:
            move.replace_current(now_ms, flush)
        except StorageError as problem:
            if move.has_failed_sync:
                self._sync_failed(move, problem)
            raise
        if partition is not None:
            partition.replace_log(move.future_log)
        logger.info("%s is now in %s", move.key, move.future_log.directory)
        await self._uninterrupted(self._sync_target(move))
        await self._checkpoints.write_recovery_points()
        move.delete_replaced(self._clock.wall_ms())
        await self._checkpoints.write_removals()

    async def _sync_target(self, move: LogDirMove) -> None:
        """Syncs the new name of the log: without it a power failure would restore the old directory."""
        try:
            await self._in_thread(move.sync_target)
        except StorageError as problem:
            self._failures.sync_failed(move.future_log, problem)
            raise

    async def _in_thread(self, do: Callable[..., object], *arguments: object) -> None:
        await self._uninterrupted(self._loop.run_in_executor(None, do, *arguments))

    async def _uninterrupted(self, doing: Awaitable[object]) -> None:
        """Waits for the end even if cancelled: a log has one user at a time."""
        running = asyncio.ensure_future(doing)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def stop(self) -> None:
        """Interrupts all moves; the next start continues them."""
        await cancel_all(self._tasks)
