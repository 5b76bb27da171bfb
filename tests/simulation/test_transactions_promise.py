"""The checks of transactions: each anomaly, planted in a history by hand, is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

from transactions_promise import (
    Fault,
    Instance,
    LogBatch,
    Record,
    Transaction,
    TransactionHistory,
    faults_of_history,
    faults_of_log,
)

TP, OTHER = ("x", 0), ("x", 1)
OFFSET = ("group", "x", 0)


class World:
    """A history, and logs in which each record is a batch."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.found: list[Fault] = []
        self.history = TransactionHistory(lambda: self.now_s, self.found.append)
        self.logs: dict[tuple[str, int], list[LogBatch]] = {TP: [], OTHER: []}
        self.ids: dict[str, int] = {}

    def begin(self, name: str = "a", client: str = "") -> Transaction:
        """A new instance begins a transaction."""
        self.now_s += 1
        self.ids.setdefault(name, len(self.ids))
        return self.history.began(self.history.instance_began(name, client or name, self.now_s - 0.5))

    def begin_and_write(self) -> Transaction:
        one = self.begin()
        self.write(one, "1")
        return one

    def write(self, one: Transaction, record: str, tp: tuple[str, int] = TP, epoch: int = 0) -> Record:
        """A record is stored, and acknowledged."""
        stored = self.store(one, record, tp, epoch)
        self.history.acknowledged(one, tp, [record], self.now_s)
        return stored

    def store(self, one: Transaction, record: str, tp: tuple[str, int] = TP, epoch: int = 0) -> Record:
        """A record is stored, and the response is lost."""
        self.history.sending(one, tp, [record])
        at = len(self.logs[tp])
        stored = Record(at, record)
        producer_id = self.ids[one.instance.transactional_id]
        self.logs[tp].append(LogBatch(at, at, producer_id, epoch, True, None, -1, (stored,)))
        return stored

    def mark(
        self, one: Transaction, *tps: tuple[str, int], is_commit: bool, epoch: int = 0, coordinator: int = 0
    ) -> None:
        """Partitions have the marker."""
        for tp in tps or (TP,):
            at = len(self.logs[tp])
            producer_id = self.ids[one.instance.transactional_id]
            self.logs[tp].append(LogBatch(at, at, producer_id, epoch, True, is_commit, coordinator, ()))

    def request_commit(self, one: Transaction) -> None:
        self.now_s += 1
        one.commit_sent_s = self.now_s

    def commit(self, one: Transaction, *tps: tuple[str, int]) -> None:
        """A transaction is committed, and its producer knows it."""
        self.request_commit(one)
        self.mark(one, *tps, is_commit=True)
        self.now_s += 1
        self.history.commit_answered(one, self.now_s - 0.5)

    def read(self, *records: Record, tp: tuple[str, int] = TP, position: int | None = None) -> None:
        for record in records:
            self.history.saw("reader", tp, record)
        self.history.position_of("reader", tp, len(self.logs[tp]) if position is None else position)

    def faults(self) -> list[str]:
        """The promises that are broken, once each."""
        found = [*self.found, *faults_of_history(self.history, self.logs)]
        for tp, batches in self.logs.items():
            found += faults_of_log(tp, batches)
        return sorted({one.promise for one in found})


def test_transactions_with_all_ends_keep_the_promises() -> None:
    world = World()
    first = world.begin()
    one = world.write(first, "1")
    world.write(first, "2", OTHER)
    world.commit(first, TP, OTHER)
    second = world.begin()
    world.write(second, "3")
    world.mark(second, is_commit=False)
    unknown = world.begin()
    four = world.store(unknown, "4")
    world.request_commit(unknown)
    world.mark(unknown, is_commit=True)
    world.read(one, four)
    assert world.faults() == []


def test_an_aborted_read() -> None:
    world = World()
    first = world.begin()
    one = world.write(first, "1")
    world.mark(first, is_commit=False)
    world.read(one)
    assert world.faults() == ["aborted-read"]


def test_a_read_of_a_transaction_that_was_to_be_committed_and_was_aborted() -> None:
    world = World()
    first = world.begin()
    one = world.write(first, "1")
    world.request_commit(first)
    world.mark(first, is_commit=False)
    world.read(one)
    assert world.faults() == ["aborted-read"]


def test_a_commit_that_nobody_has_requested() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.mark(first, is_commit=True)
    assert world.faults() == ["aborted-read"]


def test_a_lost_write() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.history.acknowledged(first, TP, ["2"], world.now_s)
    world.commit(first)
    assert world.faults() == ["committed-write"]


def test_an_abort_of_a_committed_transaction() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.request_commit(first)
    world.mark(first, is_commit=False)
    world.history.commit_answered(first, world.now_s)
    assert world.faults() == ["committed-write"]


def test_an_abort_of_a_prepared_transaction() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    first.is_prepared = True
    world.mark(first, is_commit=False)
    assert world.faults() == ["committed-write"]


def test_a_duplicate_write() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.write(first, "1")
    world.commit(first)
    assert world.faults() == ["committed-write"]


def test_a_transaction_that_is_committed_in_one_partition_only() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.write(first, "2", OTHER)
    world.request_commit(first)
    world.mark(first, TP, is_commit=True)
    world.mark(first, OTHER, is_commit=False)
    assert world.faults() == ["all-or-nothing"]


def test_a_reader_that_has_received_a_part() -> None:
    world = World()
    first = world.begin()
    one = world.write(first, "1")
    world.write(first, "2")
    world.commit(first)
    world.read(one)
    assert world.faults() == ["all-or-nothing"]


def test_a_reader_that_has_not_come_to_the_rest() -> None:
    world = World()
    first = world.begin()
    one = world.write(first, "1")
    world.write(first, "2")
    world.commit(first)
    world.read(one, position=1)
    assert world.faults() == []


def test_a_circle_of_writes_and_reads() -> None:
    world = World()
    first, second = world.begin("a"), world.begin("b")
    one, two = world.write(first, "1"), world.write(second, "2")
    first.reads.add(two.message)
    second.reads.add(one.message)
    world.commit(first)
    world.commit(second)
    assert world.faults() == ["write-read-cycle"]


def test_a_long_circle_beside_other_reads() -> None:
    world = World()
    members = [world.begin(name) for name in "abcd"]
    for number, one in enumerate(members):
        world.write(one, str(number))
        one.reads.add(str((number + 1) % 4))
        one.reads.add("0" if number == 2 else str(number))
    for one in members:
        world.commit(one)
    assert world.faults() == ["write-read-cycle"]


def test_reads_in_one_direction_are_no_circle() -> None:
    world = World()
    members = [world.begin(name) for name in "abcd"]
    for number, one in enumerate(members):
        world.write(one, str(number))
        one.reads.update(str(earlier) for earlier in range(number))
        world.commit(one)
    assert world.faults() == []


def test_reads_of_an_aborted_transaction_are_no_circle() -> None:
    world = World()
    first, second = world.begin("a"), world.begin("b")
    one, two = world.write(first, "1"), world.write(second, "2")
    first.reads.add(two.message)
    second.reads.add(one.message)
    world.commit(first)
    world.mark(second, is_commit=False)
    assert world.faults() == []


def fenced(act: Callable[[World, Transaction], None]) -> list[str]:
    """What is found when a producer acts after a later one has begun."""
    world = World()
    first = world.begin(client="old")
    world.write(first, "1")
    world.mark(first, is_commit=False, epoch=1)
    world.begin(client="new")
    world.now_s += 1
    act(world, first)
    return world.faults()


def test_a_write_of_a_zombie() -> None:
    def write(world: World, first: Transaction) -> None:
        world.write(first, "2")
        world.mark(first, is_commit=False, epoch=1)

    assert fenced(write) == ["zombie"]


def test_a_producer_writes_until_its_kept_transaction_has_ended() -> None:
    for ends, found in ((False, []), (True, ["zombie"])):
        world = World()
        first = world.begin(client="old")
        world.now_s += 1
        later = world.history.instance_began("a", "new", world.now_s - 0.5, keeps=True)
        world.now_s += 1
        if ends:
            world.history.kept_ended(later)
            world.now_s += 1
        world.write(first, "1")
        world.mark(first, is_commit=False)
        assert world.faults() == found
        world.history.accepted(first.instance, "adds a partition", world.now_s)
        assert world.faults() == ["zombie"]


def test_a_record_of_an_earlier_epoch_in_a_log() -> None:
    def store(world: World, first: Transaction) -> None:
        world.store(first, "2")
        world.mark(first, is_commit=False, epoch=1)

    assert fenced(store) == ["zombie"]


def test_a_commit_of_a_zombie() -> None:
    def commit(world: World, first: Transaction) -> None:
        first.commit_sent_s = world.now_s
        world.history.commit_answered(first, world.now_s)

    assert "zombie" in fenced(commit)


def test_a_request_from_before_the_fence_is_no_zombie() -> None:
    def answered(world: World, first: Transaction) -> None:
        world.history.accepted(first.instance, "writes", first.begun_s)

    assert fenced(answered) == []


def test_instances_that_begin_at_the_same_time_fence_nobody() -> None:
    world = World()
    one = world.history.instance_began("a", "one", 0.5)
    world.now_s = 2.0
    other = world.history.instance_began("a", "other", 0.9)
    assert [isinstance(each, Instance) and each.fenced_s < 10 for each in (one, other)] == [False, False]


def test_a_transaction_without_a_marker() -> None:
    world = World()
    world.write(world.begin(), "1")
    assert world.faults() == ["markers"]


def test_a_marker_of_a_former_coordinator() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.mark(first, is_commit=False, coordinator=5)
    world.write(first, "2")
    world.mark(first, is_commit=False, coordinator=4)
    assert world.faults() == ["markers"]


def test_a_marker_that_ends_two_transactions() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    second = world.history.began(first.instance)
    world.write(second, "2")
    world.mark(first, is_commit=False)
    assert world.faults() == ["markers"]


def test_records_of_two_epochs_in_one_transaction() -> None:
    world = World()
    first = world.begin()
    world.write(first, "1")
    world.write(first, "2", epoch=1)
    world.mark(first, is_commit=False, epoch=1)
    assert world.faults() == ["markers"]


def test_a_last_stable_offset_that_decreases() -> None:
    world = World()
    world.history.stable_told("reader", TP, 5, 5)
    world.history.stable_told("reader", OTHER, 3, 3)
    assert world.faults() == []
    world.history.stable_told("reader", TP, 4, 5)
    assert world.faults() == ["last-stable"]


def test_a_transaction_is_unstable_until_its_marker_is_committed() -> None:
    for high_watermark, found in ((1, ["last-stable"]), (2, [])):
        world = World()
        world.commit(world.begin_and_write())
        world.history.stable_told("reader", TP, 1, high_watermark)
        assert world.faults() == found
    world = World()
    world.commit(world.begin_and_write())
    world.history.stable_told("reader", TP, 0, 1)
    assert world.faults() == []


def test_a_commit_that_is_confirmed_after_the_abort() -> None:
    world = World()
    first = world.begin_and_write()
    world.mark(first, is_commit=False)
    world.history.other_end_confirmed(first)
    assert world.faults() == ["all-or-nothing"]


def test_a_prepared_transaction_that_cannot_be_committed() -> None:
    world = World()
    first = world.begin_and_write()
    world.mark(first, is_commit=False)
    world.history.prepared_refused(first, "INVALID_TXN_STATE")
    assert world.faults() == ["committed-write"]


def with_offset(world: World, offset: int) -> Transaction:
    one = world.begin()
    world.write(one, f"record {offset}")
    one.offsets[OFFSET] = one.acknowledged_offsets[OFFSET] = offset
    return one


def test_offsets_of_committed_transactions() -> None:
    world = World()
    world.history.offset_found(OFFSET, -1, world.now_s)
    for offset in (1, 2):
        world.commit(with_offset(world, offset))
        world.history.offset_found(OFFSET, offset, world.now_s)
    assert world.faults() == []


def test_an_offset_of_an_aborted_transaction() -> None:
    world = World()
    world.mark(with_offset(world, 1), is_commit=False)
    world.history.offset_found(OFFSET, 1, world.now_s)
    assert world.faults() == ["transactional-offsets"]


def test_an_offset_of_a_transaction_that_is_aborted_in_a_partition() -> None:
    world = World()
    one = with_offset(world, 1)
    world.request_commit(one)
    world.mark(one, is_commit=False)
    world.history.offset_found(OFFSET, 1, world.now_s)
    assert world.faults() == ["transactional-offsets"]


def test_a_lost_offset() -> None:
    for before in (-1, 1):
        world = World()
        for offset in (1, 2):
            world.commit(with_offset(world, offset))
        world.now_s += 1
        world.history.offset_found(OFFSET, before, world.now_s)
        assert world.faults() == ["transactional-offsets"]


def test_an_offset_that_nobody_has_sent() -> None:
    world = World()
    world.history.offset_found(OFFSET, 7, world.now_s)
    assert world.faults() == ["transactional-offsets"]


def test_a_reader_that_lacks_a_record_which_compaction_may_have_removed() -> None:
    world = World()
    one = world.begin()
    removed = world.write(one, "1")
    kept = world.write(one, "2")
    world.commit(one)
    world.read(kept)
    assert world.faults() == ["all-or-nothing"]
    assert list(faults_of_history(world.history, world.logs, lambda tp, record: record == removed)) == []
