"""Both coordinators load their logs in bounded slices, and the event loop does its other work in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from test_transaction_coordinator import Allocation, FixedLog, OnePartition, coordinator_of

from tidemill.coordinator_runtime import log_loader
from tidemill.coordinator_runtime.coordinator_effects import CoordinatorRecord, Now
from tidemill.coordinator_runtime.coordinator_runtime import (
    LOAD_SLICE_BYTES,
    LOAD_SLICE_RECORDS,
    CoordinatorRuntime,
)
from tidemill.groups.group_coordinator import GroupCoordinator
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
)
from tidemill.model.clock import SystemClock
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.builder import BatchBuilder
from tidemill.records.record_cursor import RecordCursor, open_cursor
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import TransactionMetadata, TransactionState
from tidemill.transactions.transaction_state_manager import TransactionStateManager

RECORDS = 20 * LOAD_SLICE_RECORDS


def offset_records() -> Iterator[CoordinatorRecord]:
    for number in range(RECORDS):
        yield OffsetRecord("g", "t", number, CommittedOffset(number))


def large_groups() -> Iterator[CoordinatorRecord]:
    """Groups with members whose assignments are long."""
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="h",
        session_timeout=1,
        subscription=b"",
        assignment=bytes(50_000),
    )
    for number in range(100):
        value = GroupMetadataValue(
            protocol_type="consumer", generation=1, protocol="range", leader="m", members=[member]
        )
        yield GroupRecord(f"g{number}", value)


def transaction_records() -> Iterator[CoordinatorRecord]:
    partitions = frozenset({TopicPartition("t", 0)})
    for number in range(RECORDS):
        metadata = TransactionMetadata(number, 0, 60_000, TransactionState.ONGOING, partitions, 0)
        yield TransactionRecord(f"id-{number}", metadata)


def one_batch(records: Sequence[CoordinatorRecord]) -> list[bytes]:
    builder = BatchBuilder()
    for record in records:
        builder.append(0, record.key_bytes(), record.value_bytes())
    return [builder.build()]


def many_batches(records: Sequence[CoordinatorRecord]) -> list[bytes]:
    """A batch for each record; all are read together."""
    return [b"".join(one_batch([record])[0] for record in records)]


def many_reads(records: Sequence[CoordinatorRecord]) -> list[bytes]:
    """A batch for each record, and a read for each batch."""
    return [one_batch([record])[0] for record in records]


def no_records(records: Sequence[CoordinatorRecord]) -> list[bytes]:
    """Batches that cannot be read."""
    damaged = bytearray(one_batch(records[:1])[0])
    damaged[-1] ^= 1
    return [bytes(damaged) * len(records)]


def group_runtime(log: FixedLog) -> CoordinatorRuntime[GroupMetadataManager]:
    config = GroupCoordinatorConfig(unpacked_bytes_max=UNPACKED_BYTES_MAX)
    return GroupCoordinator(offsets_log=log, topic=OnePartition(), config=config, clock=SystemClock()).runtime


def transaction_runtime(log: FixedLog) -> CoordinatorRuntime[TransactionStateManager]:
    return coordinator_of(Allocation(), log).runtime


class CountingCursor:
    """Counts the records that are read."""

    def __init__(self, cursor: RecordCursor) -> None:
        self._cursor = cursor
        self.read = 0

    def step(self) -> bool:
        self.read += 1
        return self._cursor.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class Load:
    """The load of a log, with the amounts in each turn of the event loop."""

    def __init__(self, make: Callable[[FixedLog], CoordinatorRuntime[Any]], log: FixedLog) -> None:
        self._make = make
        self._log = log
        self.steps = [0]
        """The records that were replayed before each turn of another task."""
        self.size = [0]
        """As :attr:`steps`, in bytes."""
        self.read = [0]
        """As :attr:`steps`: the records that were read from their batches."""

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        count = size = 0
        cursors: list[CountingCursor] = []

        def open_counting(*arguments: Any) -> CountingCursor:
            cursors.append(CountingCursor(open_cursor(*arguments)))
            return cursors[-1]

        def counting(replay: Callable[..., None]) -> Callable[..., None]:
            def replay_and_count(machine: object, record: CoordinatorRecord, now: Now) -> None:
                nonlocal count, size
                count += 1
                size += len(record.value_bytes() or b"")
                replay(machine, record, now)

            return replay_and_count

        for machine in (GroupMetadataManager, TransactionStateManager):
            monkeypatch.setattr(machine, "replay", counting(machine.replay))
        monkeypatch.setattr(log_loader, "open_cursor", open_counting)
        runtime = self._make(self._log)
        runtime.become_leader(0, 1)
        try:
            async with asyncio.timeout(60):
                while not runtime.shards[0].is_active:
                    await asyncio.sleep(0)
                    self.steps.append(count)
                    self.size.append(size)
                    self.read.append(sum(cursor.read for cursor in cursors))
        finally:
            await runtime.stop()


def largest(amounts: Sequence[int]) -> int:
    return max(after - before for before, after in pairwise(amounts))


COORDINATORS = [
    pytest.param(group_runtime, offset_records, id="groups"),
    pytest.param(transaction_runtime, transaction_records, id="transactions"),
]


@pytest.mark.parametrize("stored_as", [one_batch, many_batches, many_reads])
@pytest.mark.parametrize(("make", "records"), COORDINATORS)
async def test_a_turn_of_a_load_replays_a_limited_number_of_records(
    make: Callable[[FixedLog], CoordinatorRuntime[Any]],
    records: Callable[[], Iterator[CoordinatorRecord]],
    stored_as: Callable[[Sequence[CoordinatorRecord]], list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = Load(make, FixedLog(*stored_as(list(records()))))
    await load.run(monkeypatch)
    assert load.steps[-1] == RECORDS
    assert 0 < largest(load.steps) <= LOAD_SLICE_RECORDS


async def test_a_turn_of_a_load_replays_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(group_runtime, FixedLog(*one_batch(list(large_groups()))))
    await load.run(monkeypatch)
    assert load.size[-1] > 10 * LOAD_SLICE_BYTES
    assert largest(load.size) < LOAD_SLICE_BYTES + 51_000


@pytest.mark.parametrize(("make", "records"), COORDINATORS)
async def test_a_turn_of_a_load_does_not_read_a_whole_batch(
    make: Callable[[FixedLog], CoordinatorRuntime[Any]],
    records: Callable[[], Iterator[CoordinatorRecord]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = Load(make, FixedLog(*one_batch(list(records()))))
    await load.run(monkeypatch)
    assert load.read[-1] >= RECORDS
    assert largest(load.read) <= LOAD_SLICE_RECORDS + 1


@pytest.mark.parametrize(("make", "records"), COORDINATORS)
async def test_a_turn_of_a_load_skips_a_limited_number_of_unreadable_batches(
    make: Callable[[FixedLog], CoordinatorRuntime[Any]],
    records: Callable[[], Iterator[CoordinatorRecord]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    load = Load(make, FixedLog(*no_records(list(records()))))
    await load.run(monkeypatch)
    assert len(load.steps) > RECORDS / LOAD_SLICE_RECORDS
