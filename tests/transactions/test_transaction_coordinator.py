"""The transaction coordinator of a broker: missing producer ids, many transactions at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint, CoordinatorLog
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.builder import BatchBuilder
from tidemill.transactions.coordinator_effects import AddPartitionsRequest, InitProducerIdRequest
from tidemill.transactions.producer_id_manager import ProducerIdManager
from tidemill.transactions.transaction_coordinator import TransactionConfig, TransactionCoordinator
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_marker_channel_manager import PartitionMarker
from tidemill.transactions.transaction_metadata import TransactionMetadata, TransactionState

P0 = TopicPartition("t", 0)


class FixedLog:
    """A log that commits each batch at once, and has ``batches`` when it is loaded."""

    def __init__(self, *batches: bytes) -> None:
        self.batches = batches

    async def append(self, partition: int, batch: bytes) -> None: ...

    async def append_marker(self, partition: int, marker: MarkerToWrite) -> None: ...

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        for batch in self.batches:
            yield batch


class OnePartition:
    """The topic of the coordinator, with one partition that this broker leads."""

    name = "__transaction_state"

    def partition_count(self) -> int:
        return 1

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        return None

    async def ensure(self) -> None: ...


class NoLeaders:
    """No partition has a leader: markers wait."""

    def leader(self, partition: TopicPartition) -> int | None:
        return None

    async def deleted(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        return ()

    async def write(
        self, broker_id: int, markers: Sequence[PartitionMarker]
    ) -> dict[tuple[int, TopicPartition], ErrorCode]:
        raise AssertionError("no partition has a leader")


class Allocation:
    """Blocks of producer ids, or the next of ``errors``."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def allocate(self) -> tuple[int, int]:
        if self.errors:
            raise self.errors.pop(0)
        return 100, 10_000


def coordinator_of(allocation: Allocation, log: CoordinatorLog) -> TransactionCoordinator:
    """A coordinator that leads no partition yet."""
    return TransactionCoordinator(
        log=log,
        topic=OnePartition(),
        config=TransactionConfig(unpacked_bytes_max=UNPACKED_BYTES_MAX),
        producer_ids=ProducerIdManager(allocation.allocate),
        destinations=NoLeaders(),
        transaction_version=lambda: 2,
        clock=SystemClock(),
    )


@asynccontextmanager
async def started(allocation: Allocation) -> AsyncIterator[TransactionCoordinator]:
    """A coordinator that has loaded its partition."""
    coordinator = coordinator_of(allocation, FixedLog())
    coordinator.runtime.become_leader(0, 1)
    await coordinator.runtime.wait_loaded(10)
    try:
        yield coordinator
    finally:
        await coordinator.runtime.stop()


def init_request(name: str, timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (KafkaError("no store", ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ValueError("the node is damaged"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_producer_id_that_cannot_be_allocated_refuses_the_request_only(
    problem: Exception, code: ErrorCode
) -> None:
    allocation = Allocation()
    allocation.errors.append(problem)
    async with started(allocation) as coordinator, asyncio.timeout(10):
        assert (await coordinator.init_producer_id(init_request("x"))).error is code
        begun = await coordinator.init_producer_id(init_request("x"))
        assert (begun.error, begun.producer_id, begun.epoch) == (ErrorCode.NONE, 100, 0)


async def in_turns(count: Callable[[], int], wanted: int) -> list[int]:
    """Returns ``count`` after each turn of the event loop, until it is ``wanted``."""
    found = [count()]
    while found[-1] != wanted:
        await asyncio.sleep(0)
        found.append(count())
    return found


async def test_many_transactions_that_time_out_are_aborted_in_slices() -> None:
    async with started(Allocation()) as coordinator, asyncio.timeout(60):
        names = [f"id-{number}" for number in range(3 * ITEMS_PER_SLICE)]
        for name in names:
            begun = await coordinator.init_producer_id(init_request(name, timeout_ms=1))
            producer = ProducerIdAndEpoch(begun.producer_id, begun.epoch)
            request = AddPartitionsRequest(
                transactional_id=name, producer=producer, partitions=frozenset({P0}), client_version=2
            )
            assert await coordinator.add_partitions(request) is ErrorCode.NONE
        await asyncio.sleep(0.01)
        machine = coordinator.runtime.shards[0].machine
        aborting = asyncio.ensure_future(coordinator.abort_timed_out())
        decided = await in_turns(
            lambda: sum(name in machine.pending or name not in machine.ongoing for name in names), len(names)
        )
        await aborting
        await in_turns(lambda: len(machine.pending), 0)
        assert {one.state for one in machine.transactions.values()} == {TransactionState.PREPARE_ABORT}
        steps = [after - before for before, after in pairwise(decided)]
        assert max(steps) <= ITEMS_PER_SLICE


async def test_transactions_that_the_coordinator_aborts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemill.transactions")
    async with started(Allocation()) as coordinator, asyncio.timeout(60):
        for name in ("slow", "line\nbreak", "x" * 30_000):
            begun = await coordinator.init_producer_id(init_request(name, timeout_ms=1))
            producer = ProducerIdAndEpoch(begun.producer_id, begun.epoch)
            request = AddPartitionsRequest(
                transactional_id=name, producer=producer, partitions=frozenset({P0}), client_version=2
            )
            assert await coordinator.add_partitions(request) is ErrorCode.NONE
        second = asyncio.ensure_future(coordinator.init_producer_id(init_request("line\nbreak")))
        await in_turns(lambda: "line" in caplog.text, True)
        await asyncio.sleep(0.01)
        await coordinator.abort_timed_out()
        second.cancel()
    told = [record.getMessage() for record in caplog.records if "is aborted" in record.message]
    assert "another producer, or an administrator, takes over its transactional id" in told[0]
    assert "'line\\nbreak'" in told[0]
    assert "the transaction of 'slow' is aborted: it was open for longer than its timeout of 1 ms" in told[1]
    assert len(told[2]) < 500


def decided(name: str, *partitions: TopicPartition) -> TransactionRecord:
    """The record of a transaction that a coordinator has decided to commit."""
    state = TransactionState.PREPARE_COMMIT
    return TransactionRecord(name, TransactionMetadata(7, 1, 60_000, state, frozenset(partitions), 0))


def batch_of(records: Sequence[TransactionRecord]) -> bytes:
    builder = BatchBuilder()
    for record in records:
        builder.append(0, record.key_bytes(), record.value_bytes())
    return builder.build()


@asynccontextmanager
async def loading(log: CoordinatorLog) -> AsyncIterator[TransactionCoordinator]:
    """A coordinator that begins to load its partition."""
    coordinator = coordinator_of(Allocation(), log)
    coordinator.runtime.become_leader(0, 1)
    try:
        yield coordinator
    finally:
        await coordinator.runtime.stop()


@pytest.mark.parametrize("partition_count", [1, 100])
async def test_the_markers_of_decided_transactions_are_sent_in_slices_after_a_load(
    partition_count: int,
) -> None:
    partitions = [TopicPartition("t", number) for number in range(partition_count)]
    count = 3 * ITEMS_PER_SLICE // partition_count
    log = FixedLog(batch_of([decided(f"id-{number}", *partitions) for number in range(count)]))
    async with loading(log) as coordinator, asyncio.timeout(60):
        sent = await in_turns(lambda: coordinator.markers.unfinished, count * partition_count)
        steps = [after - before for before, after in pairwise(sent)]
        assert max(steps) <= ITEMS_PER_SLICE


async def test_no_markers_are_sent_after_another_broker_has_become_the_coordinator() -> None:
    log = FixedLog(batch_of([decided(f"id-{number}", P0) for number in range(3 * ITEMS_PER_SLICE)]))
    async with loading(log) as coordinator, asyncio.timeout(60):
        await in_turns(lambda: coordinator.markers.unfinished > 0, True)
        assert coordinator.markers.unfinished <= ITEMS_PER_SLICE
        coordinator.runtime.resign(0, 2)
        await in_turns(lambda: coordinator.markers.unfinished, 0)
        await coordinator.runtime.wait_loaded(10)
        assert coordinator.markers.unfinished == 0


async def test_requests_for_a_decided_transaction_wait_before_its_markers_are_sent() -> None:
    last = f"id-{3 * ITEMS_PER_SLICE}"
    names = [*(f"id-{number}" for number in range(3 * ITEMS_PER_SLICE)), last]
    log = FixedLog(batch_of([decided(name, P0) for name in names]))
    async with loading(log) as coordinator, asyncio.timeout(60):
        await in_turns(lambda: coordinator.markers.unfinished > 0, True)
        assert coordinator.markers.unfinished <= ITEMS_PER_SLICE
        refused = await coordinator.init_producer_id(init_request(last))
        assert refused.error is ErrorCode.CONCURRENT_TRANSACTIONS
        await in_turns(lambda: coordinator.markers.unfinished, len(names))
