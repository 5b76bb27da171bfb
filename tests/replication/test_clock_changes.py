"""A wall clock that is set back or ahead while the broker measures durations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from faulty_files import FaultyFiles
from replica_stage import FOLLOWER, LEADER, TOPIC, batch_of

from broker_listeners import IgnoringReplicaManagerListener
from log_start import start_logs
from tidemill.log.log_config import LogConfig
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

HOUR_MS = 3_600_000
LAG_MS = 30_000
NOW_MS = 1_700_000_000_000
TOGETHER = PartitionState(0, LEADER, 3, (LEADER, FOLLOWER), (LEADER, FOLLOWER), 5)


class WrongClock(Clock):
    """A machine with a wall clock that can be set."""

    def __init__(self) -> None:
        self.wall = NOW_MS
        self.elapsed_ms = 0

    def wall_ms(self) -> int:
        return self.wall + self.elapsed_ms

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000


class Stage:
    """One partition that this broker leads, with a follower in the in-sync set."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.clock = WrongClock()
        self.logs = start_logs(FaultyFiles(), ["/d"], now_ms=self.clock.wall_ms(), node=LEADER)
        self.replicas = ReplicaManager(
            LEADER,
            self.logs,
            self.clock,
            asyncio.get_running_loop(),
            pool,
            pool,
            IgnoringReplicaManagerListener(),
        )
        self.replicas.lag_ms_max = LAG_MS
        self.wanted: list[tuple[int, ...]] = []
        self.replicas.listener.alter_isr = lambda partition, isr, epoch: self.wanted.append(isr)
        self.logs.create(TopicPartition("t", 0), TOPIC, LogConfig(), self.clock.wall_ms())
        run_at_once(self.replicas.put_topic_in_slices("t", TOPIC, False, [TOGETHER], LogConfig()))
        found = self.replicas.find("t", 0)
        assert found is not None
        self.partition: Partition = found

    def append(self) -> None:
        self.partition.append(batch_of(b"v"), 1, self.clock.wall_ms())

    async def is_dropped(self) -> bool:
        await self.replicas.maybe_shrink_isr()
        return self.wanted == [(LEADER,)]


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    with ThreadPoolExecutor(1) as pool:
        yield Stage(pool)


async def test_a_clock_set_back_does_not_keep_a_silent_follower_in_sync() -> None:
    async with staged() as stage:
        stage.append()
        stage.clock.wall -= HOUR_MS
        stage.clock.elapsed_ms += LAG_MS
        assert not await stage.is_dropped()
        stage.clock.elapsed_ms += 1
        assert await stage.is_dropped()


async def test_a_clock_set_ahead_does_not_remove_a_follower_from_the_isr() -> None:
    async with staged() as stage:
        stage.append()
        stage.clock.wall += HOUR_MS
        assert not await stage.is_dropped()


async def test_a_clock_set_back_does_not_delay_a_flush_ms_sync() -> None:
    async with staged() as stage:
        stage.partition.log.set_config(LogConfig(flush_ms=1000))
        stage.append()
        stage.clock.wall -= HOUR_MS
        assert stage.logs.flushes_due(stage.clock.wall_ms()) == []
        stage.clock.elapsed_ms += 1000
        assert [log for log, _ in stage.logs.flushes_due(stage.clock.wall_ms())] == [stage.partition.log]
