"""Committed offsets of deleted topics, also if the coordinator is notified late."""

from __future__ import annotations

import asyncio

from coordinator_fixture import CoordinatorFixture, MemoryLog, turns

from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID

OLD, NEW = b"o" * 16, b"n" * 16


async def commit(fixture: CoordinatorFixture, topic: str, topic_id: bytes, offset: int = 7) -> None:
    """Group g commits an offset in partition 0."""
    request = CommitRequest(
        group_id="g", offsets=(OffsetToCommit(topic=topic, partition=0, offset=offset, topic_id=topic_id),)
    )
    assert (await fixture.service.commit(request)).errors == (ErrorCode.NONE,)


async def topics_of(fixture: CoordinatorFixture) -> set[str]:
    """The topics in which group g has committed offsets."""
    return set((await fixture.service.fetch("g"))[1])


async def test_an_offset_of_a_recreated_topic_survives_a_late_deletion_of_the_earlier_topic() -> None:
    """The broker becomes the coordinator after the deletions, of which it was not notified."""
    log = MemoryLog()
    async with CoordinatorFixture(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "unknown", ZERO_ID)
    async with CoordinatorFixture(log) as fixture:
        await fixture.service.topics_deleted({"made-anew": OLD, "deleted": OLD, "unknown": OLD})
        await turns()
        assert await topics_of(fixture) == {"made-anew"}


async def test_removes_offsets_of_a_topic_deleted_during_the_load() -> None:
    log = MemoryLog()
    async with CoordinatorFixture(log) as before:
        await commit(before, "made-anew", NEW)
        await commit(before, "deleted", OLD)
        await commit(before, "kept", OLD)
    log.reading.clear()
    async with CoordinatorFixture(log) as fixture:
        await fixture.service.topics_deleted({"deleted": OLD})
        await fixture.service.topics_deleted({"made-anew": OLD})
        log.reading.set()
        await turns()
        assert await topics_of(fixture) == {"made-anew", "kept"}
    async with CoordinatorFixture(log) as after:
        assert await topics_of(after) == {"made-anew", "kept"}


async def test_a_pending_commit_to_a_recreated_topic_survives_the_deletion_of_the_earlier_topic() -> None:
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
        await fixture.service.topics_deleted({"made-anew": OLD, "deleted": OLD})
        log.gate.set()
        await asyncio.gather(*committing)
        await turns()
        assert await topics_of(fixture) == {"made-anew"}
    async with CoordinatorFixture(log) as after:
        assert await topics_of(after) == {"made-anew"}
