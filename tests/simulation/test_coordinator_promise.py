"""The checker detects coordinators whose state or responses differ from their log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from coordinator_promise import CoordinatorPromise
from simulated_disk import SimulatedFiles
from simulated_loop import SimulatedLoop

from tidemill.broker import coordinator_topic
from tidemill.broker.coordinator_topic import PartitionCoordinatorLog
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Waiter
from tidemill.groups import membership, offset_commits, rebalance
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    GroupState,
    JoinRequest,
    MemberProtocol,
    OffsetToCommit,
    SyncRequest,
)
from tidemill.groups.group_coordinator import GroupCoordinator, GroupShard
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.offset_records import CommittedOffset
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

NOW = 1_700_000_000_000
TOPIC_ID = b"t" * 16
JOIN = JoinRequest(
    group_id="g",
    member_id="",
    new_member_id="",
    protocol_type="consumer",
    protocols=(MemberProtocol(name="range", metadata=b""),),
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    client_id="one",
)


class Led:
    """A partition of ``__consumer_offsets`` that commits at once, unless it is set to wait."""

    topic, index, is_leader, is_offline = OFFSETS_TOPIC, 0, True, False

    def __init__(self) -> None:
        files = SimulatedFiles(cast(SimulatedLoop, SimpleNamespace(time=lambda: 0.0, is_in_job=False)))
        name = f"{OFFSETS_TOPIC}-0"
        for directory in ("/data", f"/data/{name}"):
            files.make_directory(directory)
        key = TopicPartition(OFFSETS_TOPIC, 0)
        self.log = LogLoader(
            files, f"/data/{name}", key, LogConfig(), removals=DelayedFileRemoval(), now_ms=NOW
        ).open()
        self.high_watermark = 0
        self.waits = False
        self.waiting: list[Any] = []
        self.delayed = SimpleNamespace(wait_committed=self._wait_committed)

    def append(self, batch: Any, acks: int, now_ms: int) -> Any:
        result = self.log.append(batch, 0, now_ms)
        if not self.waits:
            self.high_watermark = int(self.log.end_offset)
        return result

    def is_committed(self, end_offset: int) -> bool:
        return end_offset <= self.high_watermark

    def _wait_committed(self, end_offset: int, callback: Any) -> None:
        self.waiting.append(callback)

    def commit_error(self) -> None:
        """There are enough replicas."""

    def commit(self) -> None:
        """Commits all records."""
        self.high_watermark = int(self.log.end_offset)
        self.end(None)

    def end(self, error: KafkaError | None) -> None:
        """Completes all waits for commits."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.call(error)

    def read(self, *of: Any) -> Any:
        return self.log.read(*of)


class Coordinated:
    """A broker that coordinates groups, with a checker."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.excuses: Counter[str] = Counter()
        self.promise = CoordinatorPromise(
            lambda name, text: self.broken.append(f"{name}: {text}"), self._excused
        )
        self.led = Led()
        self.partitions = SimpleNamespace(
            find=lambda topic, index: self.led,
            topics=SimpleNamespace(by_name={OFFSETS_TOPIC.encode(): SimpleNamespace(partitions=[self.led])}),
        )
        clock = SystemClock()
        broker = SimpleNamespace(
            replica_manager=self.partitions, partition=lambda topic, index: self.led, clock=clock
        )
        self.service = GroupCoordinator(
            offsets_log=PartitionCoordinatorLog(cast(Any, broker), OFFSETS_TOPIC),
            topic=cast(Any, SimpleNamespace(name=OFFSETS_TOPIC, partition_count=lambda: 1)),
            config=GroupCoordinatorConfig(
                initial_rebalance_delay_ms=0, min_session_timeout_ms=1, unpacked_bytes_max=UNPACKED_BYTES_MAX
            ),
            clock=clock,
        )

    def _excused(self, excuse: str) -> bool:
        self.excuses[excuse] += 1
        return True

    @property
    def shard(self) -> GroupShard:
        return self.service.runtime.shards[0]

    async def load(self) -> None:
        """The broker becomes the coordinator, and has read its log."""
        self.service.runtime.become_leader(0, 1)
        await self.service.runtime.wait_loaded(5)

    async def commit(self, offset: int, topic_id: bytes = TOPIC_ID, topic: str = "t") -> ErrorCode:
        """A group without members commits an offset."""
        request = CommitRequest(
            group_id="simple",
            offsets=(OffsetToCommit(topic=topic, partition=0, offset=offset, topic_id=topic_id),),
        )
        return (await self.service.commit(request)).errors[0]

    async def reaches_log(self) -> None:
        """Waits until a batch has been appended and waits for its commit."""
        while not self.led.waiting:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)

    async def make_stable(self, instance_id: str | None = None) -> str:
        """A group with one member has its assignment."""
        joined = await self.service.join(JOIN.replace(instance_id=instance_id))
        request = SyncRequest(
            group_id="g",
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=((joined.member_id, b"x"),),
            instance_id=instance_id,
        )
        assert (await self.service.sync(request)).assignment == b"x"
        return joined.member_id

    def look(self) -> None:
        self.promise.look("broker-1", self.service, cast(Any, self.partitions))


@asynccontextmanager
async def coordinated() -> AsyncIterator[Coordinated]:
    """A broker that has loaded an empty log."""
    stage = Coordinated()
    with ExitStack() as stack:
        for patch in stage.promise.patches():
            stack.enter_context(patch)
        await stage.load()
        yield stage
        await stage.service.stop()


async def test_a_coordinator_equal_to_its_log_breaks_no_promise() -> None:
    async with coordinated() as stage:
        assert await stage.commit(5) is ErrorCode.NONE
        member = await stage.make_stable()
        stage.led.waits = True
        committing = asyncio.ensure_future(stage.commit(6))
        await stage.reaches_log()
        assert (await stage.service.fetch("simple"))[1]["t"][0].offset == 5
        stage.led.commit()
        assert await committing is ErrorCode.NONE
        stage.led.waits = False
        assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.NONE
        stage.service.runtime.resign(0)
        await stage.load()
        assert (await stage.service.fetch("simple"))[1]["t"][0].offset == 6
        await stage.service.topics_deleted({"t": TOPIC_ID})
        assert await stage.commit(7, b"u" * 16) is ErrorCode.NONE
        stage.look()
        assert stage.broken == []


async def test_a_committed_offset_that_is_not_in_the_log_is_found() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        stage.shard.machine.groups["simple"].offsets["t"][0] = CommittedOffset(6)
        await stage.service.fetch("simple")
        assert "group simple" in stage.broken[0]


async def test_an_offset_commit_acknowledged_before_it_is_committed_is_found() -> None:
    async with coordinated() as stage:
        stage.led.waits = True
        with mock.patch.object(Led, "is_committed", return_value=True):
            await stage.commit(5)
        assert "and 0 is committed" in stage.broken[0]


async def test_groups_served_before_their_log_is_committed_are_found() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        stage.service.runtime.resign(0)
        stage.led.high_watermark = 0

        async def is_not_awaited(*of: Any) -> None:
            return

        with mock.patch.object(coordinator_topic, "_wait_until_committed", is_not_awaited):
            await stage.load()
        assert "which is committed up to 0" in stage.broken[0]


async def test_an_incompletely_loaded_log_is_found() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        await stage.make_stable()
        stage.service.runtime.resign(0)
        read = stage.led.log.read
        ends_early = mock.patch.object(
            Led, "read", lambda self, offset, *of: None if offset else read(offset, 1, *of[1:])
        )
        with ends_early:
            await stage.load()
        assert any("knows None of group g" in one for one in stage.broken)


async def test_groups_of_a_partition_that_another_broker_leads_are_found() -> None:
    async with coordinated() as stage:
        stage.look()
        assert stage.broken == []
        stage.led.is_leader = False
        stage.look()
        assert "leads partitions []" in stage.broken[0]


@pytest.mark.parametrize("instance_id", [None, "i"])
@pytest.mark.parametrize("state", ["generation", "leader", "assignment", "protocol"])
async def test_a_stable_group_that_differs_from_its_log_is_found(state: str, instance_id: str | None) -> None:
    async with coordinated() as stage:
        member = await stage.make_stable(instance_id)
        group = stage.shard.machine.groups["g"]
        if state == "generation":
            group.generation += 1
        elif state == "leader":
            group.leader = None
        elif state == "protocol":
            group.protocol_name = "sticky"
        else:
            group.members[member].assignment = b"y"
        await stage.commit(1)
        assert any("treats g as stable" in one for one in stage.broken)


async def test_a_returned_static_member_has_its_new_id_before_the_log_has_it() -> None:
    async with coordinated() as stage:
        await stage.make_stable("i")
        stage.led.waits = True
        joining = asyncio.ensure_future(stage.service.join(JOIN.replace(instance_id="i")))
        await stage.reaches_log()
        stage.promise.check(stage.promise._watched[stage.shard])
        assert stage.excuses["static-id"] > 0
        stage.led.commit()
        await joining
        stage.excuses.clear()
        stage.promise.check(stage.promise._watched[stage.shard])
        assert (stage.broken, stage.excuses) == ([], Counter())


async def test_an_assignment_of_another_generation_is_found() -> None:
    async with coordinated() as stage:
        with mock.patch.object(
            membership,
            "sync_response",
            lambda group, member: rebalance.sync_response(group, member).replace(assignment=b"z"),
        ):
            member = await stage.make_stable()
            await stage.service.sync(SyncRequest(group_id="g", member_id=member, generation=1))
        assert "assigns b'z'" in stage.broken[0]


async def test_a_member_whose_session_never_ends_is_found() -> None:
    async with coordinated() as stage:
        member = await stage.make_stable()
        stage.shard.machine.groups["g"].members[member].timer_ms = None
        await stage.commit(1)
        assert "the session of" in stage.broken[0]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("awaiting_join", 1, "0 members wait for the next generation"),
        ("pending_syncs", {"x"}, "which are not members"),
        ("leader", "x", "which is not a member"),
        ("state", GroupState.EMPTY, "it has members"),
        ("state", GroupState.PREPARING_REBALANCE, "the time to join never ends"),
    ],
)
async def test_an_inconsistent_group_is_found(name: str, value: object, text: str) -> None:
    async with coordinated() as stage:
        await stage.make_stable()
        setattr(stage.shard.machine.groups["g"], name, value)
        await stage.commit(1)
        assert any(text in one for one in stage.broken)


async def test_a_member_that_waits_for_an_assignment_without_a_leader_is_found() -> None:
    async with coordinated() as stage:
        member = await stage.make_stable()
        stage.shard.machine.groups["g"].members[member].syncing = Waiter(object())
        await stage.commit(1)
        assert "wait for an assignment without a leader" in stage.broken[0]


async def test_a_heartbeat_without_effect_is_found() -> None:
    async with coordinated() as stage:
        member = await stage.make_stable()
        stage.shard.machine.groups["g"].members[member].session_timeout_ms = 1_000
        await stage.commit(1)
        assert "is longer than it asked for" in stage.broken.pop()
        with mock.patch.object(membership, "touch", return_value=None):
            stage.shard.machine.groups["g"].members[member].session_timeout_ms = 20_000
            stage.service.heartbeat("g", member, 1, None)
        assert "session timeout is unchanged" in stage.broken[0]


async def test_a_coordinator_that_serves_unloaded_groups_is_found() -> None:
    async with coordinated() as stage:
        stage.service.runtime.resign(0)
        stage.service.runtime.become_leader(0, 2)
        assert await stage.service.fetch("g") == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {})
        assert stage.broken == []
        stage.shard.machine.offsets("g")
        assert "has not loaded its log" in stage.broken[0]


async def test_a_member_that_did_not_join_a_generation_is_found() -> None:
    async with coordinated() as stage:
        first = await stage.make_stable()
        stage.shard.machine.groups["g"].pending_joins.add("x")
        joining = asyncio.ensure_future(stage.service.join(JOIN.replace(client_id="two")))
        await asyncio.sleep(0)
        group = stage.shard.machine.groups["g"]
        with mock.patch.object(rebalance, "drop_member", return_value=None):
            rebalance.complete_join(group, stage.shard.machine._context(stage.shard.now()))
            stage.shard.perform_effects()
        await joining
        assert first in stage.broken[0]
        assert "did not join" in stage.broken[0]


async def test_committed_offsets_that_outlive_their_topic_are_found() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        await stage.service.topics_deleted({"t": b"u" * 16})  # Of another topic of the name.
        with mock.patch.object(offset_commits, "partitions_of_deleted_topics", return_value={}):
            assert stage.broken == []
            await stage.service.topics_deleted({"t": TOPIC_ID})
        assert "keeps" in stage.broken.pop()
        stage.promise.topic_gone(stage.shard._log._broker.replica_manager, "t", TOPIC_ID)  # type: ignore[attr-defined]
        assert "keeps" in stage.broken[0]


async def test_a_committed_offset_that_outlives_its_topic_is_found_after_another_write_failed() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        stage.led.waits = True
        committing = asyncio.ensure_future(stage.commit(1, b"u" * 16, "u"))
        await stage.reaches_log()
        with mock.patch.object(offset_commits, "partitions_of_deleted_topics", return_value={}):
            await stage.service.topics_deleted({"t": TOPIC_ID})
        assert stage.broken == [], "a tombstone may be under way"
        stage.led.end(KafkaError("too few replicas", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        assert await committing is not ErrorCode.NONE
        assert "keeps" in stage.broken[0]
        assert not stage.excuses


async def test_a_committed_offset_may_outlive_its_topic_if_the_write_of_its_tombstone_failed() -> None:
    async with coordinated() as stage:
        await stage.commit(5)
        stage.led.waits = True
        await stage.service.topics_deleted({"t": TOPIC_ID})
        await stage.reaches_log()
        stage.led.end(KafkaError("too few replicas", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        await asyncio.sleep(0.01)
        assert stage.broken == []
        assert stage.excuses == {"tombstone-unwritten": 1}
