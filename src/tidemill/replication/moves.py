"""Moves partitions between data directories, in the background: the shell around :mod:`tidemill.log.moves`.

So many moves go on at once as there are data directories (``num.replica.alter.log.dirs.threads``), the others
wait. Copying reads and writes in threads, a piece at a time, within
``replica.alter.log.dirs.io.max.bytes.per.second`` for all of them together. A move for which there is no room
waits, and does not keep others from theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tidemill.log.errors import DiskFull, may_pass
from tidemill.log.moves import Move, begin_move, interrupted_moves, unmark
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.types import TopicPartition
from tidemill.replication.throttle import Turns

if TYPE_CHECKING:
    from tidemill.replication.manager import ReplicaManager

log = logging.getLogger("tidemill.replication")

PIECE_BYTES: Final = 1024 * 1024
"""Read and written in one go; also what may be left for the turn of the loop that swaps."""
CATCH_UP_OFFSETS: Final = 64
"""So few missing offsets are copied by the loop itself."""
RETRY_S: Final = 0.05
FULL_AGAIN_S: Final = 10.0
"""After this time a move is tried again for which there was no room."""
RATE_LOOK_S: Final = 1.0
"""Whoever waits for the rate looks again after this time: another one may have been set."""


class Mover:
    """The moves of one broker. ``bytes_per_second`` may change at any time."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas
        self.full_again_s = FULL_AGAIN_S
        self.piece_bytes = PIECE_BYTES
        self.moves: dict[TopicPartition, Move] = {}
        self._tasks: dict[asyncio.Task[None], TopicPartition] = {}
        self._places = asyncio.Semaphore(max(1, len(replicas.logs.directories)))
        self._turns = Turns()

    @property
    def bytes_per_second(self) -> int:
        """What all moves together copy."""
        return self._turns.bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, rate: int) -> None:
        self._turns.bytes_per_second = rate

    def set_limits(self, at_once: int | None, bytes_per_second: int) -> None:
        """Before the first move: how many go on at once (None: one a data directory), and their rate."""
        self._places = asyncio.Semaphore(at_once or max(1, len(self.replicas.logs.directories)))
        self.bytes_per_second = bytes_per_second

    def begin(self, key: TopicPartition, path: str) -> None:
        """Moves a partition to the data directory at ``path``. Raises KafkaError."""
        replicas = self.replicas
        move = begin_move(replicas.logs, key, path, replicas.clock.wall_ms())
        before = self.moves.get(key)
        if move is None or (before is not None and before.future is move.future):
            return
        log.info("%s is moved from %s to %s", key, move.source.directory, path)
        self._spawn(move)

    def resume(self) -> None:
        """Goes on with what a stop interrupted."""
        for move in interrupted_moves(self.replicas.logs):
            log.info("the move of %s to %s goes on", move.key, move.target.path)
            self._spawn(move)

    def _spawn(self, move: Move) -> None:
        self.moves[move.key] = move
        before = [task for task, key in self._tasks.items() if key == move.key]
        task = self.replicas.loop.create_task(self._run(move, before))
        self._tasks[task] = move.key
        task.add_done_callback(self._tasks.pop)

    async def _run(self, move: Move, before: list[asyncio.Task[None]]) -> None:
        try:
            if before:
                # One that was called off may still write or remove the mark in the partition's directory.
                await asyncio.wait(before)
            while True:
                if await self._try(move):
                    break
                await asyncio.sleep(self.full_again_s)
        except KafkaError as problem:
            if move.is_done:
                left = move.source.directory
                log.error("%s has moved, but %s stays until the next start: %s", move.key, left, problem)
            elif not move.is_off():
                # The copy stays, and the next start or request goes on with it.
                log.error("%s is not moved to %s: %s", move.key, move.target.path, problem)
        except Exception:
            log.exception("the move of %s to %s ended", move.key, move.target.path)
        finally:
            if self.moves.get(move.key) is move:
                del self.moves[move.key]
                move.give_up()
                self._drop_distrusted(move)

    def _drop_distrusted(self, move: Move) -> None:
        try:
            move.drop_distrusted(self.replicas.clock.wall_ms())
        except StorageError as problem:
            # After a clean stop the next start would continue the copy.
            self.replicas.storage_failed(move.future, problem)

    async def _try(self, move: Move) -> bool:
        """Moves when it is its turn; False when there was no room, and it is to be tried again."""
        async with self._places:
            try:
                await self._copy(move)
            except DiskFull as problem:
                if move.is_done:
                    raise
                move.give_up()
                self.replicas.full_disks.move_waits(move.key, problem)
                return False
        return True

    async def _copy(self, move: Move) -> None:
        """Copies until the partition has moved, or nothing is to be moved any more."""
        marked = False
        while not move.is_off():
            if move.source.cleaning:
                # The cleaning may remove a value that was copied, and its tombstone before that is copied. No
                # cleaning begins while a log moves.
                await asyncio.sleep(RETRY_S)
                continue
            marked = marked and not move.may_differ
            if move.lag > CATCH_UP_OFFSETS or not marked or not move.is_start_written:
                await self._copy_pieces(move)
                if move.is_off():
                    return
                # It was cut in the end, and nothing was copied after that.
                marked = marked and not move.needs_sync and not move.is_overstated
            if not marked:
                await self._prepare(move)
                marked = True
            elif not move.is_start_written:
                # DeleteRecords was answered meanwhile: that must hold with the copy, too.
                await self.replicas.checkpoints.write(move.checkpoints)
            elif move.lag <= CATCH_UP_OFFSETS:
                await self._swap(move)
                return

    async def _copy_pieces(self, move: Move) -> None:
        """Copies up to the end of the log, as it is by then."""
        clock = self.replicas.clock
        while not move.is_off():
            piece = move.next_piece(self.piece_bytes, clock.wall_ms())
            if piece is None:
                return
            if move.needs_sync:
                await self._sync(move)
            if move.is_overstated:
                await self.replicas.checkpoints.write(move.checkpoints)
            await self._pace(move, piece.size)
            if move.is_off():
                return
            await self._in_thread(move.store, piece, clock.wall_ms())

    async def _pace(self, move: Move, count: int) -> None:
        clock = self.replicas.clock
        turn = self._turns.take(count, clock.monotonic())
        while True:
            wait_s = self._turns.wait_s(turn, clock.monotonic())
            if wait_s <= RETRY_S or move.is_off():
                return
            await asyncio.sleep(min(wait_s, RATE_LOOK_S))

    async def _prepare(self, move: Move) -> None:
        """Brings the copy to the disk, and then the decision."""
        await self._sync(move)
        await self.replicas.checkpoints.write(move.checkpoints)
        await self._in_thread(move.mark)
        if move.is_off():
            unmark(move.logs.files, move.source.directory)

    async def _sync(self, move: Move) -> None:
        """Brings the copy to the disk."""
        await self._to_end(self._flush(move))

    async def _flush(self, move: Move) -> None:
        replicas = self.replicas
        job = move.future.begin_flush()
        try:
            await replicas.loop.run_in_executor(None, job.run)
        except StorageError as problem:
            self._sync_failed(move, problem)
            raise
        move.future.finish_flush(job, replicas.clock.wall_ms())

    def _sync_failed(self, move: Move, problem: StorageError) -> None:
        """Discards the copy, and its data directory unless the disk was only full."""
        if not may_pass(problem):
            move.distrust()
        if not isinstance(problem, DiskFull):
            self.replicas.sync_failed(move.future, problem)

    async def _swap(self, move: Move) -> None:
        """The turn of the loop in which the copy becomes the partition; then the old directory goes."""
        replicas = self.replicas
        now_ms = replicas.clock.wall_ms()
        while (piece := move.next_piece(self.piece_bytes, now_ms)) is not None:
            move.store(piece, now_ms)
        partition = replicas.find(move.key.topic, move.key.partition)
        # Who waits for a sync of the old files that is under way has waited: that of the copy finds it done.
        flush = partition is not None and partition.flush_under_way
        try:
            move.swap(now_ms, flush)
        except StorageError as problem:
            if move.is_distrusted:
                self._sync_failed(move, problem)
            raise
        if partition is not None:
            partition.log = move.future
        log.info("%s lies in %s now", move.key, move.future.directory)
        await self._to_end(self._sync_target(move))
        await replicas.checkpoints.recovery_points()
        move.retire(replicas.clock.wall_ms())
        await replicas.checkpoints.removals()

    async def _sync_target(self, move: Move) -> None:
        """Brings the copy's new name to the disk: without it a power cut brings the old directory back."""
        try:
            await self._in_thread(move.sync_target)
        except StorageError as problem:
            self.replicas.sync_failed(move.future, problem)
            raise

    async def _in_thread(self, do: Callable[..., Any], *arguments: Any) -> None:
        await self._to_end(self.replicas.loop.run_in_executor(None, do, *arguments))

    async def _to_end(self, doing: Awaitable[Any]) -> None:
        """Waits also when the waiting is cancelled: a log has one user at a time."""
        running = asyncio.ensure_future(doing)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def stop(self) -> None:
        """Interrupts all moves; the next start goes on with them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
