"""Positions in topics that are deleted, also where the coordinator hears of it late."""

from __future__ import annotations

import asyncio

from groups_stage import MemoryLog, Stage, turns
from test_groups_service import on_stage

from tidemill.groups.effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID

OLD, NEW = b"o" * 16, b"n" * 16


async def commit(stage: Stage, topic: str, topic_id: bytes, offset: int = 7) -> None:
    """Group g commits a position in partition 0."""
    request = CommitRequest("g", (OffsetToCommit(topic, 0, offset, topic_id=topic_id),))
    assert (await stage.service.commit(request)).errors == (ErrorCode.NONE,)


async def topics_of(stage: Stage) -> set[str]:
    """The topics in which group g has a position."""
    return set((await stage.service.fetch("g"))[1])


@on_stage
async def test_a_position_in_a_new_topic_stays_when_its_predecessors_end_is_heard_of_late() -> None:
    """The broker coordinates the group only now, and has heard of neither topic's end before."""
    log = MemoryLog()
    async with Stage(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "unknown", ZERO_ID)
    async with Stage(log) as stage:
        stage.service.topics_deleted({"made-anew": OLD, "deleted": OLD, "unknown": OLD})
        await turns()
        assert await topics_of(stage) == {"made-anew"}


@on_stage
async def test_a_topic_that_is_deleted_while_groups_are_loaded_takes_its_positions_along() -> None:
    log = MemoryLog()
    async with Stage(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "kept", OLD)
    log.reading.clear()
    async with Stage(log) as stage:
        stage.service.topics_deleted({"deleted": OLD})
        stage.service.topics_deleted({"made-anew": OLD})
        log.reading.set()
        await turns()
        assert await topics_of(stage) == {"made-anew", "kept"}
    async with Stage(log) as after:
        assert await topics_of(after) == {"made-anew", "kept"}


@on_stage
async def test_a_position_on_its_way_in_a_new_topic_outlives_the_end_of_its_predecessor() -> None:
    """The broker answers for the new topic already while it still carries out what came with it."""
    log = MemoryLog()
    async with Stage(log) as stage:
        await commit(stage, "made-anew", OLD)
        log.gate.clear()
        committing = [
            asyncio.ensure_future(commit(stage, "made-anew", NEW, 3)),
            asyncio.ensure_future(commit(stage, "deleted", OLD, 4)),
        ]
        await turns()
        stage.service.topics_deleted({"made-anew": OLD, "deleted": OLD})
        log.gate.set()
        await asyncio.gather(*committing)
        await turns()
        assert await topics_of(stage) == {"made-anew"}
    async with Stage(log) as after:
        assert await topics_of(after) == {"made-anew"}
