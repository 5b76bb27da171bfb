"""A leader without contact to the store and its replicas: when it stops leading, and when it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from faulty_files import FaultyFiles
from replica_stage import batch_of

from broker_listeners import IgnoringReplicaManagerListener
from log_start import start_logs
from tidemill.log.log_config import LogConfig
from tidemill.model.clock import SystemClock
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from tidemill.replication.leader_isolation import StoreIsolation
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

NODE, FOLLOWER, LATE = 1, 2, 3
TOGETHER = PartitionState(0, NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), 5)
WITH_A_LATE_ONE = TOGETHER._replace(replicas=(NODE, LATE, FOLLOWER))


class Stage:
    """One partition that this broker leads."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.logs = start_logs(FaultyFiles(), ["/d"], now_ms=0, node=NODE)
        self.clock = SystemClock()
        self.replicas = ReplicaManager(
            NODE,
            self.logs,
            self.clock,
            asyncio.get_running_loop(),
            pool,
            pool,
            IgnoringReplicaManagerListener(),
        )
        self.logs.create(TopicPartition("t", 0), bytes(16), LogConfig(), 0)
        self.tell(TOGETHER)
        self.cut_off = StoreIsolation(self.replicas)

    def tell(self, state: PartitionState) -> None:
        run_at_once(self.replicas.put_topic_in_slices("t", bytes(16), False, [state], LogConfig()))

    @property
    def partition(self) -> Partition:
        found = self.replicas.find("t", 0)
        assert found is not None
        return found

    def append(self) -> None:
        self.partition.append(batch_of(b"v"), 1, self.clock.wall_ms())

    def leave(self, silent_ms: int) -> bool:
        """Returns whether the partition is not led after this time without contact."""
        self.cut_off.leave(int(self.clock.monotonic_ms()) + 60_000 - silent_ms)
        return not self.partition.is_leader


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    with ThreadPoolExecutor(1) as pool:
        yield Stage(pool)


async def test_a_partition_waiting_for_silent_followers_is_not_led_until_the_session_resumes() -> None:
    async with staged() as stage:
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert stage.partition.is_leader
        assert stage.partition.leader_epoch == TOGETHER.leader_epoch


async def test_partitions_with_fetching_followers_or_without_waits_keep_their_leader() -> None:
    async with staged() as stage:
        assert not stage.leave(0)
        stage.append()
        # Within the allowed time, or with fetches.
        assert not stage.leave(120_000)
        stage.partition.fetched_by(FOLLOWER, 0, 0, stage.clock.wall_ms() + 60_000)
        assert not stage.leave(1000)
        stage.tell(TOGETHER._replace(isr=(NODE,), partition_epoch=6))
        stage.append()
        assert not stage.leave(0)


async def test_a_partition_with_a_new_leader_is_not_led_again() -> None:
    async with staged() as stage:
        stage.append()
        assert stage.leave(0)
        stage.tell(TOGETHER._replace(leader=FOLLOWER, leader_epoch=4, partition_epoch=6))
        stage.cut_off.resume()
        assert (stage.partition.leader, stage.partition.leader_epoch) == (FOLLOWER, 4)


async def test_after_session_expiration_only_the_controller_assigns_leaders() -> None:
    async with staged() as stage:
        stage.append()
        assert stage.leave(0)
        stage.cut_off.clear()
        stage.cut_off.resume()
        assert not stage.partition.is_leader


async def test_a_resumed_leader_commits_nothing_without_a_requested_isr_member() -> None:
    async with staged() as stage:
        requested = []
        stage.replicas.listener.alter_isr = lambda _, isr, epoch: requested.append((isr, epoch))
        stage.tell(WITH_A_LATE_ONE)
        partition = stage.partition
        now_ms = int(stage.clock.monotonic_ms())
        for broker in (FOLLOWER, LATE):
            partition.fetched_by(broker, 0, 0, now_ms, epoch=70 + broker)
        wanted = ((NODE, FOLLOWER, LATE), 5)
        assert requested == [wanted]
        # The controller has written it, and the network lost the response.
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert requested == [wanted, wanted]
        replication = partition.replication
        assert replication is not None
        # The request is for the same broker epoch.
        assert replication.epoch_of(LATE) == 70 + LATE
        partition.fetched_by(FOLLOWER, 1, 0, now_ms)
        assert partition.high_watermark == 0
        partition.fetched_by(LATE, 1, 0, now_ms)
        assert partition.high_watermark == 1


async def test_a_resumed_sole_leader_waits_for_a_requested_isr_member() -> None:
    async with staged() as stage:
        stage.replicas.listener.alter_isr = lambda partition, isr, epoch: None
        stage.tell(TOGETHER._replace(isr=(NODE,), partition_epoch=6))
        now_ms = int(stage.clock.monotonic_ms())
        stage.partition.fetched_by(FOLLOWER, 0, 0, now_ms)
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert (stage.partition.is_leader, stage.partition.high_watermark) == (True, 0)
        stage.replicas.isr_refused(stage.partition)
        assert stage.partition.high_watermark == 1


async def test_a_new_partition_state_ends_a_pending_isr_change() -> None:
    async with staged() as stage:
        requested = []
        stage.replicas.listener.alter_isr = lambda _, isr, epoch: requested.append((isr, epoch))
        stage.tell(WITH_A_LATE_ONE)
        stage.partition.fetched_by(LATE, 0, 0, int(stage.clock.monotonic_ms()))
        stage.append()
        assert stage.leave(0)
        stage.tell(WITH_A_LATE_ONE._replace(isr=(NODE, FOLLOWER, LATE), partition_epoch=6))
        stage.cut_off.resume()
        state = stage.partition.isr_state
        assert (state.isr, state.pending) == ((NODE, FOLLOWER, LATE), None)
        assert len(requested) == 1
