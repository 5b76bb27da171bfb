"""All partitions of this broker: made, changed and removed as the controller says, flushed and checkpointed.

The cluster's state comes in as plain values; this layer knows no coordination store. Timers are the
broker's: it calls the methods of the section "upkeep" when they are due. What blocks (syncing, removing
files) runs in the executor, one sync of a partition at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.ports import Clock
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.validate import Limits
from tidemill.replication.partition import Partition, PartitionEvents, TopicEntry, TopicTable

log = logging.getLogger("tidemill.replication")

UNWRITTEN_HIGH_BYTES = 512 * 1024 * 1024
"""With more than this on its way to the disk, produces wait until it is below the low mark again."""
UNWRITTEN_LOW_BYTES = 256 * 1024 * 1024
WRITTEN_TO_MAX = 10_000
"""Segments whose written part is remembered; forgetting one costs writing its pages' checks again."""
UNPACKED_FACTOR = 32
"""A compressed batch may unpack to so many times the largest batch that the topic takes."""


class PartitionState(NamedTuple):
    """What the controller says of one partition."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def limits_of(config: LogConfig) -> Limits:
    """What a topic with ``config`` takes from producers."""
    return Limits(
        max_batch_bytes=config.max_message_bytes,
        max_unpacked_bytes=config.max_message_bytes * UNPACKED_FACTOR,
        key_required=config.compact,
        timestamp_before_ms=config.message_timestamp_before_max_ms,
        timestamp_after_ms=config.message_timestamp_after_max_ms,
        check_timestamps=config.message_timestamp_type == "CreateTime",
    )


class ReplicaManager(PartitionEvents):
    """The partitions that have a replica here."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        syncers: Executor,
        writers: Executor,
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self.clock = clock
        self.loop = loop
        self.syncers = syncers
        self.writers = writers
        self.topics = TopicTable()
        self.leadership_listeners: list[Callable[[Partition, bool], None]] = []
        """Called with a partition and whether this broker leads it, when that changes."""
        self.congestion_listeners: list[Callable[[bool], None]] = []
        """Called with True when the disk falls behind, with False when it has caught up."""
        self._flushes: set[asyncio.Future[None]] = set()
        self._written_to: dict[str, int] = {}
        self._unwritten_bytes = 0
        self._congested = False

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition when this broker has it."""
        return self.topics.find(topic, index)

    def all(self) -> Iterator[Partition]:
        """Every partition of this broker."""
        for entry in self.topics.by_name.values():
            for partition in entry.partitions:
                if partition is not None:
                    yield partition

    # Changes.

    def put_topic(
        self,
        name: str,
        topic_id: bytes,
        internal: bool,
        states: Sequence[PartitionState],
        config: LogConfig,
    ) -> None:
        """Makes what is new of a topic, and takes over what changed. Raises StorageError."""
        entry = self.topics.by_name.get(name.encode())
        if entry is not None and entry.topic_id != topic_id:
            self.remove_topic(name)
            entry = None
        if entry is None:
            entry = TopicEntry(name, topic_id, internal)
        count = max((state.partition for state in states), default=-1) + 1
        entry.partitions.extend([None] * (count - len(entry.partitions)))
        for state in states:
            if self.node_id not in state.replicas:
                continue
            partition = entry.partitions[state.partition]
            if partition is None:
                partition = self._make(entry, state.partition, config)
                entry.partitions[state.partition] = partition
            self._become(partition, state)
        self.topics.put(entry)
        self.reconfigure(name, config)

    def _make(self, entry: TopicEntry, index: int, config: LogConfig) -> Partition:
        key = TopicPartition(entry.name, index)
        found = self.logs.create(key, entry.topic_id, config, self.clock.wall_ms())
        if found.topic_id == ZERO_ID:
            self.logs.assign_topic_id(found, entry.topic_id)
        elif found.topic_id != entry.topic_id:
            raise StorageError(
                f"{found.directory} holds a topic of this name with another id ({found.topic_id.hex()}, the"
                f" cluster's is {entry.topic_id.hex()}): move the directory away"
            )
        return Partition(entry.name, index, found, limits_of(config), self.node_id, self)

    def _become(self, partition: Partition, state: PartitionState) -> None:
        led = partition.is_leader
        if partition.leader_epoch == state.leader_epoch and partition.isr == state.isr:
            return
        partition.become(state.leader, state.leader_epoch, state.replicas, state.isr)
        if led != partition.is_leader:
            for listener in self.leadership_listeners:
                listener(partition, partition.is_leader)

    def reconfigure(self, name: str, config: LogConfig) -> None:
        """Puts a topic's settings into effect."""
        entry = self.topics.by_name.get(name.encode())
        if entry is None:
            return
        limits = limits_of(config)
        for partition in entry.partitions:
            if partition is not None:
                partition.limits = limits
                partition.min_insync_replicas = config.min_insync_replicas
                partition.log.set_config(config)

    def remove_topic(self, name: str) -> None:
        """Forgets a topic; its files are removed later."""
        entry = self.topics.by_name.get(name.encode())
        if entry is None:
            return
        self.topics.remove(entry)
        for partition in entry.partitions:
            if partition is None:
                continue
            led = partition.is_leader
            partition.delete()
            if led:
                for listener in self.leadership_listeners:
                    listener(partition, False)
            self.logs.delete(TopicPartition(entry.name, int(partition.index)), self.clock.wall_ms())

    # Flushing.

    def flush_wanted(self, partition: Partition) -> None:
        """Syncs the log of ``partition`` in a thread, then tells it."""
        task = self.loop.create_task(self._flush(partition))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self, partition: Partition) -> None:
        try:
            end_offset = await self.sync(partition.log)
        except KafkaError as problem:
            log.error("%s-%s could not be flushed: %s", partition.topic, partition.index, problem)
            partition.fail(str(problem))
        else:
            partition.flushed(end_offset)

    async def sync(self, one: Log) -> int:
        """Brings a log to the disk; the offset up to which it is there."""
        job = one.begin_flush()
        await self.loop.run_in_executor(self.syncers, job.run)
        one.finish_flush(job, self.clock.wall_ms())
        return job.offset

    # Writing back.

    def write_back_wanted(self, partition: Partition) -> None:
        """Writes what ``partition`` appended since the last time, in a thread.

        Left to itself the kernel collects gigabytes of unwritten pages and then holds up whoever writes
        next, which would be the loop. When the disk cannot keep up, produces wait (:attr:`congestion`).
        """
        segment = partition.log.active
        begin = self._written_to.get(segment.path, 0)
        end = int(segment.size)
        if len(self._written_to) > WRITTEN_TO_MAX:
            self._written_to.clear()
        self._written_to[segment.path] = end
        self._unwritten_bytes += end - begin
        self._tell_congestion()
        future = self.loop.run_in_executor(self.writers, segment.file().write_back, begin, end - begin)
        future.add_done_callback(lambda _: self._written_back(end - begin))

    def _written_back(self, count: int) -> None:
        self._unwritten_bytes -= count
        self._tell_congestion()

    def _tell_congestion(self) -> None:
        over = self._unwritten_bytes > (UNWRITTEN_LOW_BYTES if self._congested else UNWRITTEN_HIGH_BYTES)
        if over != self._congested:
            self._congested = over
            for listener in self.congestion_listeners:
                listener(over)

    # Upkeep.

    async def flush_due(self) -> None:
        """Syncs the logs whose ``flush.ms`` has passed, and segments that were rolled."""
        for one, job in self.logs.flushes_due(self.clock.wall_ms()):
            try:
                await self.loop.run_in_executor(self.syncers, job.run)
            except KafkaError as problem:
                log.error("%s could not be flushed: %s", one.topic_partition, problem)
            else:
                one.finish_flush(job, self.clock.wall_ms())

    async def retain(self) -> None:
        """Removes what retention lets go."""
        moved = self.logs.retain(self.clock.wall_ms(), self.high_watermarks())
        if moved:
            log.info("retention moved the start of %d logs", len(moved))
            await self.checkpoint_log_starts()
        self.logs.expire_producers(self.clock.wall_ms())
        self.report_warnings()

    async def remove_due(self) -> None:
        """Removes files whose delay is over, in a thread."""
        paths = self.logs.due_removals(self.clock.wall_ms())
        if paths:
            for problem in await self.loop.run_in_executor(self.syncers, self.logs.remove_paths, paths):
                log.error("%s", problem)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Every partition's high watermark."""
        return {
            TopicPartition(partition.topic, int(partition.index)): int(partition.high_watermark)
            for partition in self.all()
        }

    async def checkpoint_high_watermarks(self) -> None:
        """Writes every partition's high watermark down."""
        await self._checkpoint(self.logs.checkpoint_high_watermarks, self.high_watermarks())

    async def checkpoint_recovery_points(self) -> None:
        """Writes down from where recovery would begin."""
        await self._checkpoint(self.logs.checkpoint_recovery_points)

    async def checkpoint_log_starts(self) -> None:
        """Writes down where logs start."""
        await self._checkpoint(self.logs.checkpoint_start_offsets)

    async def _checkpoint(self, write: Callable[..., None], *values: object) -> None:
        try:
            write(*values)
        except KafkaError as problem:
            log.error("%s", problem)

    def report_warnings(self) -> None:
        """Logs what the log layer met since the last report."""
        for warning in self.logs.warnings:
            log.warning("%s", warning)
        self.logs.warnings.clear()

    async def stop(self) -> None:
        """Waits for the flushes that are under way."""
        if self._flushes:
            await asyncio.gather(*self._flushes, return_exceptions=True)
