"""Writes that are not committed in time: waiting requests receive an error, and the state stays pending."""

from __future__ import annotations

import asyncio

from coordinator_fixture import CoordinatorFixture, MemoryLog, commit, join, turns

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID

TOO_LATE_MS = 5_100


async def commit_overdue(fixture: CoordinatorFixture, offset: int = 5) -> None:
    """A commit with a timeout error, whose record may still be committed."""
    fixture.log.gate.clear()
    committing = asyncio.ensure_future(fixture.service.commit(commit(offset=offset)))
    await fixture.time.advance(TOO_LATE_MS)
    assert (await committing).errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)


async def test_a_late_commit_does_not_restore_offsets_of_a_deleted_group() -> None:
    async with CoordinatorFixture() as fixture:
        await fixture.service.commit(commit(topic="u"))
        await commit_overdue(fixture)
        deleting = asyncio.ensure_future(fixture.service.delete_groups(("g",)))
        await turns()
        fixture.log.gate.set()
        assert await deleting == [ErrorCode.NONE]
        assert await fixture.service.fetch("g") == (ErrorCode.NONE, {})


async def test_a_late_commit_does_not_restore_offsets_of_a_deleted_topic() -> None:
    async with CoordinatorFixture() as fixture:
        await commit_overdue(fixture)
        await fixture.service.topics_deleted({"t": ZERO_ID})
        fixture.log.gate.set()
        await turns()
        assert await fixture.service.fetch("g") == (ErrorCode.NONE, {})
        assert fixture.service.group_count() == 0


class LateFailures(MemoryLog):
    """A log whose appends fail when the gate opens."""

    fails = True

    async def append(self, partition: int, batch: bytes) -> None:
        await self.gate.wait()
        if self.fails:
            raise KafkaError("another broker leads", ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def test_a_late_commit_that_fails_leaves_no_group() -> None:
    async with CoordinatorFixture(LateFailures()) as fixture:
        await commit_overdue(fixture)
        assert fixture.service.group_count() == 1
        fixture.log.gate.set()
        await turns()
        assert fixture.service.group_count() == 0


async def test_a_late_deletion_does_not_remove_members_that_joined_since() -> None:
    async with CoordinatorFixture() as fixture:
        await fixture.service.commit(commit())
        fixture.log.gate.clear()
        deleting = asyncio.ensure_future(fixture.service.delete_groups(("g",)))
        await fixture.time.advance(TOO_LATE_MS)
        assert await deleting == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        joining = await asyncio.wait_for(fixture.service.join(join()), 1)
        assert joining.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        fixture.log.gate.set()
        await turns()
        member = await fixture.stable()
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.NONE


async def test_a_group_accepts_commits_after_its_late_deletion_failed() -> None:
    log = LateFailures()
    async with CoordinatorFixture(log) as fixture:
        log.fails = False
        await fixture.service.commit(commit())
        log.fails = True
        log.gate.clear()
        deleting = asyncio.ensure_future(fixture.service.delete_groups(("g",)))
        await fixture.time.advance(TOO_LATE_MS)
        assert await deleting == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        log.gate.set()
        await turns()
        log.fails = False
        assert (await fixture.service.commit(commit(offset=6))).errors == (ErrorCode.NONE,)
        assert (await fixture.service.fetch("g"))[1]["t"][0].offset == 6


async def rejoin_with_a_late_write(fixture: CoordinatorFixture) -> str:
    """Lets a static member return with a write that times out. Returns its old id."""
    member = await fixture.stable(instance_id="i", session_timeout_ms=60_000)
    fixture.log.gate.clear()
    joining = asyncio.ensure_future(fixture.service.join(join(instance_id="i", session_timeout_ms=60_000)))
    await fixture.time.advance(TOO_LATE_MS)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    return member


def member_ids(fixture: CoordinatorFixture) -> list[str]:
    """The member ids of the group."""
    described = fixture.service.describe("g")
    assert not isinstance(described, ErrorCode)
    return [member.member_id for member in described.members]


async def test_the_next_coordinator_has_the_new_id_of_a_static_member_after_a_late_write() -> None:
    log = MemoryLog()
    async with CoordinatorFixture(log) as fixture:
        await rejoin_with_a_late_write(fixture)
        log.gate.set()
        await turns()
        known = member_ids(fixture)
    async with CoordinatorFixture(log) as fixture:
        assert member_ids(fixture) == known


async def test_a_static_member_keeps_its_old_id_when_its_late_write_fails() -> None:
    log = LateFailures()
    log.fails = False
    async with CoordinatorFixture(log) as fixture:
        member = await rejoin_with_a_late_write(fixture)
        log.fails = True
        log.gate.set()
        await turns()
        assert member_ids(fixture) == [member]


async def test_a_static_member_rejoins_after_a_late_write() -> None:
    async with CoordinatorFixture() as fixture:
        await rejoin_with_a_late_write(fixture)
        joining = asyncio.ensure_future(
            fixture.service.join(join(instance_id="i", session_timeout_ms=60_000))
        )
        await turns()
        fixture.log.gate.set()
        joined = await joining
        assert joined.error is ErrorCode.NONE
        assert member_ids(fixture) == [joined.member_id]
        assert fixture.service.heartbeat("g", joined.member_id, 1, "i") is ErrorCode.NONE
