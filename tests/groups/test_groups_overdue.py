"""Writes that are not committed in time: whoever waits is answered, and what the write holds stays held."""

from __future__ import annotations

import asyncio

from groups_stage import MemoryLog, Stage, commit, turns
from test_groups_service import on_stage

from tidemill.model.errors import ErrorCode, KafkaError

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
        stage.service.topics_deleted(["t"])
        stage.log.gate.set()
        await turns()
        assert await stage.service.fetch("g") == (ErrorCode.NONE, {})
        assert stage.service.group_count() == 0


class LateFailures(MemoryLog):
    """A log whose appends fail once the gate opens."""

    async def append(self, partition: int, batch: bytes) -> None:
        await self.gate.wait()
        raise KafkaError("another broker leads", ErrorCode.NOT_LEADER_OR_FOLLOWER)


@on_stage
async def test_a_late_commit_that_is_never_written_leaves_no_group() -> None:
    async with Stage(LateFailures()) as stage:
        await commit_overdue(stage)
        assert stage.service.group_count() == 1
        stage.log.gate.set()
        await turns()
        assert stage.service.group_count() == 0
