"""The partitions of a coordinator's topic that this broker leads, each loaded into a state machine.

A request for a partition that is being loaded fails with COORDINATOR_LOAD_IN_PROGRESS, a request for a
partition that another broker leads with NOT_COORDINATOR. A partition that cannot be loaded is loaded again
after a growing pause: the fault may be temporary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Hashable
from typing import Final, Generic, Protocol

from tidemill.coordinator_runtime.coordinator_interfaces import (
    CoordinatorEndpoint,
    CoordinatorLog,
    CoordinatorTopic,
)
from tidemill.coordinator_runtime.coordinator_partition import partition_for
from tidemill.coordinator_runtime.coordinator_shard import (
    LOAD_RETRY_S_MAX,
    CoordinatorShard,
    ShardListener,
)
from tidemill.coordinator_runtime.state_machine import Loader, MachineT
from tidemill.coordinator_runtime.timers import ShardTimer, ShardTimerKey, Timers
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import TaskSet
from tidemill.net.deadlines import Scheduler

LOAD_SLICE_RECORDS: Final = 500
"""Records that are replayed before other tasks get the event loop: some milliseconds."""
LOAD_SLICE_BYTES: Final = 256 * 1024
"""The same in bytes: a group with many members is one large record."""


class Coordinator(ShardListener[MachineT], Protocol[MachineT]):
    """A coordinator over the runtime."""

    def new_machine(self) -> MachineT:
        """Returns a state machine without state, for a partition to load."""
        ...

    def loader(self, shard: CoordinatorShard[MachineT]) -> Loader:
        """Returns the loader for the state machine of ``shard``."""
        ...

    def loaded(self, shard: CoordinatorShard[MachineT]) -> Awaitable[None]:
        """Called once a shard is active. ``str`` of the shard's machine describes what was loaded."""
        ...

    def timer_fired(self, key: Hashable) -> None:
        """Handles the expiry of a timer that belongs to no shard."""
        ...


class CoordinatorRuntime(Generic[MachineT]):
    """The shards of a coordinator, their timers and loads."""

    def __init__(
        self,
        *,
        coordinator: Coordinator[MachineT],
        log: CoordinatorLog,
        topic: CoordinatorTopic,
        append_timeout_ms: int,
        clock: Clock,
        scheduler: Scheduler | None,
        logger: logging.Logger,
    ) -> None:
        self.topic = topic
        self.tasks = TaskSet()
        """The tasks that end with the coordinator."""
        self.timers = Timers[Hashable](scheduler or asyncio.get_running_loop(), self._timer_fired)
        self.shards: dict[int, CoordinatorShard[MachineT]] = {}
        """By partition."""
        self._coordinator = coordinator
        self._log = log
        self._append_timeout_ms = append_timeout_ms
        self._clock = clock
        self._logger = logger
        self._by_number: dict[int, CoordinatorShard[MachineT]] = {}
        self._numbers = 0
        self._loads = TaskSet()
        self._topic_creation: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR, and stops the timers and tasks."""
        for partition in list(self.shards):
            self.resign(partition)
        self.timers.close()
        await self.tasks.cancel()

    # Leadership.

    def become_leader(self, partition: int, epoch: int) -> None:
        """Starts to load a partition that this broker leads from ``epoch`` on."""
        shard = self.shards.get(partition)
        if shard is not None:
            shard.epoch = max(shard.epoch, epoch)
        else:
            self._add_shard(partition, epoch, None)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Unloads a partition that another broker leads from ``epoch`` on (None: regardless of the epoch)."""
        shard = self.shards.get(partition)
        if shard is None or (epoch is not None and epoch < shard.epoch):
            return
        del self.shards[partition]
        del self._by_number[shard.number]
        shard.close()

    async def wait_loaded(self, timeout_s: float) -> None:
        """Waits until the partitions that are being loaded are in memory, at most ``timeout_s``."""
        if self._loads:
            await asyncio.wait(self._loads, timeout=timeout_s)

    def _reload(self, failed: CoordinatorShard[MachineT]) -> None:
        """Replaces a shard by one that loads the log again."""
        self._logger.error("%s-%d is loaded again after a failure", self.topic.name, failed.partition)
        self.resign(failed.partition)
        self._add_shard(failed.partition, failed.epoch, failed)

    def _add_shard(self, partition: int, epoch: int, former: CoordinatorShard[MachineT] | None) -> None:
        """Starts to load a new shard, after the pending writes of a ``former`` one have ended."""
        self._numbers += 1
        shard = CoordinatorShard(
            topic=self.topic.name,
            partition=partition,
            epoch=epoch,
            new_machine=self._coordinator.new_machine,
            log=self._log,
            append_timeout_ms=self._append_timeout_ms,
            timers=self.timers,
            wall_ms=self._clock.wall_ms,
            number=self._numbers,
            listener=self._coordinator,
            logger=self._logger,
            on_replay_failed=self._reload,
        )
        self.shards[partition] = shard
        self._by_number[shard.number] = shard
        self._loads.track(self.tasks.start(self._load(shard, former)))

    async def _load(
        self, shard: CoordinatorShard[MachineT], former: CoordinatorShard[MachineT] | None = None
    ) -> None:
        if former is not None:
            # A write that ends later would be in the log, and not in memory.
            await former.appends_ended()
            if shard.is_closed:
                return
        started_ms = self.timers.now_ms()
        shard.reset()
        loader = self._coordinator.loader(shard)
        try:
            records = size = 0
            async for data in self._log.read(shard.partition):
                for step_bytes in loader.replay(data, shard.now()):
                    records += 1
                    size += step_bytes
                    if records >= LOAD_SLICE_RECORDS or size >= LOAD_SLICE_BYTES:
                        records = size = 0
                        await asyncio.sleep(0)
                        if shard.is_closed:
                            return
        except Exception as problem:  # noqa: BLE001 - logged
            if not shard.is_closed:
                self._load_failed(shard, loader.offset, problem)
            return
        if shard.is_closed:
            return
        shard.activate()
        self._logger.log(
            logging.INFO if loader.records or shard.load_problem else logging.DEBUG,
            "%s-%d: loaded %s from %d records in %d ms",
            self.topic.name,
            shard.partition,
            shard.machine,
            loader.records,
            self.timers.now_ms() - started_ms,
        )
        await self._coordinator.loaded(shard)

    def _load_failed(self, shard: CoordinatorShard[MachineT], offset: int, problem: Exception) -> None:
        """Schedules the next load after a growing pause. Logs each error once, and not at every attempt."""
        pause_s = shard.load_backoff.next_s()
        text = f"after offset {offset}: {problem!r}"
        self._logger.log(
            logging.DEBUG if text == shard.load_problem else logging.ERROR,
            "%s-%d could not be loaded (%s); its clients have no coordinator before that. It is repeated"
            " after pauses of up to %d s. 'tidemill log dump' shows the records.",
            self.topic.name,
            shard.partition,
            text,
            LOAD_RETRY_S_MAX,
            # Storage errors and a removed partition are KafkaErrors. Other exceptions are bugs.
            exc_info=None if isinstance(problem, KafkaError) else problem,
        )
        shard.load_problem = text
        key = ShardTimerKey(shard.number, ShardTimer.LOAD)
        self.timers.set(key, self.timers.now_ms() + int(pause_s * 1_000))

    # Timers.

    def _timer_fired(self, key: Hashable) -> None:
        if isinstance(key, ShardTimerKey):
            self.fire(key)
        else:
            self._coordinator.timer_fired(key)

    def fire(self, key: ShardTimerKey) -> None:
        """Handles the expiry of a timer of a shard."""
        self._coordinator.timer_cancelled(key)
        shard = self._by_number.get(key.shard)
        if shard is None:
            return
        if key.timer is ShardTimer.LOAD:
            self._loads.track(self.tasks.start(self._load(shard)))
            return
        try:
            shard.timer_fired(key.timer)
        except Exception:
            self._logger.exception(
                "the timer %r of %s-%d failed", key.timer, self.topic.name, shard.partition
            )

    # Requests.

    def partition_for(self, name: str) -> int:
        """The partition of the topic that stores the group or transactional id ``name``."""
        return partition_for(name, self.topic.partition_count())

    def find(self, name: str) -> tuple[CoordinatorShard[MachineT] | None, ErrorCode]:
        """Returns the shard of a group or transactional id, or the error if there is none here."""
        shard = self.shards.get(self.partition_for(name))
        if shard is None:
            return None, ErrorCode.NOT_COORDINATOR
        if not shard.is_active:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard, ErrorCode.NONE

    async def find_coordinator(self, name: str, listener: str) -> CoordinatorEndpoint:
        """Returns the address of the coordinator of ``name``; creates the topic where it is missing.

        Raises KafkaError with COORDINATOR_NOT_AVAILABLE while the partition has no leader.
        """
        partition = self.partition_for(name)
        endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            await self._ensure_topic()
            partition = self.partition_for(name)
            endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            raise KafkaError(
                f"{self.topic.name}-{partition} has no leader on listener {listener} now; retry",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        return endpoint

    async def _ensure_topic(self) -> None:
        """Creates the topic; concurrent callers share the attempt."""
        if self._topic_creation is None or self._topic_creation.done():
            self._topic_creation = self.tasks.start(self.topic.ensure())
        try:
            await asyncio.shield(self._topic_creation)
        except KafkaError as problem:
            raise KafkaError(
                f"{self.topic.name} could not be created: {problem}", ErrorCode.COORDINATOR_NOT_AVAILABLE
            ) from problem
