"""Offsets that transactions commit: pending until the marker, and the same after a load of the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from coordinator_fixture import CoordinatorFixture, MemoryLog, turns

from tidemill.coordinator_runtime.coordinator_effects import Now, TransactionProducer
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import CommittedOffset, OffsetRecord, TransactionalOffset
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch

ONE, TWO = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)


class Transactions(CoordinatorFixture):
    """A coordinator, with a log that a second one loads."""

    async def commit(
        self, offset: int, producer: ProducerIdAndEpoch | None = None, *, refusal: KafkaError | None = None
    ) -> ErrorCode:
        """Commits an offset of partition 0, in a transaction if ``producer`` is given."""

        def check() -> None:
            if refusal is not None:
                raise refusal

        transaction = None if producer is None else TransactionProducer(producer=producer, check=check)
        offsets = (OffsetToCommit(topic="t", partition=0, offset=offset),)
        result = await self.service.commit(CommitRequest(group_id="g", offsets=offsets, producer=transaction))
        return result.errors[0]

    async def end(self, producer: ProducerIdAndEpoch, is_commit: bool) -> None:
        marker = MarkerToWrite(producer, is_commit, 0, 2)
        await self.service.end_transaction(self.partition(), marker)

    async def shown(self) -> tuple[int | None, bool]:
        """The committed offset, and whether an open transaction has another one."""
        _, offsets = await self.service.fetch("g")
        found = offsets.get("t", {}).get(0)
        return (None if found is None else found.offset), ("t", 0) in self.service.unstable("g")


Step = tuple[str, ProducerIdAndEpoch | None, int]

STORIES: list[tuple[Sequence[Step], tuple[int | None, bool]]] = [
    ([("commit", ONE, 5)], (None, True)),
    ([("commit", ONE, 5), ("end", ONE, True)], (5, False)),
    ([("commit", ONE, 5), ("end", ONE, False)], (None, False)),
    ([("commit", None, 3), ("commit", ONE, 5), ("end", ONE, False)], (3, False)),
    ([("commit", ONE, 5), ("commit", ONE, 6), ("end", ONE, True)], (6, False)),
    # The later record counts, wherever the markers are.
    ([("commit", ONE, 5), ("commit", None, 3), ("end", ONE, True)], (3, False)),
    ([("commit", ONE, 5), ("commit", TWO, 6), ("end", ONE, True)], (5, True)),
    ([("commit", ONE, 5), ("commit", TWO, 6), ("end", TWO, True)], (6, False)),
    ([("commit", ONE, 5), ("commit", TWO, 6), ("end", TWO, True), ("end", ONE, True)], (6, False)),
    ([("commit", ONE, 5), ("commit", TWO, 6), ("end", TWO, False), ("end", ONE, True)], (5, False)),
    ([("end", ONE, True)], (None, False)),
]


@pytest.mark.parametrize(("steps", "expected"), STORIES)
async def test_offsets_take_effect_at_the_marker(
    steps: Sequence[Step], expected: tuple[int | None, bool]
) -> None:
    log = MemoryLog()
    async with Transactions(log) as fixture:
        for step, producer, value in steps:
            if step == "commit":
                assert await fixture.commit(value, producer) is ErrorCode.NONE
            else:
                assert producer is not None
                await fixture.end(producer, bool(value))
        assert await fixture.shown() == expected
    async with Transactions(log) as after:
        assert await after.shown() == expected
        if expected[1]:
            for producer in (ONE, TWO):
                await after.end(producer, False)
            assert await after.shown() == (expected[0], False)


async def test_a_group_with_offsets_in_a_transaction_does_not_expire() -> None:
    async with Transactions() as fixture:
        await fixture.commit(5, ONE)
        await fixture.time.advance(10_000_000)
        await fixture.service.expire()
        await turns()
        await fixture.end(ONE, True)
        assert await fixture.shown() == (5, False)


async def test_a_marker_that_is_not_committed_ends_nothing() -> None:
    async with Transactions() as fixture:
        await fixture.commit(5, ONE)
        fixture.log.errors.append(KafkaError("too few", ErrorCode.NOT_ENOUGH_REPLICAS))
        with pytest.raises(KafkaError) as refused:
            await fixture.end(ONE, True)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await fixture.shown() == (None, True)
        await fixture.end(ONE, True)
        assert await fixture.shown() == (5, False)


async def test_a_late_marker_takes_effect_when_it_is_committed() -> None:
    async with Transactions(offset_commit_timeout_ms=100) as fixture:
        await fixture.commit(5, ONE)
        fixture.log.gate.clear()
        ending = asyncio.ensure_future(fixture.end(ONE, True))
        await turns()
        await fixture.time.advance(200)
        with pytest.raises(KafkaError):
            await ending
        assert await fixture.shown() == (None, True)
        fixture.log.gate.set()
        await turns()
        assert await fixture.shown() == (5, False)


async def test_offsets_of_an_ended_transaction_are_refused_at_the_append() -> None:
    async with Transactions() as fixture:
        ended = KafkaError("the transaction has ended", ErrorCode.INVALID_TXN_STATE)
        assert await fixture.commit(5, ONE, refusal=ended) is ErrorCode.INVALID_TXN_STATE
        assert await fixture.commit(6) is ErrorCode.NONE
        assert await fixture.shown() == (6, False)


async def test_markers_of_other_partitions_and_of_former_leaders_are_refused() -> None:
    async with Transactions(lead=False) as fixture:
        with pytest.raises(KafkaError) as refused:
            await fixture.end(ONE, True)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.log.reading.clear()
        fixture.lead()
        await turns()
        with pytest.raises(KafkaError) as loading:
            await fixture.end(ONE, True)
        assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_transaction_of_a_group_with_members() -> None:
    """Producers from before KIP-447 name no member; others are fenced by their generation."""
    async with Transactions() as fixture:
        member = await fixture.stable()
        assert await fixture.commit(5) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await fixture.commit(5, ONE) is ErrorCode.NONE
        transaction = TransactionProducer(producer=ONE, check=lambda: None)
        request = CommitRequest(
            group_id="g",
            offsets=(OffsetToCommit(topic="t", partition=0, offset=6),),
            generation=1,
            member_id=member,
            producer=transaction,
        )
        assert (await fixture.service.commit(request)).errors == (ErrorCode.NONE,)
        stale = request.replace(generation=0)
        assert (await fixture.service.commit(stale)).errors == (ErrorCode.ILLEGAL_GENERATION,)


REMOVALS = ["offsets are deleted", "the group is deleted", "the topic is deleted"]


@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("is_committed_before", [True, False])
async def test_removed_offsets_do_not_come_back_with_the_end_of_a_transaction(
    removal: str, is_committed_before: bool
) -> None:
    log = MemoryLog()
    async with Transactions(log) as fixture:
        if is_committed_before:
            await fixture.commit(3)
        await fixture.commit(5, ONE)
        if removal == "offsets are deleted":
            assert (await fixture.service.delete_offsets("g", (("t", 0),))).errors == (ErrorCode.NONE,)
        elif removal == "the group is deleted":
            assert await fixture.service.delete_groups(("g",)) == [ErrorCode.NONE]
        else:
            await fixture.service.topics_deleted({"t": bytes(16)})
            await turns()
        await fixture.end(ONE, True)
        assert await fixture.shown() == (None, False)
    async with Transactions(log) as after:
        assert await after.shown() == (None, False)


NOW = Now(monotonic_ms=0, wall_ms=0)
CONFIG = GroupCoordinatorConfig(unpacked_bytes_max=1 << 20)


def add_offsets(machine: GroupMetadataManager, producer_id: int, partitions: Sequence[int]) -> None:
    for partition in partitions:
        record = OffsetRecord("g", "t", partition, CommittedOffset(partition))
        machine.replay(TransactionalOffset(producer_id, record), NOW)


def test_the_end_of_a_large_transaction_does_not_block_the_event_loop() -> None:
    """The offsets become visible together, so the end of a transaction cannot pause."""
    machine = GroupMetadataManager(CONFIG)
    add_offsets(machine, 1, range(50_000))
    began = time.process_time()
    machine.transaction_ended(1, True, NOW)
    assert time.process_time() - began < 0.1, "a microsecond or less for each offset"
    assert machine.groups["g"].offset_count == 50_000
    assert not machine.unstable("g")


def test_offsets_that_take_effect_visit_no_transactions_of_other_partitions() -> None:
    machine = GroupMetadataManager(CONFIG)
    for producer_id in range(3_000):
        add_offsets(machine, producer_id, [producer_id])
    began = time.process_time()
    for partition in range(3_000):
        machine.replay(OffsetRecord("g", "t", partition, CommittedOffset(7)), NOW)
    assert time.process_time() - began < 0.1, "microseconds for each offset, not one for each transaction"
    assert not machine.unstable("g")
    for producer_id in range(3_000):
        machine.transaction_ended(producer_id, True, NOW)
    assert {one.offset for one in machine.offsets("g")["t"].values()} == {7}


def test_the_later_of_two_pending_offsets_counts_only_for_its_own_partition() -> None:
    machine = GroupMetadataManager(CONFIG)
    add_offsets(machine, 1, [0, 1])
    add_offsets(machine, 2, [1, 2])
    add_offsets(machine, 1, [2])
    machine.transaction_ended(2, True, NOW)
    assert (sorted(machine.offsets("g")["t"]), sorted(machine.unstable("g"))) == (
        [1, 2],
        [("t", 0), ("t", 2)],
    )
    machine.transaction_ended(1, False, NOW)
    assert (sorted(machine.offsets("g")["t"]), sorted(machine.unstable("g"))) == ([1, 2], [])
