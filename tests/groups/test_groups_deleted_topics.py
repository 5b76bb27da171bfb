"""Committed offsets of deleted topics, also if the coordinator is notified late."""

from __future__ import annotations

import asyncio

from coordinator_fixture import CoordinatorFixture, MemoryLog, turns
from test_groups_group_coordinator import with_coordinator

from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID

OLD, NEW = b"o" * 16, b"n" * 16


async def commit(fixture: CoordinatorFixture, topic: str, topic_id: bytes, offset: int = 7) -> None:
    """Group g commits an offset in partition 0."""
    request = CommitRequest("g", (OffsetToCommit(topic, 0, offset, topic_id=topic_id),))
    assert (await fixture.service.commit(request)).errors == (ErrorCode.NONE,)


async def topics_of(fixture: CoordinatorFixture) -> set[str]:
    """The topics in which group g has committed offsets."""
    return set((await fixture.service.fetch("g"))[1])


@with_coordinator
async def test_a_position_in_a_new_topic_stays_when_its_predecessors_end_is_heard_of_late() -> None:
    """The broker becomes the coordinator after the deletions, of which it was not notified."""
    log = MemoryLog()
    async with CoordinatorFixture(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "unknown", ZERO_ID)
    async with CoordinatorFixture(log) as fixture:
        fixture.service.topics_deleted({"made-anew": OLD, "deleted": OLD, "unknown": OLD})
        await turns()
        assert await topics_of(fixture) == {"made-anew"}


@with_coordinator
async def test_a_topic_that_is_deleted_while_groups_are_loaded_takes_its_positions_along() -> None:
    log = MemoryLog()
    async with CoordinatorFixture(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "kept", OLD)
    log.reading.clear()
    async with CoordinatorFixture(log) as fixture:
        fixture.service.topics_deleted({"deleted": OLD})
        fixture.service.topics_deleted({"made-anew": OLD})
        log.reading.set()
        await turns()
        assert await topics_of(fixture) == {"made-anew", "kept"}
    async with CoordinatorFixture(log) as after:
        assert await topics_of(after) == {"made-anew", "kept"}


@with_coordinator
async def test_a_position_on_its_way_in_a_new_topic_outlives_the_end_of_its_predecessor() -> None:
    """The broker serves the new topic while it still applies the change."""
    log = MemoryLog()
    async with CoordinatorFixture(log) as fixture:
        await commit(fixture, "made-anew", OLD)
        log.gate.clear()
        committing = [
            asyncio.ensure_future(commit(fixture, "made-anew", NEW, 3)),
            asyncio.ensure_future(commit(fixture, "deleted", OLD, 4)),
        ]
        await turns()
        fixture.service.topics_deleted({"made-anew": OLD, "deleted": OLD})
        log.gate.set()
        await asyncio.gather(*committing)
        await turns()
        assert await topics_of(fixture) == {"made-anew"}
    async with CoordinatorFixture(log) as after:
        assert await topics_of(after) == {"made-anew"}
