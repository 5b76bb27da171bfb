"""Random walks of the group coordinator over a log with delayed and failed writes and changing leaders.

At the end another coordinator loads the log, and must have the state of the last one: the same offsets, none
from before an acknowledged deletion, and the same members of a stable group.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from coordinator_fixture import PARTITIONS, CoordinatorFixture, MemoryLog, commit, join, turns

from tidemill.groups.coordinator_effects import CommitRequest, LeavingMember, OffsetToCommit, SyncRequest
from tidemill.groups.group_metadata import GroupMetadata
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID

WALKS, STEPS_MAX = 300, 80
GROUPS, TOPICS = ("g", "h"), ("t", "u")
SESSION = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 4_000}
Positions = dict[tuple[str, str], int]


class HeldLog(MemoryLog):
    """A log that appends at once, and delays the acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.held: list[tuple[int, bytes, asyncio.Future[None]]] = []

    async def append(self, partition: int, batch: bytes) -> None:
        self.batches.setdefault(partition, []).append(batch)
        if self.holds or self.held:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.held.append((partition, batch, future))
            await future

    def release(self, count: int) -> None:
        """Commits the oldest writes."""
        for _, _, future in self.held[:count]:
            future.set_result(None)
        del self.held[:count]

    def move(self, keeps: bool) -> None:
        """Another broker leads: delayed writes fail, and may be in the log nevertheless."""
        for partition, batch, future in self.held:
            if not keeps:
                self.batches[partition].remove(batch)
            future.set_exception(KafkaError("moved", ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.held.clear()


class Walk:
    """Clients of two groups, and their responses."""

    def __init__(self, seed: int, fixture: CoordinatorFixture, log: HeldLog) -> None:
        self.random = random.Random(seed)
        self.fixture = fixture
        self.service = fixture.service
        self.log = log
        self.members: list[tuple[str, str, int, str | None]] = []
        self.deleted: Positions = {}
        """Offsets up to these are deleted."""
        self.joins: set[asyncio.Task[None]] = set()
        self.others: set[asyncio.Task[Any]] = set()
        self.steps = 0

    async def play(self) -> None:
        """Runs all steps, and commits all writes at the end.

        Each walk has random weights of the steps, so that walks differ in their emphasis.
        """
        choices = [
            self.commit, self.commit_as_member, self.delete_group, self.delete_offset, self.delete_topic,
            self.expire, self.join, self.leave, self.hold, self.release, self.move, self.wait,
        ]  # fmt: skip
        weights = [self.random.choice((0.1, 1, 1, 4)) for _ in choices]
        for _ in range(self.random.randint(20, STEPS_MAX)):
            self.steps += 1
            group = self.random.choice(GROUPS)
            await self.random.choices(choices, weights)[0](group)
            await turns(self.random.choice((0, 0, 1, 3, 6)))
        self.log.holds = False
        self.log.release(len(self.log.held))
        await self.fixture.time.advance(10)
        await turns(60)
        assert all(task.done() for task in self.others)
        for task in self.joins:
            task.cancel()

    def spawn(self, request: Coroutine[Any, Any, Any]) -> None:
        self.others.add(asyncio.ensure_future(request))

    async def commit(self, group: str) -> None:
        topic = self.random.choice(TOPICS)
        self.spawn(self.service.commit(commit(group, self.steps, topic)))

    async def commit_as_member(self, group: str) -> None:
        for name, member_id, generation, instance_id in self.members[-1:]:
            offsets = (OffsetToCommit(topic="t", partition=0, offset=self.steps),)
            self.spawn(
                self.service.commit(
                    CommitRequest(
                        group_id=name,
                        offsets=offsets,
                        generation=generation,
                        member_id=member_id,
                        instance_id=instance_id,
                    )
                )
            )

    async def delete_group(self, group: str) -> None:
        async def delete(step: int) -> None:
            if await self.service.delete_groups((group,)) == [ErrorCode.NONE]:
                for topic in TOPICS:
                    self.deleted[group, topic] = max(step, self.deleted.get((group, topic), 0))

        self.spawn(delete(self.steps))

    async def delete_offset(self, group: str) -> None:
        async def delete(step: int) -> None:
            result = await self.service.delete_offsets(group, (("t", 0),))
            if result.errors == (ErrorCode.NONE,):
                self.deleted[group, "t"] = max(step, self.deleted.get((group, "t"), 0))

        self.spawn(delete(self.steps))

    async def delete_topic(self, group: str) -> None:
        await self.service.topics_deleted({"u": ZERO_ID})

    async def expire(self, group: str) -> None:
        self.spawn(self.service.expire())

    async def join(self, group: str) -> None:
        instance_id = self.random.choice((None, "i1", "i2"))
        self.joins.add(asyncio.ensure_future(self._join(group, instance_id)))

    async def _join(self, group: str, instance_id: str | None) -> None:
        needs_id = instance_id is None and self.random.random() < 0.5
        given: dict[str, Any] = {"instance_id": instance_id, "requires_known_member_id": needs_id, **SESSION}
        joined = await self.service.join(join(group, **given))
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            joined = await self.service.join(join(group, joined.member_id, **given))
        if joined.error is ErrorCode.NONE:
            self.members.append((group, joined.member_id, joined.generation, instance_id))
            shares = tuple((member.member_id, b"x") for member in joined.members)
            await self.service.sync(
                SyncRequest(
                    group_id=group,
                    member_id=joined.member_id,
                    generation=joined.generation,
                    instance_id=instance_id,
                    assignments=shares,
                )
            )

    async def leave(self, group: str) -> None:
        if self.members:
            name, member_id, _, instance_id = self.members.pop()
            self.spawn(
                self.service.leave(name, (LeavingMember(member_id=member_id, instance_id=instance_id),))
            )

    async def hold(self, group: str) -> None:
        self.log.holds = True

    async def release(self, group: str) -> None:
        if self.random.random() < 0.5:
            self.log.release(1)
        else:
            self.log.holds = False
            self.log.release(len(self.log.held))

    async def move(self, group: str) -> None:
        """Moves all partitions to another broker, and back."""
        for partition in range(PARTITIONS):
            self.service.runtime.resign(partition)
        await turns(self.random.randint(0, 3))
        self.log.holds = False
        self.log.move(self.random.random() < 0.5)
        await turns(self.random.randint(0, 3))
        self.fixture.lead()

    async def wait(self, group: str) -> None:
        await self.fixture.time.advance(self.random.choice((10, 1_000, 5_200, 70_000)))


def groups_of(fixture: CoordinatorFixture) -> Iterator[GroupMetadata]:
    """All groups in memory."""
    for shard in fixture.service.runtime.shards.values():
        assert shard.is_active
        yield from shard.machine.groups.values()


def positions_of(fixture: CoordinatorFixture) -> Positions:
    """All committed offsets by group and topic."""
    return {
        (group.group_id, topic): one.offset
        for group in groups_of(fixture)
        for topic, of_topic in group.offsets.items()
        for one in of_topic.values()
    }


def members_of(fixture: CoordinatorFixture) -> dict[str, tuple[str, list[str]]]:
    """The state and members of each group."""
    return {group.group_id: (group.state.value, sorted(group.members)) for group in groups_of(fixture)}


async def walk(seed: int) -> None:
    """Runs a walk, and loads its log with another coordinator."""
    log = HeldLog()
    async with CoordinatorFixture(log) as fixture:
        one = Walk(seed, fixture, log)
        await one.play()
        assert [group.group_id for group in groups_of(fixture) if group.in_flight or group.deleting] == []
        positions, members = positions_of(fixture), members_of(fixture)
    async with CoordinatorFixture(log) as fixture:
        await turns(60)
        found = positions_of(fixture)
        assert found == positions
        assert {key: step for key, step in found.items() if step <= one.deleted.get(key, 0)} == {}
        loaded = members_of(fixture)
        stable = {group_id: of for group_id, of in members.items() if of[0] == "Stable"}
        assert {group_id: loaded.get(group_id) for group_id in stable} == stable
        assert not [
            group_id
            for group_id, of in loaded.items()
            if of[0] == "Stable" and members.get(group_id, ("Dead",))[0] in ("Dead", "Empty")
        ]


@pytest.mark.parametrize("first", range(0, WALKS, 20))
def test_the_next_coordinator_has_the_state_of_the_last_one(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            asyncio.run(walk(seed))
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
