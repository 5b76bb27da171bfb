"""Log compaction: selects a log, lets a worker process clean it, and replaces its segments.

The event loop selects logs and replaces segments. The worker process reads and writes segments, and a thread
renames files. Before each replacement the cleaner checks whether the log was truncated, deleted or set
aside meanwhile; if so, it stops the cleaning and removes its files. After an I/O error the cleaner retries a
log after :data:`RETRY_MS`. Three errors make a log uncleanable until the next start, or until the settings of
the cleaner change: an invalid batch, a batch whose keys exceed the memory for keys, and
:data:`PROCESS_EXITS_MAX` exits of the worker process during its cleaning. A log line and a metric report an
uncleanable log, and the cleaner continues with the other logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from tidemill.broker.cleaner_process_client import PROCESS_EXITED, CleanerWorker
from tidemill.log.checkpoint_files import CheckpointDamaged
from tidemill.log.cleaner_messages import STORAGE, CleanCounts, CleanedGroup, Failure
from tidemill.log.errors import storage_error
from tidemill.log.file_names import CLEANED
from tidemill.log.log import Log
from tidemill.log.log_cleaner_manager import Candidate, CleanerSettings, candidate, choose, job_for
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.log.segment_swap import SegmentSwap
from tidemill.model.configs import BROKER_KEYS, BrokerConfig
from tidemill.model.configs.config_def import Value
from tidemill.model.errors import CorruptMessage, StorageError
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.model.system_interfaces import Clock, Files
from tidemill.model.types import TopicPartition

logger = logging.getLogger("tidemill.compaction")

PROCESS_EXITS_MAX = 3
"""A log is uncleanable after this number of exits of the worker process during its cleaning."""
RETRY_MS = 60_000
"""The time until the next attempt to clean a log whose files could not be read or written."""
LOGS_PER_SLICE = 50
"""The logs that are examined without a pause for the event loop."""
CHUNK_BYTES_MIN = 16 * 1024
LOAD_FACTORS = (0.1, 0.95)
CLEANER_KEYS = tuple(name for name in BROKER_KEYS if name.startswith("log.cleaner."))


class Replicas(Protocol):
    """The replicas whose logs are cleaned."""

    def high_watermark_of(self, key: TopicPartition) -> int | None:
        """Returns the high watermark; None for a partition that this broker does not serve."""

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        """Takes the directory of a log offline after a storage error."""


class Totals(NamedTuple):
    """The sums of all cleanings since the start."""

    logs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    records_removed: int = 0

    def plus(self, counts: CleanCounts) -> Totals:
        """Returns the sums with one more cleaning."""
        return Totals(
            self.logs + 1,
            self.read_bytes + counts.mapped_bytes + counts.read_bytes,
            self.written_bytes + counts.written_bytes,
            self.records_removed + counts.records_read - counts.records_kept,
        )


def settings_of(config: BrokerConfig) -> CleanerSettings:
    """Returns the settings of the cleaner from the configuration of the broker."""
    load_factor = config.float("log.cleaner.io.buffer.load.factor")
    return CleanerSettings(
        map_bytes=config.int("log.cleaner.dedupe.buffer.size"),
        load_factor=min(max(load_factor, LOAD_FACTORS[0]), LOAD_FACTORS[1]),
        chunk_bytes=max(config.int("log.cleaner.io.buffer.size") // 2, CHUNK_BYTES_MIN),
        bytes_per_second=max(config.float("log.cleaner.io.max.bytes.per.second"), 1.0),
    )


def cleaner_values(config: BrokerConfig) -> tuple[Value, ...]:
    """Returns the values of all ``log.cleaner`` settings."""
    return tuple(config.get(key) for key in CLEANER_KEYS)


class LogCleaner:
    """Cleans the compacted logs of a broker, one after the other, while :meth:`run` runs."""

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
        """Of the dirtiest log, at the last selection."""
        self.map_utilization = 0.0
        """Of the last cleaning."""
        self.uncleanable: dict[TopicPartition, str] = {}
        """The logs that cannot be cleaned, with the reasons."""
        self._failed_logs: dict[TopicPartition, Log] = {}
        """The log of each failure: a recreated topic has other logs, to which the failure does not apply."""
        self._process_exits: dict[TopicPartition, int] = {}
        self._retry_ms: dict[TopicPartition, int] = {}
        self._settings = cleaner_values(config())
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()

    # -- checkpoints

    def load_checkpoints(self) -> None:
        """Reads the clean offsets of the logs from the checkpoint files."""
        for directory in self.logs.dirs.online:
            try:
                offsets = directory.cleaner_offsets.load()
            except (CheckpointDamaged, OSError) as problem:
                logger.warning("%s; the logs of this directory are compacted from their start", problem)
                continue
            for key, offset in offsets.items():
                if key in directory.logs:
                    one = directory.logs[key]
                    one.clean_end = min(offset, one.end_offset)
            # Offsets of deleted logs must leave the file before logs with the same names are created.
            directory.cleaner_offsets.compare()
            self._write_lowered_checkpoint(directory)

    def _write_lowered_checkpoint(self, directory: DataDirectory) -> None:
        """Writes the checkpoint if its offset is beyond the end of a log that recovery has truncated.

        This must precede appends to the log.
        """
        checkpoint = directory.cleaner_offsets
        if any(map(directory.overstates_clean_end, directory.logs.values())) and checkpoint.collect():
            for problem in write_checkpoints([checkpoint]):
                logger.error("%s", problem)

    async def checkpoint(self) -> None:
        """Writes the checkpoint files whose offsets have changed."""
        async with self._writing:
            files = [one.cleaner_offsets for one in self.logs.dirs.online]
            changed = [file for file in files if await run_in_slices(file.collect_in_slices())]
            if not changed:
                return
            running = asyncio.get_running_loop().run_in_executor(self.executor, write_checkpoints, changed)
            for problem in await asyncio.shield(running):
                logger.error("%s", problem)

    # -- cleaning

    def reconfigured(self) -> None:
        """Applies changed settings of the broker to the running job, and ends the wait between cleanings.

        A changed setting of the cleaner also clears :attr:`uncleanable`: more memory may suffice for a log,
        and an operator who has repaired a log can request another attempt.
        """
        self.worker.set_bytes_per_second(settings_of(self.config()).bytes_per_second)
        settings = cleaner_values(self.config())
        if settings != self._settings:
            self._settings = settings
            self.uncleanable.clear()
        self._wake.set()

    async def run(self) -> None:
        """Cleans logs until it is cancelled. Ends the worker process then."""
        try:
            while True:
                self._wake.clear()
                try:
                    cleaned = await self.clean_dirtiest()
                except Exception:
                    logger.exception("compaction failed and is retried")
                    cleaned = False
                if not cleaned:
                    await self.worker.release()
                    await self._wait()
        finally:
            await self.worker.release()

    async def _wait(self) -> None:
        """Waits for ``log.cleaner.backoff.ms``, or until the settings change."""
        backoff_s = max(self.config().seconds("log.cleaner.backoff.ms"), 0.1)
        # Not wait_for(): Python 3.11 loses a cancellation there if the wait has just ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff_s):
                await self._wake.wait()

    async def clean_dirtiest(self) -> bool:
        """Cleans the dirtiest log. Returns False if no log needs cleaning, or if the cleaning failed."""
        now_ms = self.clock.wall_ms()
        chosen = await self._choose(now_ms)
        await self.checkpoint()
        if chosen is None or not await self._checkpoint_first(chosen):
            return False
        one = chosen.log
        truncations = chosen.truncations
        began = self.clock.monotonic()
        one.cleaning = True
        try:
            job = job_for(chosen, settings_of(self.config()), now_ms)
            result = await self.worker.clean(
                job, lambda group: self._replace_segments(one, truncations, group)
            )
        finally:
            one.cleaning = False
        if not isinstance(result, CleanCounts):
            await self._discard(one)
        if one.closed or one.truncations != truncations or result is None:
            if not self._is_skipped(one.topic_partition):
                logger.info("%s changed during its compaction, which was stopped", one.topic_partition)
            return False
        if isinstance(result, Failure):
            self._failed(one, result)
            return False
        one.clean_end = result.end_offset
        one.note_offset_change()
        self._process_exits.pop(one.topic_partition, None)
        self._report(chosen, result, self.clock.monotonic() - began)
        await self.checkpoint()
        return True

    async def _checkpoint_first(self, chosen: Candidate) -> bool:
        """Writes a recovery point beyond the segments to clean. Returns False if the log changed meanwhile.

        If a segment ends before the next one begins, recovery after a power failure could otherwise not
        distinguish records that compaction removed from records that were lost.
        """
        one = chosen.log
        checkpoint = self.logs.dirs.directory_of(one).recovery_points
        if checkpoint.written(one.topic_partition) < chosen.upper_bound:
            await self.write_recovery_points()
        if one.closed or one.truncations != chosen.truncations or self._is_moving(one.topic_partition):
            return False
        is_written = checkpoint.written(one.topic_partition) >= chosen.upper_bound
        if not is_written:
            text = f"{one.topic_partition} is not compacted: {checkpoint.path} cannot be written"
            self._failed(one, Failure(STORAGE, text))
        return is_written

    async def _choose(self, now_ms: int) -> Candidate | None:
        for key, one in list(self._failed_logs.items()):
            if self.logs.get(key) is not one:
                for remembered in (self.uncleanable, self._process_exits, self._retry_ms, self._failed_logs):
                    remembered.pop(key, None)
        candidates = []
        for at, key in enumerate(list(self.logs.logs)):
            if at % LOGS_PER_SLICE == LOGS_PER_SLICE - 1:
                await asyncio.sleep(0)
            found = self._candidate(key, now_ms)
            if found is not None:
                candidates.append(found)
        self.max_dirty_ratio = max((one.dirty_ratio for one in candidates), default=0.0)
        return choose(one for one in candidates if not one.log.closed)

    def _candidate(self, key: TopicPartition, now_ms: int) -> Candidate | None:
        """Returns the state of a log if it may be cleaned now."""
        one = self.logs.logs.get(key)
        if one is None or not one.config.compact or self._is_skipped(key) or self._is_moving(key):
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

    def _is_moving(self, key: TopicPartition) -> bool:
        """Whether a log is moved to another directory: the copy may have a record, but no tombstone yet."""
        return any(key in directory.future_logs for directory in self.logs.dirs.online)

    def _is_skipped(self, key: TopicPartition) -> bool:
        """Whether a log is uncleanable, or its next attempt is not due."""
        return key in self.uncleanable or self._retry_ms.get(key, 0) > self.clock.monotonic_ms()

    async def _replace_segments(self, one: Log, truncations: int, group: CleanedGroup) -> bool:
        """Replaces segments by a cleaned segment. Returns False if the log has changed."""
        if one.closed or one.truncations != truncations:
            return False
        try:
            swap = one.begin_swap(list(group.old), group.size)
        except StorageError as problem:
            # Otherwise the next attempt would clean the log again up to this segment at once.
            self._failed(one, Failure(STORAGE, str(problem)))
            return False
        if swap is None:
            return False
        swapping = asyncio.ensure_future(self._swap_files(one, swap))
        try:
            return await asyncio.shield(swapping)
        except asyncio.CancelledError:
            # A failed swap must be handled, and the cleaner must not remove files that are being renamed.
            await asyncio.wait([swapping])
            raise

    async def _swap_files(self, one: Log, swap: SegmentSwap) -> bool:
        """Renames the files in a thread. Returns False if the log keeps its segments, or after an error."""
        try:
            await asyncio.get_running_loop().run_in_executor(self.executor, swap.run)
        except OSError as problem:
            # Only some files may have their new names: recovery at the next start determines the valid ones.
            failure = storage_error("replace compacted segments of", one.directory, problem)
            self.replicas.storage_failed(one, failure)
            return False
        except CorruptMessage as problem:
            self._failed(one, Failure(STORAGE, str(problem)))
        return one.finish_swap(swap, self.clock.wall_ms())

    async def _discard(self, one: Log) -> None:
        """Removes the files of an unfinished cleaning."""
        if not one.closed:
            loop = asyncio.get_running_loop()
            await asyncio.shield(
                loop.run_in_executor(self.executor, remove_cleaned, self.logs.files, one.directory)
            )

    def _failed(self, one: Log, failure: Failure) -> None:
        """Schedules a retry, or makes a log uncleanable."""
        key = one.topic_partition
        self._failed_logs[key] = one
        if failure.kind == STORAGE:
            logger.error("%s; the next attempt is in %d s", failure.text, RETRY_MS // 1000)
            self._retry_ms[key] = int(self.clock.monotonic_ms()) + RETRY_MS
            return
        if failure.kind == PROCESS_EXITED:
            self._process_exits[key] = self._process_exits.get(key, 0) + 1
            if self._process_exits[key] < PROCESS_EXITS_MAX:
                logger.warning("the compaction of %s failed and is retried: %s", key, failure.text)
                return
        logger.error(
            "%s is uncleanable until the broker restarts or a log.cleaner setting changes: %s",
            key,
            failure.text,
        )
        self.uncleanable[key] = failure.text

    def _report(self, chosen: Candidate, counts: CleanCounts, seconds: float) -> None:
        self.totals = self.totals.plus(counts)
        self.map_utilization = counts.map_utilization
        logger.info(
            "compacted %s from offset %d to %d in %.2f s: kept %d of %d records and %.1f of %.1f MB, "
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
            logger.warning(
                "%s: removed %d records without a key, which a compacted topic cannot keep",
                chosen.log.topic_partition,
                counts.records_without_key,
            )


def remove_cleaned(files: Files, directory: str) -> None:
    """Removes the unfinished segments of a partition. After an error the next start removes them."""
    try:
        for name in files.list(directory):
            if name.endswith(CLEANED):
                files.remove(f"{directory}/{name}")
    except OSError as problem:
        logger.warning("%s", storage_error("remove unfinished segments from", directory, problem))
