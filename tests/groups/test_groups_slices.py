"""Deletions of many offsets do not block the event loop, and keep the order of records and completions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from coordinator_fixture import CoordinatorFixture, MemoryLog, commit, turns

from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import GroupRecord, OffsetRecord, OffsetsRecord
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.types import ZERO_ID

OFFSETS = 4 * ITEMS_PER_SLICE
COMMIT_OFFSETS = 200

Removal = Callable[[CoordinatorFixture], Awaitable[object]]


async def commit_many(fixture: CoordinatorFixture, groups: int = 1) -> None:
    """Commits OFFSETS offsets of topic t, shared by groups of one partition of the offsets topic."""
    names = [name for name in (f"g{n}" for n in range(100)) if fixture.partition(name) == fixture.partition()]
    for group in ["g", *names][:groups]:
        for start in range(0, OFFSETS // groups, COMMIT_OFFSETS):
            offsets = tuple(
                OffsetToCommit(topic="t", partition=partition, offset=1)
                for partition in range(start, start + COMMIT_OFFSETS)
            )
            await fixture.service.commit(CommitRequest(group_id=group, offsets=offsets))


async def delete_groups(fixture: CoordinatorFixture) -> None:
    group_ids = tuple(group.group_id for group in fixture.service.list_groups()[1])
    assert set(await fixture.service.delete_groups(group_ids)) == {ErrorCode.NONE}


async def delete_topic(fixture: CoordinatorFixture) -> None:
    await fixture.service.topics_deleted({"t": ZERO_ID})
    await fixture.service.fetch("g", require_stable=True)


async def expire(fixture: CoordinatorFixture) -> None:
    fixture.time.now_ms += 100_000
    await fixture.service.expire()
    await fixture.service.fetch("g", require_stable=True)


@asynccontextmanager
async def counted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Counter[int]]]:
    """Counts the tombstones that are encoded, and those that are replayed, in each turn of the event loop."""
    turn = 0
    counts: dict[str, Counter[int]] = {"encoded": Counter(), "replayed": Counter()}
    key_bytes, replay = OffsetRecord.key_bytes, GroupMetadataManager.replay

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counted_key_bytes(record: OffsetRecord) -> bytes:
        counts["encoded"][turn] += 1
        return key_bytes(record)

    def counted_replay(manager: GroupMetadataManager, record: OffsetsRecord, now: Now) -> None:
        counts["replayed"][turn] += 1
        replay(manager, record, now)

    with monkeypatch.context() as patched:
        patched.setattr(OffsetRecord, "key_bytes", counted_key_bytes)
        patched.setattr(GroupMetadataManager, "replay", counted_replay)
        counting = asyncio.ensure_future(count_turns())
        yield counts
        counting.cancel()


@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("remove", [delete_groups, delete_topic, expire])
async def test_removes_many_offsets_in_slices(
    monkeypatch: pytest.MonkeyPatch, remove: Removal, groups: int
) -> None:
    async with CoordinatorFixture() as fixture:
        await commit_many(fixture, groups)
        async with counted(monkeypatch) as counts:
            await remove(fixture)
        assert fixture.service.group_count() == 0
        removed = sum(counts["encoded"].values())
        assert removed == OFFSETS
        for per_turn in counts.values():
            assert max(per_turn.values()) <= 1.5 * ITEMS_PER_SLICE
        records = fixture.log.records(fixture.partition())[OFFSETS:]
        assert {record for record in records if isinstance(record, OffsetRecord)} == {
            OffsetRecord(record.group, record.topic, record.partition, None)
            for record in fixture.log.records(fixture.partition())[:OFFSETS]
            if isinstance(record, OffsetRecord)
        }
        if remove is not delete_topic:
            assert isinstance(records[-1], GroupRecord), "the group is removed after its offsets"


async def test_many_writes_that_end_at_once_are_replayed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    async with CoordinatorFixture() as fixture:
        await commit_many(fixture)
        fixture.log.gate.clear()
        removal = asyncio.ensure_future(delete_groups(fixture))
        later = [asyncio.ensure_future(fixture.service.commit(commit("g", topic=topic))) for topic in "uv"]
        await turns()
        async with counted(monkeypatch) as counts:
            fixture.log.gate.set()
            await removal
            assert [(await one).errors for one in later] == 2 * [(ErrorCode.COORDINATOR_NOT_AVAILABLE,)]
        assert max(counts["replayed"].values()) <= 1.5 * ITEMS_PER_SLICE


async def test_a_commit_after_a_long_deletion_follows_it_in_the_log() -> None:
    async with CoordinatorFixture() as fixture:
        await commit_many(fixture)
        ended = []

        async def record_end(name: str, work: Awaitable[object]) -> None:
            await work
            ended.append(name)

        other = next(name for name in map(str, range(99)) if fixture.partition(name) == fixture.partition())
        await asyncio.gather(
            record_end("deletion", fixture.service.delete_groups(("g",))),
            record_end("commit", fixture.service.commit(commit(other))),
        )
        assert ended == ["deletion", "commit"]
        assert fixture.log.records(fixture.partition())[-1].group == other


class FailingLog(MemoryLog):
    """A log of which one append fails, counted from now."""

    failing = 0

    async def append(self, partition: int, batch: bytes) -> None:
        self.failing -= 1
        if self.failing == 0:
            raise KafkaError("too few replicas", ErrorCode.NOT_ENOUGH_REPLICAS)
        await super().append(partition, batch)


@pytest.mark.parametrize("failing", [1, 2, OFFSETS // ITEMS_PER_SLICE + 1])
async def test_a_deletion_fails_with_one_of_its_batches(failing: int) -> None:
    log = FailingLog()
    async with CoordinatorFixture(log) as fixture:
        await commit_many(fixture)
        before = len(log.batches[fixture.partition()])
        log.failing = failing
        assert await fixture.service.delete_groups(("g",)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        written = len(log.batches[fixture.partition()]) - before
        assert written == OFFSETS // ITEMS_PER_SLICE, "all batches but the failed one"
        assert await fixture.service.delete_groups(("g",)) == [ErrorCode.NONE]
        assert await fixture.service.fetch("g", require_stable=True) == (ErrorCode.NONE, {})


async def test_a_deletion_fails_when_the_partition_moves_between_its_batches() -> None:
    async with CoordinatorFixture() as fixture:
        await commit_many(fixture)
        before = len(fixture.log.batches[fixture.partition()])
        deletion = asyncio.ensure_future(fixture.service.delete_groups(("g",)))
        await turns(4)
        shard = fixture.service.runtime.shards[fixture.partition()]
        fixture.service.runtime.resign(fixture.partition())
        assert await deletion == [ErrorCode.NOT_COORDINATOR]
        await asyncio.wait_for(shard.appends_ended(), 5)
        written = len(fixture.log.batches[fixture.partition()]) - before
        assert 0 < written < OFFSETS // ITEMS_PER_SLICE


async def test_the_deletion_of_a_topic_ends_when_the_partition_moves() -> None:
    async with CoordinatorFixture() as fixture:
        await commit_many(fixture, groups=5)
        deletion = asyncio.ensure_future(fixture.service.topics_deleted({"t": ZERO_ID}))
        await asyncio.sleep(0)
        fixture.service.runtime.resign(fixture.partition())
        await asyncio.wait_for(deletion, 5)
        assert fixture.log.records(fixture.partition())[OFFSETS:] == []
