"""Compaction beside the broker: chooses a log, has it cleaned by another process, and takes the result in.

The loop plans and exchanges; reading, comparing and writing happen in the worker, renames in a thread. A log
that is cut, deleted or put aside meanwhile is noticed before each exchange: the cleaning ends then, and its
files are removed. A log that cannot be cleaned is set aside until the next start, or until the cleaner's
settings change, with its reason in the log and in the metrics, and the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from tidemill.broker.cleaner_worker import DIED, CleanerWorker
from tidemill.log.checkpoints import CheckpointDamaged
from tidemill.log.clean_job import STORAGE, CleanCounts, CleanedGroup, Failure
from tidemill.log.compaction import Candidate, CleanerSettings, candidate, choose, job_for
from tidemill.log.directories import DataDirectory
from tidemill.log.errors import storage_error
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.names import CLEANED
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.log.swap import Swap
from tidemill.model.configs import BROKER_KEYS, BrokerConfig
from tidemill.model.configs.keys import Value
from tidemill.model.errors import CorruptMessage, StorageError
from tidemill.model.ports import Clock, Files
from tidemill.model.slices import with_pauses
from tidemill.model.types import TopicPartition

log = logging.getLogger("tidemill.compaction")

DEATHS_MAX = 3
"""So many times a log may cost the worker its life; then it is set aside."""
AGAIN_MS = 60_000
"""How long a log is left alone whose files could not be read or written."""
LOGS_A_TURN = 50
"""Of so many logs the facts are gathered in one turn of the loop."""
CHUNK_BYTES_MIN = 16 * 1024
LOAD_FACTORS = (0.1, 0.95)
CLEANER_KEYS = tuple(name for name in BROKER_KEYS if name.startswith("log.cleaner."))


class Replicas(Protocol):
    """What compaction asks of the partitions."""

    def high_watermark_of(self, key: TopicPartition) -> int | None:
        """Up to where every replica in sync has the log; None for a partition that is not served here."""

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        """The disk of a log failed: its directory is put aside."""


class Totals(NamedTuple):
    """What all cleanings did since the start."""

    logs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    records_removed: int = 0

    def plus(self, counts: CleanCounts) -> Totals:
        """With one more."""
        return Totals(
            self.logs + 1,
            self.read_bytes + counts.mapped_bytes + counts.read_bytes,
            self.written_bytes + counts.written_bytes,
            self.records_removed + counts.records_read - counts.records_kept,
        )


def settings_of(config: BrokerConfig) -> CleanerSettings:
    """The cleaner's settings in a broker's configuration."""
    load_factor = config.float("log.cleaner.io.buffer.load.factor")
    return CleanerSettings(
        map_bytes=config.int("log.cleaner.dedupe.buffer.size"),
        load_factor=min(max(load_factor, LOAD_FACTORS[0]), LOAD_FACTORS[1]),
        chunk_bytes=max(config.int("log.cleaner.io.buffer.size") // 2, CHUNK_BYTES_MIN),
        bytes_per_second=max(config.float("log.cleaner.io.max.bytes.per.second"), 1.0),
    )


def cleaner_values(config: BrokerConfig) -> tuple[Value, ...]:
    """The values of all settings of the cleaner."""
    return tuple(config.get(key) for key in CLEANER_KEYS)


class Compaction:
    """Cleans the compacted logs of a broker, one after the other, for as long as :meth:`run` runs."""

    def __init__(
        self,
        logs: LogManager,
        replicas: Replicas,
        clock: Clock,
        executor: Executor,
        worker: CleanerWorker,
        config: Callable[[], BrokerConfig],
        write_recovery_points: Callable[[], Awaitable[None]],
    ) -> None:
        self.logs = logs
        self.replicas = replicas
        self.clock = clock
        self.executor = executor
        self.worker = worker
        self.config = config
        self.write_recovery_points = write_recovery_points
        self.totals = Totals()
        self.max_dirty_ratio = 0.0
        """Of the dirtiest log, when it was looked last."""
        self.map_utilization = 0.0
        """Of the last cleaning."""
        self.set_aside: dict[TopicPartition, str] = {}
        """Logs that cannot be cleaned, with the reason."""
        self._failed_logs: dict[TopicPartition, Log] = {}
        """Of which the failures were: another topic of the name has logs of its own."""
        self._deaths: dict[TopicPartition, int] = {}
        self._again_ms: dict[TopicPartition, int] = {}
        self._settings = cleaner_values(config())
        self._writing = asyncio.Lock()
        self._look = asyncio.Event()

    # -- checkpoints

    def load(self) -> None:
        """Takes over from the checkpoint files up to where logs are clean."""
        for directory in self.logs.working:
            try:
                offsets = directory.cleaner_offsets.load()
            except (CheckpointDamaged, OSError) as problem:
                log.warning("%s; its logs are compacted from their start", problem)
                continue
            for key, offset in offsets.items():
                if key in directory.logs:
                    one = directory.logs[key]
                    one.clean_end = min(offset, one.end_offset)
            # Offsets of logs that are gone are to leave the file, before others of their name come.
            directory.cleaner_offsets.compare()
            self._write_lowered_checkpoint(directory)

    def _write_lowered_checkpoint(self, directory: DataDirectory) -> None:
        """Writes the checkpoint if it overstates a log that was cut at its opening, before appends to it."""
        checkpoint = directory.cleaner_offsets
        if any(map(directory.overstates_clean_end, directory.logs.values())) and checkpoint.take():
            for problem in write_checkpoints([checkpoint]):
                log.error("%s", problem)

    async def checkpoint(self) -> None:
        """Writes up to where logs are clean, where that changed."""
        async with self._writing:
            files = [one.cleaner_offsets for one in self.logs.working]
            changed = [file for file in files if await with_pauses(file.taking())]
            if not changed:
                return
            running = asyncio.get_running_loop().run_in_executor(self.executor, write_checkpoints, changed)
            for problem in await asyncio.shield(running):
                log.error("%s", problem)

    # -- the work

    def reconfigured(self) -> None:
        """The broker's settings changed: a job that runs keeps to the pace of now, and a rest ends.

        Those set aside are tried again when any setting of the cleaner is another: with more memory a log may
        be possible that was not, and an operator who mended one has a way to say so.
        """
        self.worker.set_pace(settings_of(self.config()).bytes_per_second)
        settings = cleaner_values(self.config())
        if settings != self._settings:
            self._settings = settings
            self.set_aside.clear()
        self._look.set()

    async def run(self) -> None:
        """Cleans for ever; cancel it to end. The worker ends with it."""
        try:
            while True:
                self._look.clear()
                try:
                    cleaned = await self.clean_dirtiest()
                except Exception:
                    log.exception("compaction failed; it is tried again")
                    cleaned = False
                if not cleaned:
                    await self.worker.rest()
                    await self._rest()
        finally:
            await self.worker.rest()

    async def _rest(self) -> None:
        """Waits for ``log.cleaner.backoff.ms``, or until that is changed."""
        backoff_s = max(self.config().int("log.cleaner.backoff.ms") / 1000, 0.1)
        # Not wait_for(): in Python 3.11 a cancellation gets lost there when the wait has just ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff_s):
                await self._look.wait()

    async def clean_dirtiest(self) -> bool:
        """Cleans the log that needs it most; False when none does, or that one could not be cleaned."""
        now_ms = self.clock.wall_ms()
        chosen = await self._choose(now_ms)
        await self.checkpoint()
        if chosen is None or not await self._may_begin(chosen):
            return False
        one = chosen.log
        truncations = chosen.truncations
        began = self.clock.monotonic()
        one.cleaning = True
        try:
            job = job_for(chosen, settings_of(self.config()), now_ms)
            result = await self.worker.clean(job, lambda group: self._place(one, truncations, group))
        finally:
            one.cleaning = False
        if not isinstance(result, CleanCounts):
            await self._discard(one)
        if one.closed or one.truncations != truncations or result is None:
            if not self._is_put_off(one.topic_partition):
                log.info("%s changed while it was compacted; that was ended", one.topic_partition)
            return False
        if isinstance(result, Failure):
            self._failed(one, result)
            return False
        one.clean_end = result.end_offset
        one.note_move()
        self._deaths.pop(one.topic_partition, None)
        self._report(chosen, result, self.clock.monotonic() - began)
        await self.checkpoint()
        return True

    async def _may_begin(self, chosen: Candidate) -> bool:
        """Has a start know that what is to be cleaned was on the disk; False when the log was cut meanwhile.

        Where a segment ends before the next one begins, a start after a power cut could not tell else whether
        compaction left nothing there, or the power cut.
        """
        one = chosen.log
        checkpoint = self.logs.directory_of(one).recovery_points
        if checkpoint.written(one.topic_partition) < chosen.upper_bound:
            await self.write_recovery_points()
        if one.closed or one.truncations != chosen.truncations:
            return False
        if self._moves(one.topic_partition):
            return False
        is_written = checkpoint.written(one.topic_partition) >= chosen.upper_bound
        if not is_written:
            text = f"{one.topic_partition} is not compacted: {checkpoint.path} cannot be written"
            self._failed(one, Failure(STORAGE, text))
        return is_written

    async def _choose(self, now_ms: int) -> Candidate | None:
        for key, one in list(self._failed_logs.items()):
            if self.logs.get(key) is not one:
                for remembered in (self.set_aside, self._deaths, self._again_ms, self._failed_logs):
                    remembered.pop(key, None)
        candidates = []
        for at, key in enumerate(list(self.logs.logs)):
            if at % LOGS_A_TURN == LOGS_A_TURN - 1:
                await asyncio.sleep(0)
            found = self._candidate(key, now_ms)
            if found is not None:
                candidates.append(found)
        self.max_dirty_ratio = max((one.dirty_ratio for one in candidates), default=0.0)
        return choose(one for one in candidates if not one.log.closed)

    def _candidate(self, key: TopicPartition, now_ms: int) -> Candidate | None:
        """The facts of a log that may be cleaned now."""
        one = self.logs.logs.get(key)
        if one is None or not one.config.compact or self._is_put_off(key):
            return None
        if self._moves(key):
            return None
        high_watermark = self.replicas.high_watermark_of(key)
        if high_watermark is None:
            return None
        try:
            return candidate(one, high_watermark, now_ms)
        except OSError as problem:
            text = str(storage_error("plan the compaction of", one.directory, problem))
            self._failed(one, Failure(STORAGE, text))
            return None

    def _moves(self, key: TopicPartition) -> bool:
        """Whether a log moves to another directory: its copy may have a value, and not its tombstone yet."""
        return any(key in directory.arriving for directory in self.logs.working)

    def _is_put_off(self, key: TopicPartition) -> bool:
        """Whether a log was set aside, for a while or for longer."""
        return key in self.set_aside or self._again_ms.get(key, 0) > self.clock.monotonic_ms()

    async def _place(self, one: Log, truncations: int, group: CleanedGroup) -> bool:
        """Puts a cleaned segment in its place; False when the log is not what it was."""
        if one.closed or one.truncations != truncations:
            return False
        try:
            swap = one.begin_swap(list(group.old), group.size)
        except StorageError as problem:
            # Else the whole log would be cleaned again at once, to come as far as this.
            self._failed(one, Failure(STORAGE, str(problem)))
            return False
        if swap is None:
            return False
        exchanging = asyncio.ensure_future(self._exchange(one, swap))
        try:
            return await asyncio.shield(exchanging)
        except asyncio.CancelledError:
            # A failed exchange has to be handled, and the cleaner must not remove files under way.
            await asyncio.wait([exchanging])
            raise

    async def _exchange(self, one: Log, swap: Swap) -> bool:
        """Renames the files in a thread; False when the log keeps its segments, or its directory failed."""
        try:
            await asyncio.get_running_loop().run_in_executor(self.executor, swap.run)
        except OSError as problem:
            # Some files have their new names, and some have not: only a start can tell which count.
            failure = storage_error("exchange compacted segments of", one.directory, problem)
            self.replicas.storage_failed(one, failure)
            return False
        except CorruptMessage as problem:
            self._failed(one, Failure(STORAGE, str(problem)))
        return one.finish_swap(swap, self.clock.wall_ms())

    async def _discard(self, one: Log) -> None:
        """Removes what an ended cleaning left."""
        if not one.closed:
            loop = asyncio.get_running_loop()
            await asyncio.shield(
                loop.run_in_executor(self.executor, remove_cleaned, self.logs.files, one.directory)
            )

    def _failed(self, one: Log, failure: Failure) -> None:
        """Sets a log aside, for a while or for longer."""
        key = one.topic_partition
        self._failed_logs[key] = one
        if failure.kind == STORAGE:
            log.error("%s; it is tried again in %d s", failure.text, AGAIN_MS // 1000)
            self._again_ms[key] = int(self.clock.monotonic_ms()) + AGAIN_MS
            return
        if failure.kind == DIED:
            self._deaths[key] = self._deaths.get(key, 0) + 1
            if self._deaths[key] < DEATHS_MAX:
                log.warning("%s is not compacted yet: %s; it is tried again", key, failure.text)
                return
        log.error(
            "%s is not compacted any more, until the broker starts again or log.cleaner settings change: %s",
            key,
            failure.text,
        )
        self.set_aside[key] = failure.text

    def _report(self, chosen: Candidate, counts: CleanCounts, seconds: float) -> None:
        self.totals = self.totals.plus(counts)
        self.map_utilization = counts.map_utilization
        log.info(
            "compacted %s from offset %d to %d in %.2f s: %d of %d records and %.1f of %.1f MB stay, "
            "%d keys in a map of %.1f MB",
            chosen.log.topic_partition,
            chosen.first_dirty,
            counts.end_offset,
            seconds,
            counts.records_kept,
            counts.records_read,
            counts.written_bytes / 1e6,
            counts.read_bytes / 1e6,
            counts.keys,
            counts.map_bytes / 1e6,
        )
        if counts.records_without_key:
            log.warning(
                "%s: %d records without a key were removed: a compacted topic cannot keep them",
                chosen.log.topic_partition,
                counts.records_without_key,
            )


def remove_cleaned(files: Files, directory: str) -> None:
    """Removes unfinished segments of a partition. What cannot be removed waits for the next start."""
    try:
        for name in files.list(directory):
            if name.endswith(CLEANED):
                files.remove(f"{directory}/{name}")
    except OSError as problem:
        log.warning("%s", storage_error("tidy", directory, problem))
