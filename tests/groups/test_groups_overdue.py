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
