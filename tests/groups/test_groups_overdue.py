"""Writes that are not committed in time: whoever waits is answered, and what the write holds stays held."""

from __future__ import annotations

import asyncio

from groups_stage import MemoryLog, Stage, commit, join, turns
from test_groups_service import on_stage

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID

TOO_LATE_MS = 5_100


async def commit_overdue(stage: Stage, offset: int = 5) -> None:
    """A commit whose answer says that it took too long; its record may still be committed."""
    stage.log.gate.clear()
    committing = asyncio.ensure_future(stage.service.commit(commit(offset=offset)))
    await stage.time.advance(TOO_LATE_MS)
    assert (await committing).errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)


@on_stage
async def test_a_deleted_group_has_no_position_although_a_commit_before_it_came_late() -> None:
    async with Stage() as stage:
        await stage.service.commit(commit(topic="u"))
        await commit_overdue(stage)
        deleting = asyncio.ensure_future(stage.service.delete_groups(("g",)))
        await turns()
        stage.log.gate.set()
        assert await deleting == [ErrorCode.NONE]
        assert await stage.service.fetch("g") == (ErrorCode.NONE, {})


@on_stage
async def test_a_deleted_topic_has_no_position_although_a_commit_before_it_came_late() -> None:
    async with Stage() as stage:
        await commit_overdue(stage)
        stage.service.topics_deleted({"t": ZERO_ID})
        stage.log.gate.set()
        await turns()
        assert await stage.service.fetch("g") == (ErrorCode.NONE, {})
        assert stage.service.group_count() == 0


class LateFailures(MemoryLog):
    """A log whose appends fail once the gate opens."""

    fails = True

    async def append(self, partition: int, batch: bytes) -> None:
        await self.gate.wait()
        if self.fails:
            raise KafkaError("another broker leads", ErrorCode.NOT_LEADER_OR_FOLLOWER)


@on_stage
async def test_a_late_commit_that_is_never_written_leaves_no_group() -> None:
    async with Stage(LateFailures()) as stage:
        await commit_overdue(stage)
        assert stage.service.group_count() == 1
        stage.log.gate.set()
        await turns()
        assert stage.service.group_count() == 0


@on_stage
async def test_an_overdue_deletion_takes_no_member_that_joined_since() -> None:
    async with Stage() as stage:
        await stage.service.commit(commit())
        stage.log.gate.clear()
        deleting = asyncio.ensure_future(stage.service.delete_groups(("g",)))
        await stage.time.advance(TOO_LATE_MS)
        assert await deleting == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        joining = await asyncio.wait_for(stage.service.join(join()), 1)
        assert joining.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        stage.log.gate.set()
        await turns()
        member = await stage.stable()
        assert stage.service.heartbeat("g", member, 1, None) is ErrorCode.NONE


@on_stage
async def test_a_group_whose_overdue_deletion_is_never_written_takes_commits_again() -> None:
    log = LateFailures()
    async with Stage(log) as stage:
        log.fails = False
        await stage.service.commit(commit())
        log.fails = True
        log.gate.clear()
        deleting = asyncio.ensure_future(stage.service.delete_groups(("g",)))
        await stage.time.advance(TOO_LATE_MS)
        assert await deleting == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        log.gate.set()
        await turns()
        log.fails = False
        assert (await stage.service.commit(commit(offset=6))).errors == (ErrorCode.NONE,)
        assert (await stage.service.fetch("g"))[1]["t"][0].offset == 6


async def come_back_overdue(stage: Stage) -> str:
    """A static member comes back, and its new id is not written in time; its old id."""
    member = await stage.stable(instance_id="i", session_timeout_ms=60_000)
    stage.log.gate.clear()
    joining = asyncio.ensure_future(stage.service.join(join(instance_id="i", session_timeout_ms=60_000)))
    await stage.time.advance(TOO_LATE_MS)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    return member


def member_ids(stage: Stage) -> list[str]:
    """The members of the group."""
    described = stage.service.describe("g")
    assert not isinstance(described, ErrorCode)
    return [member.member_id for member in described.members]


@on_stage
async def test_the_next_coordinator_knows_a_static_member_whose_write_was_overdue_by_the_same_id() -> None:
    log = MemoryLog()
    async with Stage(log) as stage:
        await come_back_overdue(stage)
        log.gate.set()
        await turns()
        known = member_ids(stage)
    async with Stage(log) as stage:
        assert member_ids(stage) == known


@on_stage
async def test_a_static_member_whose_overdue_write_fails_has_its_old_id() -> None:
    log = LateFailures()
    log.fails = False
    async with Stage(log) as stage:
        member = await come_back_overdue(stage)
        log.fails = True
        log.gate.set()
        await turns()
        assert member_ids(stage) == [member]


@on_stage
async def test_a_static_member_comes_back_at_its_second_try_when_the_first_was_overdue() -> None:
    async with Stage() as stage:
        await come_back_overdue(stage)
        joining = asyncio.ensure_future(stage.service.join(join(instance_id="i", session_timeout_ms=60_000)))
        await turns()
        stage.log.gate.set()
        joined = await joining
        assert joined.error is ErrorCode.NONE
        assert member_ids(stage) == [joined.member_id]
        assert stage.service.heartbeat("g", joined.member_id, 1, "i") is ErrorCode.NONE
