"""The checks of transaction coordinators and of the markers that leaders confirm: each fault is found."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import transaction_state_promise
from transaction_network import ConfirmedMarkers
from transaction_state_promise import COMPLETION_S, FAILURES_MAX, LOOKED_S, TransactionStatePromise
from transactions_promise import LogBatch

from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Append, Now
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.records.builder import BatchBuilder
from tidemill.transactions import transaction_metadata
from tidemill.transactions.coordinator_effects import EndStored
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import TransactionMetadata

NAME, TP, PARTITION = "a", ("x", 0), TopicPartition("x", 0)
EMPTY = transaction_metadata.create(7, 1000, 0)._replace(producer_epoch=0)


class Fake(SimpleNamespace):
    """An object with these attributes, and an identity."""

    __hash__ = object.__hash__


def write_of(record: TransactionRecord, then: Any = None, error: Exception | None = None) -> Any:
    """A write that has ended."""
    result = SimpleNamespace(cancelled=lambda: False, exception=lambda: error)
    return SimpleNamespace(ending=[Append(records=(record,), then=then, replay=True)], result=result)


class World:
    """A coordinator with one transactional id, and its checker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client_version: int = 1) -> None:
        self.found: list[str] = []
        self.now_ms = 0
        self.client_version = client_version
        self.promise = TransactionStatePromise(lambda promise, text: self.found.append(promise))
        self.log: bytes = b""
        monkeypatch.setattr(transaction_state_promise, "records_of", lambda partition: self.log)
        self.machine = SimpleNamespace(transactions={}, pending=set(), _unmarked={})
        self.shard: Any = Fake(
            topic=TRANSACTION_TOPIC,
            partition=0,
            epoch=3,
            is_active=True,
            machine=self.machine,
            _outgoing=(),
            _writes=(),
            now=lambda: Now(monotonic_ms=self.now_ms, wall_ms=0),
        )
        self.partition: Any = SimpleNamespace(high_watermark=9, log=SimpleNamespace(end_offset=9))
        self.promise.loaded(self.shard, self.partition)
        self.state = transaction_metadata.add_partitions(EMPTY, frozenset({PARTITION}), client_version, 1)
        self.write(self.state)

    def write(self, after: TransactionMetadata, then: Any = None) -> None:
        """A record is written and replayed."""
        self.machine.transactions[NAME] = after
        record = TransactionRecord(NAME, after, 1)
        batch = BatchBuilder()
        batch.append(0, record.key_bytes(), record.value_bytes())
        write = write_of(record, then)
        self.promise.written(self.shard, write, batch.build(), 9)
        if after.state in transaction_metadata.PREPARED:
            self.machine._unmarked.setdefault(NAME, set(after.partitions))
        self.promise.ended(self.shard, write)

    def end(self, before: TransactionMetadata, *, by_client: bool = False) -> TransactionMetadata:
        """The transaction is aborted: by its coordinator, or its client."""
        after = transaction_metadata.prepare_end(
            before, is_commit=False, client_version=self.client_version, next_producer_id=-1, now_ms=2
        )
        waiter: Any = object() if by_client else None
        self.write(after, EndStored(waiter=waiter, transactional_id=NAME, metadata=after))
        return after

    def faults_of(self, *markers: LogBatch) -> list[str]:
        return [one.promise for one in self.promise.faults_of_markers(TP, markers)]


def marker(epoch: int, *, is_commit: bool = False, coordinator: int = 3) -> LogBatch:
    return LogBatch(0, 0, 7, epoch, True, is_commit, coordinator, ())


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_by_the_coordinator_has_an_epoch_that_no_producer_has(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    world = World(monkeypatch, version)
    world.end(transaction_metadata.fence(world.state))
    assert world.found == []


def test_an_abort_by_the_coordinator_that_fences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1)
    world.end(world.state)
    assert world.found == ["zombie"]


def test_each_end_of_version_2_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2)
    world.end(world.state)
    assert world.found == []


def test_an_abort_of_a_two_phase_commit_by_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2)
    state = world.state._replace(timeout_ms=transaction_metadata.NO_TIMEOUT_MS)
    world.write(state)
    after = world.end(state, by_client=True)
    assert world.found == []
    world.write(transaction_metadata.complete(after, 3))
    world.machine._unmarked.clear()
    world.write(state)
    world.end(transaction_metadata.fence(state))
    assert "coordinator" in world.found


def test_a_two_phase_commit_that_the_coordinator_does_not_treat_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 2)
    world.promise.two_phase_ids = frozenset({NAME})
    world.end(world.state)
    assert world.found == ["coordinator"]


@pytest.mark.parametrize(("pause_ms", "found"), [(0, ["coordinator"]), (1, [])])
def test_a_failed_write_that_is_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch, pause_ms: int, found: list[str]
) -> None:
    world = World(monkeypatch)
    failed = write_of(TransactionRecord(NAME, world.state, 1), error=OSError("the disk is full"))
    for _ in range(FAILURES_MAX + 1):
        world.now_ms += pause_ms
        world.promise.ended(world.shard, failed)
    assert world.found == found


def test_a_client_keeps_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.end(world.state, by_client=True)
    assert world.found == []


def looks(world: World, *times_s: float) -> None:
    for now_s in times_s:
        world.promise.look(world.shard, now_s)


def every(step_s: float, end_s: float) -> Sequence[float]:
    return [number * step_s for number in range(1, int(end_s / step_s) + 2)]


def test_a_transaction_with_all_markers_that_is_not_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.end(world.state, by_client=True)
    looks(world, *every(LOOKED_S, 2 * COMPLETION_S))
    assert world.found == []  # A marker is missing.
    world.machine._unmarked[NAME].clear()
    looks(world, *every(LOOKED_S, 2 * COMPLETION_S))
    assert world.found[:1] == ["coordinator"]


def test_a_suspended_coordinator_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.end(world.state, by_client=True)
    world.machine._unmarked[NAME].clear()
    looks(world, 1.0, 2.0 + COMPLETION_S, 2.1 + COMPLETION_S)
    assert world.found == []


def test_a_repeated_completion_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    after = world.end(world.state, by_client=True)
    world.machine._unmarked[NAME].clear()
    record = TransactionRecord(NAME, transaction_metadata.complete(after, 3), 1)
    write = write_of(record)
    for now_s in every(LOOKED_S, 2 * COMPLETION_S):
        looks(world, now_s)
        world.promise.ended(world.shard, write)
    assert world.found == []


def test_a_busy_id_without_a_write_is_found_when_a_write_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    record = TransactionRecord(NAME, world.state, 1)
    effect = SimpleNamespace(records=(record,))
    world.shard._writes = (SimpleNamespace(ending=[effect]),)
    world.promise.ended(world.shard)
    assert world.found == ["coordinator"]
    world.machine.pending.add(NAME)
    world.promise.ended(world.shard)
    assert world.found == ["coordinator"]


def test_markers_follow_their_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.faults_of(marker(0)) == ["markers"]
    world.end(world.state, by_client=True)
    assert world.faults_of(marker(0), marker(0, coordinator=4)) == []
    assert world.faults_of(marker(0, is_commit=True)) == ["markers"]
    assert world.faults_of(marker(1)) == ["markers"]
    assert world.faults_of(marker(0, coordinator=2)) == ["markers"]


@pytest.mark.parametrize(("version", "found"), [(1, []), (2, ["markers"])])
def test_a_marker_that_ends_the_next_transaction(
    monkeypatch: pytest.MonkeyPatch, version: int, found: list[str]
) -> None:
    world = World(monkeypatch, version)
    epoch = world.end(world.state, by_client=True).producer_epoch
    before = marker(epoch)._replace(marker=None, epoch=epoch - 1)
    assert world.faults_of(before, marker(epoch)) == []
    assert world.faults_of(before._replace(epoch=epoch), marker(epoch)) == found


class Leader:
    """A leader that confirms a marker of producer 7 in epoch 1."""

    def __init__(self, *, open_epoch: int = -1) -> None:
        self.found: list[str] = []
        entry = SimpleNamespace(
            epoch=max(open_epoch, 1), transaction_first_offset=5 if open_epoch >= 0 else -1
        )
        log = SimpleNamespace(producer_state=SimpleNamespace(entries={7: entry}))
        self.partition: Any = SimpleNamespace(topic="x", index=0, high_watermark=8, log=log)

    def faults(self, end: int, version: int = 1) -> int:
        checker = ConfirmedMarkers(lambda tp, text: self.found.append(text))
        checker.confirmed(MarkerToWrite(ProducerIdAndEpoch(7, 1), False, 0, version), self.partition, end)
        return len(self.found)


def test_a_confirmed_marker_is_committed() -> None:
    assert Leader().faults(8) == 0
    assert Leader().faults(9) == 1


def test_a_confirmed_marker_has_ended_its_transaction() -> None:
    assert Leader(open_epoch=1).faults(8) == 1
    # The next transaction, which has an epoch of its own.
    assert Leader(open_epoch=1).faults(8, version=2) == 0
    assert Leader(open_epoch=2).faults(8) == 0
