"""Committed offsets of deleted topics, also if the coordinator is notified late."""

from __future__ import annotations

import asyncio

from coordinator_fixture import CoordinatorFixture, MemoryLog, turns

from tidemill.coordinator_runtime.coordinator_effects import TransactionProducer
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import ZERO_ID

OLD, NEW = b"o" * 16, b"n" * 16


async def commit(
    fixture: CoordinatorFixture,
    topic: str,
    topic_id: bytes,
    offset: int = 7,
    producer: ProducerIdAndEpoch | None = None,
) -> None:
    """Group g commits an offset in partition 0, in a transaction if ``producer`` is given."""
    transaction = None if producer is None else TransactionProducer(producer=producer, check=lambda: None)
    request = CommitRequest(
        group_id="g",
        offsets=(OffsetToCommit(topic=topic, partition=0, offset=offset, topic_id=topic_id),),
        producer=transaction,
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


async def test_an_offset_in_a_transaction_is_kept_if_it_is_for_the_recreated_topic() -> None:
    producer = ProducerIdAndEpoch(1, 0)
    async with CoordinatorFixture(MemoryLog()) as fixture:
        await commit(fixture, "made-anew", OLD)
        await commit(fixture, "made-anew", NEW, 3, producer)
        await commit(fixture, "deleted", OLD, 4, producer)
        await fixture.service.topics_deleted({"made-anew": OLD, "deleted": OLD})
        await turns()
        await fixture.service.end_transaction(fixture.partition(), MarkerToWrite(producer, True, 0, 2))
        _, offsets = await fixture.service.fetch("g")
        assert {topic: found[0].offset for topic, found in offsets.items()} == {"made-anew": 3}
