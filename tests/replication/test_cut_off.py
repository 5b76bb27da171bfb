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

NODE, FOLLOWER, LATE = 1, 2, 3
TOGETHER = PartitionState(0, NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), 5)
WITH_A_LATE_ONE = TOGETHER._replace(replicas=(NODE, LATE, FOLLOWER))


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


def test_a_leader_that_leads_again_commits_nothing_without_a_member_that_it_had_asked_for() -> None:
    def test(stage: Stage) -> None:
        asked = []
        stage.replicas.change_isr = lambda _, isr, epoch: asked.append((isr, epoch))
        stage.tell(WITH_A_LATE_ONE)
        partition = stage.partition
        now_ms = int(stage.clock.monotonic_ms())
        for broker in (FOLLOWER, LATE):
            partition.fetched_by(broker, 0, 0, now_ms, epoch=70 + broker)
        wanted = ((NODE, FOLLOWER, LATE), 5)
        assert asked == [wanted]
        # The controller has written it, and the answer is lost with the network.
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert asked == [wanted, wanted]
        replication = partition.replication
        assert replication is not None
        # It is the same life of the broker that is asked for.
        assert replication.epoch_of(LATE) == 70 + LATE
        partition.fetched_by(FOLLOWER, 1, 0, now_ms)
        assert partition.high_watermark == 0
        partition.fetched_by(LATE, 1, 0, now_ms)
        assert partition.high_watermark == 1

    staged(test)


def test_a_leader_that_was_alone_waits_for_who_it_had_asked_for_when_it_leads_again() -> None:
    def test(stage: Stage) -> None:
        stage.replicas.change_isr = lambda partition, isr, epoch: None
        stage.tell(TOGETHER._replace(isr=(NODE,), partition_epoch=6))
        now_ms = int(stage.clock.monotonic_ms())
        stage.partition.fetched_by(FOLLOWER, 0, 0, now_ms)
        stage.append()
        assert stage.leave(0)
        stage.cut_off.resume()
        assert (stage.partition.is_leader, stage.partition.high_watermark) == (True, 0)
        stage.replicas.isr_refused(stage.partition)
        assert stage.partition.high_watermark == 1

    staged(test)


def test_what_was_asked_for_is_over_with_the_next_state() -> None:
    def test(stage: Stage) -> None:
        asked = []
        stage.replicas.change_isr = lambda _, isr, epoch: asked.append((isr, epoch))
        stage.tell(WITH_A_LATE_ONE)
        stage.partition.fetched_by(LATE, 0, 0, int(stage.clock.monotonic_ms()))
        stage.append()
        assert stage.leave(0)
        stage.tell(WITH_A_LATE_ONE._replace(isr=(NODE, FOLLOWER, LATE), partition_epoch=6))
        stage.cut_off.resume()
        replication = stage.partition.replication
        assert replication is not None
        assert (stage.partition.isr, replication.pending) == ((NODE, FOLLOWER, LATE), ())
        assert len(asked) == 1

    staged(test)
