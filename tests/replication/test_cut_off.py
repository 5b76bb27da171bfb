"""A leader that hears neither of the store nor of its replicas: when it stops leading, when it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.cut_off import CutOff
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.testing.files import FaultyFiles

NODE, FOLLOWER = 1, 2
TOGETHER = PartitionState(0, NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), 5)


class Stage:
    """One partition that this broker leads."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.logs = LogManager(FaultyFiles(), ["/d"])
        self.logs.lock()
        self.logs.claim("cluster", NODE)
        self.logs.load(0, lambda topic: LogConfig())
        self.clock = SystemClock()
        self.replicas = ReplicaManager(NODE, self.logs, self.clock, asyncio.get_running_loop(), pool, pool)
        self.logs.create(TopicPartition("t", 0), bytes(16), LogConfig(), 0)
        self.tell(TOGETHER)
        self.cut_off = CutOff(self.replicas)

    def tell(self, state: PartitionState) -> None:
        self.replicas.put_topic("t", bytes(16), False, [state], LogConfig())

    @property
    def partition(self) -> Partition:
        found = self.replicas.find("t", 0)
        assert found is not None
        return found

    def append(self) -> None:
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)])
        self.partition.append([parse_batch(data, 0, len(data))], 1, self.clock.wall_ms())

    def leave(self, silent_ms: int) -> bool:
        """Whether the partition is led no more, after so long without a word."""
        self.cut_off.leave(int(self.clock.monotonic_ms()) + 60_000 - silent_ms)
        return not self.partition.is_leader


def staged(test: Callable[[Stage], None]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            test(Stage(pool))

    asyncio.run(run())


def test_what_waits_for_silent_followers_is_led_no_more_until_the_session_turns_out_to_live() -> None:
    def test(stage: Stage) -> None:
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert stage.partition.is_leader
        assert stage.partition.leader_epoch == TOGETHER.leader_epoch

    staged(test)


def test_followers_that_fetch_keep_their_leader_and_so_do_partitions_that_wait_for_nobody() -> None:
    def test(stage: Stage) -> None:
        assert not stage.leave(0)
        stage.append()
        # Within the time that it is given, or as it fetches.
        assert not stage.leave(120_000)
        stage.partition.fetched_by(FOLLOWER, 0, 0, stage.clock.wall_ms() + 60_000)
        assert not stage.leave(1000)
        stage.tell(TOGETHER._replace(isr=(NODE,), partition_epoch=6))
        stage.append()
        assert not stage.leave(0)

    staged(test)


def test_what_others_were_given_meanwhile_is_not_led_again() -> None:
    def test(stage: Stage) -> None:
        stage.append()
        assert stage.leave(0)
        stage.tell(TOGETHER._replace(leader=FOLLOWER, leader_epoch=4, partition_epoch=6))
        stage.cut_off.resume()
        assert (stage.partition.leader, stage.partition.leader_epoch) == (FOLLOWER, 4)

    staged(test)


def test_after_the_session_s_end_only_the_controller_says_what_is_led() -> None:
    def test(stage: Stage) -> None:
        stage.append()
        assert stage.leave(0)
        stage.cut_off.forget()
        stage.cut_off.resume()
        assert not stage.partition.is_leader

    staged(test)
