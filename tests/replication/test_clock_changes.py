"""A wall clock that is set back or ahead, while the broker measures how long something takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from replica_stage import FOLLOWER, LEADER, TOPIC

from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.ports import Clock
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.testing.files import FaultyFiles

HOUR_MS = 3_600_000
LAG_MS = 30_000
NOW_MS = 1_700_000_000_000
TOGETHER = PartitionState(0, LEADER, 3, (LEADER, FOLLOWER), (LEADER, FOLLOWER), 5)


class WrongClock(Clock):
    """A machine whose wall clock can be set."""

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
        self.logs = LogManager(FaultyFiles(), ["/d"])
        self.logs.lock()
        self.logs.claim("cluster", LEADER)
        self.logs.load(self.clock.wall_ms(), lambda topic: LogConfig())
        self.replicas = ReplicaManager(LEADER, self.logs, self.clock, asyncio.get_running_loop(), pool, pool)
        self.replicas.lag_ms_max = LAG_MS
        self.wanted: list[tuple[int, ...]] = []
        self.replicas.change_isr = lambda partition, isr, epoch: self.wanted.append(isr)
        self.logs.create(TopicPartition("t", 0), TOPIC, LogConfig(), self.clock.wall_ms())
        self.replicas.put_topic("t", TOPIC, False, [TOGETHER], LogConfig())
        found = self.replicas.find("t", 0)
        assert found is not None
        self.partition: Partition = found

    def append(self) -> None:
        data = build_batch([(NOW_MS, b"k", b"v", None)])
        self.partition.append([parse_batch(data, 0, len(data))], 1, self.clock.wall_ms())

    async def is_dropped(self) -> bool:
        await self.replicas.drop_lagging()
        return self.wanted == [(LEADER,)]


def staged(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            await test(Stage(pool))

    asyncio.run(run())


def test_a_clock_set_back_keeps_no_silent_follower_in_the_in_sync_set() -> None:
    async def test(stage: Stage) -> None:
        stage.append()
        stage.clock.wall -= HOUR_MS
        stage.clock.elapsed_ms += LAG_MS
        assert not await stage.is_dropped()
        stage.clock.elapsed_ms += 1
        assert await stage.is_dropped()

    staged(test)


def test_a_clock_set_ahead_drops_no_follower_from_the_in_sync_set() -> None:
    async def test(stage: Stage) -> None:
        stage.append()
        stage.clock.wall += HOUR_MS
        assert not await stage.is_dropped()

    staged(test)


def test_a_clock_set_back_puts_off_no_sync_of_flush_ms_for_longer_than_that() -> None:
    async def test(stage: Stage) -> None:
        stage.partition.log.set_config(LogConfig(flush_ms=1000))
        stage.append()
        stage.clock.wall -= HOUR_MS
        assert stage.logs.flushes_due(stage.clock.wall_ms()) == []
        stage.clock.elapsed_ms += 1000
        assert [log for log, _ in stage.logs.flushes_due(stage.clock.wall_ms())] == [stage.partition.log]

    staged(test)
