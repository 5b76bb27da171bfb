"""The transaction coordinator of a broker: missing producer ids, many transactions at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.transactions.coordinator_effects import AddPartitionsRequest, InitProducerIdRequest
from tidemill.transactions.producer_id_manager import ProducerIdManager
from tidemill.transactions.transaction_coordinator import TransactionConfig, TransactionCoordinator
from tidemill.transactions.transaction_marker_channel_manager import PartitionMarker
from tidemill.transactions.transaction_metadata import TransactionState

P0 = TopicPartition("t", 0)


class EmptyLog:
    """A log that commits each batch at once, and is empty when it is loaded."""

    async def append(self, partition: int, batch: bytes) -> None: ...

    async def append_marker(self, partition: int, marker: MarkerToWrite) -> None: ...

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        batches: tuple[bytes, ...] = ()
        for batch in batches:
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

    def is_deleted(self, partition: TopicPartition) -> bool:
        return False

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


@asynccontextmanager
async def started(allocation: Allocation) -> AsyncIterator[TransactionCoordinator]:
    """A coordinator that has loaded its partition."""
    coordinator = TransactionCoordinator(
        log=EmptyLog(),
        topic=OnePartition(),
        config=TransactionConfig(unpacked_bytes_max=UNPACKED_BYTES_MAX),
        producer_ids=ProducerIdManager(allocation.allocate),
        destinations=NoLeaders(),
        transaction_version=lambda: 2,
        clock=SystemClock(),
    )
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
