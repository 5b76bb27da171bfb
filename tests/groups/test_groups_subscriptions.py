"""The subscriptions of a group's members: their number and size do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from coordinator_fixture import CoordinatorFixture, MemoryLog, commit, join

from tidemill.client.consumer_protocol import encode_subscription
from tidemill.groups import group_metadata
from tidemill.groups.coordinator_effects import JoinResult, LeavingMember, MemberProtocol, SyncRequest
from tidemill.model.errors import ErrorCode
from tidemill.wire import consumer_protocol_codec

MEMBERS = 5
TOPICS = 2_000
TOPICS_PER_TURN_MAX = 200

Result = TypeVar("Result")


def subscription(*topics: str) -> tuple[MemberProtocol, ...]:
    """The protocols of a member that consumes ``topics``."""
    return (MemberProtocol(name="range", metadata=encode_subscription(topics, [], -1, None, None)),)


async def join_all(fixture: CoordinatorFixture, *members: tuple[MemberProtocol, ...]) -> list[JoinResult]:
    """Adds members in one generation, and writes their assignment."""
    joining = [asyncio.ensure_future(fixture.service.join(join(protocols=each))) for each in members]
    await fixture.time.advance(10)
    joined = [await each for each in joining]
    for member in sorted(joined, key=lambda one: not one.members):
        request = SyncRequest(group_id="g", member_id=member.member_id, generation=member.generation)
        assert (await fixture.service.sync(request)).error is ErrorCode.NONE
    return joined


async def large_group(fixture: CoordinatorFixture) -> list[JoinResult]:
    """A group whose members consume many topics each, with an offset of one of these and of another topic."""
    members = [subscription(*(f"t{member}-{n}" for n in range(TOPICS))) for member in range(MEMBERS)]
    joined = await join_all(fixture, *members)
    for topic in ("t1-7", "unused"):
        member = joined[0]
        request = commit(topic=topic, member_id=member.member_id, generation=member.generation)
        assert (await fixture.service.commit(request)).errors == (ErrorCode.NONE,)
    return joined


async def counted(work: Awaitable[Result]) -> tuple[Result, int]:
    """The result, and the number of turns of the event loop before it."""
    pending = asyncio.ensure_future(work)
    turns = 0
    while not pending.done():
        await asyncio.sleep(0)
        turns += 1
    return pending.result(), turns


async def test_a_rebalance_and_a_load_decode_no_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: object) -> None:
        pytest.fail("a subscription was decoded")

    for name in ("decode_prefix", "decode_in_slices"):
        monkeypatch.setattr(consumer_protocol_codec, name, decoded)
    log = MemoryLog()
    async with CoordinatorFixture(log) as fixture:
        await join_all(fixture, subscription("t"), subscription("t"))
    async with CoordinatorFixture(log) as after:
        assert len(after.service.runtime.shards[after.partition()].machine.groups["g"].members) == 2


async def test_a_deletion_of_offsets_decodes_the_subscriptions_in_slices() -> None:
    async with CoordinatorFixture() as fixture:
        await large_group(fixture)
        deletion = fixture.service.delete_offsets("g", (("t1-7", 0), ("unused", 0)))
        result, turns = await counted(deletion)
        assert result.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
        assert turns > MEMBERS * TOPICS / TOPICS_PER_TURN_MAX
        again, turns = await counted(fixture.service.delete_offsets("g", (("t1-7", 0),)))
        assert again.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
        assert turns < 10, "the subscriptions of a generation are decoded once"


async def test_the_expiry_decodes_the_subscriptions_in_slices() -> None:
    async with CoordinatorFixture() as fixture:
        await large_group(fixture)
        fixture.time.now_ms += 100_000
        _, turns = await counted(fixture.service.expire())
        assert turns > MEMBERS * TOPICS / TOPICS_PER_TURN_MAX
        assert set((await fixture.service.fetch("g", require_stable=True))[1]) == {"t1-7"}


async def test_a_deletion_of_offsets_decodes_the_subscriptions_of_a_later_generation() -> None:
    async with CoordinatorFixture() as fixture:
        joined = await large_group(fixture)
        deletion = asyncio.ensure_future(fixture.service.delete_offsets("g", (("t1-7", 0), ("new", 0))))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not deletion.done()
        leaving = tuple(LeavingMember(member_id=member.member_id) for member in joined)
        await fixture.service.leave("g", leaving)
        await join_all(fixture, subscription("new"))
        assert (await deletion).errors == (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


async def test_an_expiry_keeps_the_offsets_of_a_group_that_rebalances_meanwhile() -> None:
    async with CoordinatorFixture() as fixture:
        joined = await large_group(fixture)
        fixture.time.now_ms += 100_000
        expiry = asyncio.ensure_future(fixture.service.expire())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not expiry.done()
        leaving = tuple(LeavingMember(member_id=member.member_id) for member in joined)
        await fixture.service.leave("g", leaving)
        await join_all(fixture, subscription("unused"))
        await expiry
        assert set((await fixture.service.fetch("g", require_stable=True))[1]) == {"t1-7", "unused"}


async def test_a_deletion_of_offsets_fails_when_the_partition_moves_meanwhile() -> None:
    async with CoordinatorFixture() as fixture:
        await large_group(fixture)
        deletion = asyncio.ensure_future(fixture.service.delete_offsets("g", (("unused", 0),)))
        for _ in range(20):
            await asyncio.sleep(0)
        fixture.service.runtime.resign(fixture.partition())
        assert (await deletion).error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("topics", "error"), [(4, ErrorCode.NONE), (5, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)], ids=["at", "above"]
)
async def test_a_group_with_too_many_topics_counts_as_a_consumer_of_all(
    monkeypatch: pytest.MonkeyPatch, topics: int, error: ErrorCode
) -> None:
    monkeypatch.setattr(group_metadata, "SUBSCRIBED_TOPICS_MAX", 4)
    names = [f"t{n}" for n in range(topics)]
    async with CoordinatorFixture() as fixture:
        await join_all(fixture, subscription(*names[:3]), subscription(*names[1:]))
        assert (await fixture.service.delete_offsets("g", (("unused", 0),))).errors == (error,)
