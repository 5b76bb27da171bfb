"""The transactions of simulated producers, and the checks of their promises.

Clients report their operations to a :class:`TransactionHistory`. At the end of a run it is compared with the
logs: :func:`faults_of_history` and :func:`faults_of_log` are functions of values, without a cluster. The
names of anomalies are those of Jepsen and Adya: aborted read (G1a), lost and duplicate writes, a read of a
part of a transaction, circular information flow (G1c) over write-read edges. Kafka has write cycles (G0):
transactions that write to the same partitions interleave.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NEVER_S = float("inf")
PartitionKey = tuple[str, int]
"""Topic and partition."""
GroupPartition = tuple[str, str, int]
"""Group, topic and partition of a committed offset."""


class Fault(NamedTuple):
    """A broken promise, and the partition whose losses would excuse it."""

    promise: str
    text: str
    tp: PartitionKey | None = None
    """None: only a loss of the log of transactions is an excuse."""


class Record(NamedTuple):
    """A record in a log."""

    offset: int
    message: str


class LogBatch(NamedTuple):
    """A batch of a producer in a log."""

    first: int
    last: int
    producer_id: int
    epoch: int
    is_transactional: bool
    marker: bool | None
    """Of a control batch: whether it is a commit."""
    coordinator_epoch: int
    records: tuple[Record, ...]


class EndedTransaction(NamedTuple):
    """A transaction as a log has it: the records before its marker."""

    producer_id: int
    epoch: int
    first: int
    marker_at: int
    is_commit: bool
    records: tuple[Record, ...]


@dataclass(slots=True, eq=False)
class Instance:
    """A producer with a transactional id, from its InitProducerId on."""

    transactional_id: str
    client: str
    asked_s: float
    begun_s: float
    fenced_s: float = NEVER_S
    """When the response to the InitProducerId of a later instance arrived."""
    writes_fenced_s: float = NEVER_S
    """The same for its writes: if the later instance keeps the transaction, the partitions do not know of it
    before they have the marker."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction as its producer knows it."""

    number: int
    instance: Instance
    begun_s: float
    sent: dict[str, PartitionKey] = field(default_factory=dict)
    """Each record that may be in a log."""
    acknowledged: dict[str, PartitionKey] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    """The records that the producer read before its decision, as read_committed."""
    offsets: dict[GroupPartition, int] = field(default_factory=dict)
    acknowledged_offsets: dict[GroupPartition, int] = field(default_factory=dict)
    commit_sent_s: float = NEVER_S
    committed_s: float = NEVER_S
    """When the response to its commit arrived."""
    abort_sent_s: float = NEVER_S
    is_prepared: bool = False
    """Whether its producer has prepared it for a two-phase commit: from then on it is committed only."""
    is_aborted: bool = False
    """The response to its abort arrived."""

    def __repr__(self) -> str:
        return f"transaction {self.number} of {self.instance.transactional_id} ({self.instance.client})"

    @property
    def may_be_committed(self) -> bool:
        """Whether its producer has requested the commit."""
        return self.commit_sent_s < NEVER_S

    @property
    def is_committed(self) -> bool:
        """Whether its producer knows that it is committed."""
        return self.committed_s < NEVER_S


class FoundOffset(NamedTuple):
    """A committed offset that a client received, with require-stable."""

    key: GroupPartition
    offset: int
    asked_s: float


class StableEnd(NamedTuple):
    """The last stable offset and the high watermark of one response."""

    tp: PartitionKey
    stable: int
    high_watermark: int


class CommittedReader(NamedTuple):
    """What a read_committed consumer has received of a partition."""

    name: str
    tp: PartitionKey
    received: tuple[Record, ...]
    position: int


class TransactionHistory:
    """The operations of all transactional clients."""

    def __init__(self, now: Callable[[], float], broken: Callable[[Fault], None]) -> None:
        self.now = now
        self._broken = broken
        self.has_lost_state: Callable[[], bool] = lambda: False
        """Whether the log of transactions may have lost records: an id and epoch may be given twice then."""
        self.ids_expire = False
        """Whether unused transactional ids are removed."""
        self.instances: list[Instance] = []
        self.transactions: list[Transaction] = []
        self.found: list[FoundOffset] = []
        self._of_record: dict[str, Transaction] = {}
        self._received: dict[tuple[str, PartitionKey], dict[int, str]] = {}
        self._positions: dict[tuple[str, PartitionKey], int] = {}
        self._stable: dict[tuple[str, PartitionKey], int] = {}
        self.stable_ends: set[StableEnd] = set()
        self._offsets_sent = 0

    # -- producers

    def next_offset(self) -> int:
        """Returns an offset that no transaction has sent yet."""
        self._offsets_sent += 1
        return self._offsets_sent

    def instance_began(
        self, transactional_id: str, client: str, asked_s: float, *, keeps: bool = False
    ) -> Instance:
        """The response to an InitProducerId has arrived: instances that had theirs when it was sent end.

        ``keeps``: an open transaction goes on, and its end calls :meth:`kept_ended`.
        """
        now = self.now()
        for one in self.instances:
            if one.transactional_id == transactional_id and one.begun_s <= asked_s:
                one.fenced_s = min(one.fenced_s, now)
                if not keeps:
                    one.writes_fenced_s = min(one.writes_fenced_s, now)
        self.instances.append(Instance(transactional_id, client, asked_s, now))
        return self.instances[-1]

    def kept_ended(self, instance: Instance) -> None:
        """The partitions have the markers of the transaction that an instance has kept."""
        now = self.now()
        for one in self.instances:
            if one.transactional_id == instance.transactional_id and one.begun_s <= instance.asked_s:
                one.writes_fenced_s = min(one.writes_fenced_s, now)

    def began(self, instance: Instance) -> Transaction:
        """A producer begins a transaction."""
        self.transactions.append(Transaction(len(self.transactions), instance, self.now()))
        return self.transactions[-1]

    def sending(self, transaction: Transaction, tp: PartitionKey, records: Iterable[str]) -> None:
        """Records are sent, for the first time or again."""
        for record in records:
            transaction.sent[record] = tp
            self._of_record[record] = transaction

    def acknowledged(
        self, transaction: Transaction, tp: PartitionKey, records: Iterable[str], sent_s: float
    ) -> None:
        """Records have a response without an error."""
        records = list(records)
        transaction.acknowledged.update(dict.fromkeys(records, tp))
        self.accepted(transaction.instance, f"wrote {records} to {tp}", sent_s, tp)

    def accepted(self, instance: Instance, what: str, sent_s: float, tp: PartitionKey | None = None) -> None:
        """A request of an instance, sent at this time, has succeeded. ``tp``: the partition of a write."""
        fenced_s = instance.fenced_s if tp is None else instance.writes_fenced_s
        if sent_s > fenced_s:
            late_s = sent_s - fenced_s
            text = f"{instance.client} {what}, {late_s:.3f} s after a later producer had begun"
            self._broken(Fault("zombie", text, tp))

    def commit_answered(self, transaction: Transaction, sent_s: float) -> None:
        """The commit of a transaction has succeeded."""
        transaction.committed_s = self.now()
        self.accepted(transaction.instance, f"commits {transaction}", sent_s)

    def other_end_confirmed(self, transaction: Transaction) -> None:
        """The commit of a transaction has succeeded whose abort had succeeded before."""
        text = f"the commit of {transaction} is confirmed, after its abort"
        self._broken(Fault("all-or-nothing", text))

    def prepared_refused(self, transaction: Transaction, error: str) -> None:
        """A producer cannot commit the prepared transaction of a former one."""
        text = f"{transaction} is prepared, and its commit is refused: {error}"
        self._broken(Fault("committed-write", text))

    # -- consumers

    def saw(self, reader: str, tp: PartitionKey, record: Record) -> None:
        """A read_committed consumer received a record."""
        self._received.setdefault((reader, tp), {})[record.offset] = record.message
        transaction = self._of_record.get(record.message)
        if transaction is not None and not transaction.may_be_committed:
            text = f"{reader} read {record} of {tp}: {transaction} has not requested its commit"
            self._broken(Fault("aborted-read", text, tp))

    def read(self, transaction: Transaction, record: Record, tp: PartitionKey) -> None:
        """A producer received a record, as read_committed, during its transaction."""
        transaction.reads.add(record.message)
        self.saw(f"{transaction.instance.client}, reading", tp, record)

    def position_of(self, reader: str, tp: PartitionKey, position: int) -> None:
        """A read_committed consumer has received everything below ``position``."""
        self._positions[reader, tp] = position

    def stable_told(self, reader: str, tp: PartitionKey, stable: int, high_watermark: int) -> None:
        """A consumer received the last stable offset and the high watermark of a partition."""
        self.stable_ends.add(StableEnd(tp, stable, high_watermark))
        before = self._stable.get((reader, tp), -1)
        if stable < before:
            self._broken(
                Fault("last-stable", f"the last stable offset of {tp} was {before}, is {stable}", tp)
            )
        self._stable[reader, tp] = max(before, stable)

    def offset_found(self, key: GroupPartition, offset: int, asked_s: float) -> None:
        """A client received a committed offset."""
        self.found.append(FoundOffset(key, offset, asked_s))

    @property
    def readers(self) -> list[CommittedReader]:
        """The read_committed consumers that read a partition from its start without a gap."""
        found = []
        for (name, tp), position in self._positions.items():
            received = sorted(self._received.get((name, tp), {}).items())
            found.append(CommittedReader(name, tp, tuple(Record(*one) for one in received), position))
        return found


# -- checks


def ended_transactions(tp: PartitionKey, batches: Sequence[LogBatch]) -> list[EndedTransaction]:
    """Returns the transactions of a log, in the order of their markers."""
    open_ones: dict[int, list[LogBatch]] = {}
    ended = []
    for batch in batches:
        if batch.marker is None:
            if batch.is_transactional:
                open_ones.setdefault(batch.producer_id, []).append(batch)
            continue
        held = open_ones.pop(batch.producer_id, [])
        if held:
            records = tuple(record for one in held for record in one.records)
            ended.append(
                EndedTransaction(
                    batch.producer_id, held[0].epoch, held[0].first, batch.last, batch.marker, records
                )
            )
    return ended


def faults_of_log(tp: PartitionKey, batches: Sequence[LogBatch]) -> Iterator[Fault]:
    """Yields the broken rules of one log at rest: epochs, markers, and records without a marker."""
    epochs: dict[int, int] = {}
    coordinator_epochs: dict[int, int] = {}
    open_ones: dict[int, LogBatch] = {}
    for batch in batches:
        producer_id = batch.producer_id
        if producer_id < 0:
            continue
        before = epochs.get(producer_id, -1)
        if batch.epoch < before:
            what = "a marker" if batch.marker is not None else f"records {list(batch.records)}"
            yield Fault(
                "zombie",
                f"{tp} has {what} of producer {producer_id} in epoch {batch.epoch} at {batch.first}, after"
                f" epoch {before}",
                tp,
            )
        epochs[producer_id] = max(before, batch.epoch)
        if batch.marker is not None:
            known = coordinator_epochs.get(producer_id, -1)
            if batch.coordinator_epoch < known:
                yield Fault(
                    "markers",
                    f"{tp} has a marker of producer {producer_id} at {batch.first} of coordinator epoch"
                    f" {batch.coordinator_epoch}, after {known}",
                    tp,
                )
            coordinator_epochs[producer_id] = max(known, batch.coordinator_epoch)
            open_ones.pop(producer_id, None)
            continue
        held = open_ones.get(producer_id)
        if batch.is_transactional and held is None:
            open_ones[producer_id] = batch
        elif held is not None and held.epoch != batch.epoch:
            yield Fault(
                "markers",
                f"{tp} has records of producer {producer_id} in epoch {batch.epoch} at {batch.first} in an"
                f" open transaction of epoch {held.epoch}",
                tp,
            )
    for held in open_ones.values():
        yield Fault("markers", f"{tp} has a transaction without a marker at rest, from {held}", tp)


class Outcomes:
    """The outcome of each transaction, by partition, as the logs have it."""

    def __init__(self, history: TransactionHistory, logs: Mapping[PartitionKey, Sequence[LogBatch]]) -> None:
        self.transactions = history.transactions
        self.of_record = {record: one for one in history.transactions for record in one.sent}
        self.ends: defaultdict[Transaction, dict[PartitionKey, set[bool]]] = defaultdict(dict)
        self.committed: dict[PartitionKey, dict[int, str]] = {}
        """By partition the committed records, by offset."""
        self.mixed: list[Fault] = []
        for tp, batches in logs.items():
            visible = self.committed[tp] = {}
            for ended in ended_transactions(tp, batches):
                owners = {self.of_record.get(record.message) for record in ended.records}
                if len(owners) != 1 or None in owners:
                    text = f"{tp} has records of {owners} in one transaction: {ended}"
                    self.mixed.append(Fault("markers", text, tp))
                for owner in owners:
                    if owner is not None:
                        self.ends[owner].setdefault(tp, set()).add(ended.is_commit)
                if ended.is_commit:
                    visible.update((record.offset, record.message) for record in ended.records)

    def is_committed(self, transaction: Transaction) -> bool:
        """Whether a partition has its commit marker."""
        return transaction.is_committed or any(True in ends for ends in self.ends[transaction].values())


def faults_of_history(
    history: TransactionHistory,
    logs: Mapping[PartitionKey, Sequence[LogBatch]],
    may_be_removed: Callable[[PartitionKey, Record], bool] = lambda tp, record: False,
) -> Iterator[Fault]:
    """Yields the anomalies of a history, compared with the logs at rest of all partitions.

    ``may_be_removed``: whether compaction may have removed a committed record before a consumer received it.
    """
    outcomes = Outcomes(history, logs)
    yield from outcomes.mixed
    yield from _faults_of_ends(outcomes)
    yield from _lost_and_duplicate_writes(outcomes)
    for tp, batches in logs.items():
        told = [one for one in history.stable_ends if one.tp == tp]
        yield from _faults_of_stable_ends(tp, told, ended_transactions(tp, batches))
    for reader in history.readers:
        yield from _faults_of_reader(reader, outcomes, may_be_removed)
    yield from _faults_of_offsets(history, outcomes)
    yield from _cycles(outcomes)


def _faults_of_ends(outcomes: Outcomes) -> Iterator[Fault]:
    """A transaction has one end in all partitions: the one that its producer requested."""
    for one in outcomes.transactions:
        ends = outcomes.ends[one]
        kinds = {is_commit for of_partition in ends.values() for is_commit in of_partition}
        for tp, of_partition in ends.items():
            if True in of_partition and not one.may_be_committed:
                yield Fault("aborted-read", f"{tp} has a commit of {one}, which has not requested it", tp)
            if False in of_partition and one.is_committed:
                yield Fault("committed-write", f"{tp} has an abort of {one}, which was committed", tp)
            elif False in of_partition and one.is_prepared:
                yield Fault("committed-write", f"{tp} has an abort of {one}, which was prepared", tp)
        if len(kinds) > 1:
            tp = next(tp for tp, of_partition in ends.items() if False in of_partition)
            yield Fault("all-or-nothing", f"{one} is committed in a part of its partitions: {ends}", tp)


def _lost_and_duplicate_writes(outcomes: Outcomes) -> Iterator[Fault]:
    places: dict[PartitionKey, Counter[str]] = {
        tp: Counter(records.values()) for tp, records in outcomes.committed.items()
    }
    for one in outcomes.transactions:
        if not outcomes.is_committed(one):
            continue
        for message, tp in one.acknowledged.items():
            count = places.get(tp, Counter())[message]
            if count == 0:
                yield Fault(
                    "committed-write" if one.is_committed else "all-or-nothing",
                    f"{tp} lacks {message} of {one}, which is committed",
                    tp,
                )
    for tp, counts in places.items():
        for message, count in counts.items():
            if count > 1:
                yield Fault("committed-write", f"{tp} has {message} {count} times as committed", tp)


def _faults_of_reader(
    reader: CommittedReader, outcomes: Outcomes, may_be_removed: Callable[[PartitionKey, Record], bool]
) -> Iterator[Fault]:
    """A read_committed consumer has received all committed records below its position, and no others."""
    visible = outcomes.committed.get(reader.tp, {})
    received = dict(reader.received)
    for offset, message in received.items():
        if visible.get(offset) != message:
            owner = outcomes.of_record.get(message)
            text = f"{reader.name} read {message} of {owner} at {reader.tp} offset {offset}, which has"
            yield Fault("aborted-read", f"{text} {visible.get(offset)} as committed", reader.tp)
    for offset, message in visible.items():
        is_missing = offset < reader.position and offset not in received
        if is_missing and not may_be_removed(reader.tp, Record(offset, message)):
            owner = outcomes.of_record.get(message)
            text = f"{reader.name} is at {reader.position} of {reader.tp}, and has not received {message}"
            yield Fault("all-or-nothing", f"{text} at {offset} of {owner}, which is committed", reader.tp)


def _faults_of_stable_ends(
    tp: PartitionKey, told: Sequence[StableEnd], transactions: Sequence[EndedTransaction]
) -> Iterator[Fault]:
    """A transaction is unstable until its marker is below the high watermark."""
    for one in transactions:
        for _, stable, high_watermark in told:
            if one.first < stable and one.marker_at >= high_watermark:
                text = f"{tp} was stable up to {stable}, with high watermark {high_watermark}: {one}"
                yield Fault("last-stable", text, tp)
                return


def _faults_of_offsets(history: TransactionHistory, outcomes: Outcomes) -> Iterator[Fault]:
    """A group has the offset of the last committed transaction."""
    by_offset: dict[tuple[GroupPartition, int], Transaction] = {}
    of_key: defaultdict[GroupPartition, list[Transaction]] = defaultdict(list)
    for one in history.transactions:
        for key, offset in one.offsets.items():
            by_offset[key, offset] = one
            of_key[key].append(one)
    for found in history.found:
        owner = by_offset.get((found.key, found.offset))
        known = [
            one
            for one in of_key[found.key]
            if one.committed_s <= found.asked_s and found.key in one.acknowledged_offsets
        ]
        if owner is None and found.offset >= 0:
            yield Fault("transactional-offsets", f"{found} was not sent in a transaction")
        elif owner is not None and not owner.may_be_committed:
            yield Fault("transactional-offsets", f"{found} is of {owner}, which has not requested its commit")
        elif owner is not None and _is_aborted_in_logs(owner, outcomes):
            yield Fault("transactional-offsets", f"{found} is of {owner}, which is aborted in partitions")
        later = [one for one in known if owner is None or one.begun_s > owner.begun_s]
        if later:
            yield Fault("transactional-offsets", f"{found} was received after the commit of {later[-1]}")


def _is_aborted_in_logs(transaction: Transaction, outcomes: Outcomes) -> bool:
    return any(False in ends for ends in outcomes.ends[transaction].values())


def _cycles(outcomes: Outcomes) -> Iterator[Fault]:
    """Committed transactions do not read each other's records in a circle (G1c)."""
    of_record = outcomes.of_record
    reads = {
        one: [of_record[message] for message in sorted(one.reads) if message in of_record]
        for one in outcomes.transactions
        if outcomes.is_committed(one)
    }
    done: set[Transaction] = set()
    for start in reads:
        path = [start]
        left = [list(reads[start])]
        while path:
            one = path[-1]
            if one in done or not left[-1]:
                done.add(path.pop())
                left.pop()
                continue
            writer = left[-1].pop()
            if writer in path and writer is not one:
                yield Fault("write-read-cycle", f"transactions read each other: {path[path.index(writer) :]}")
                return
            if writer in reads and writer not in done and writer is not one:
                path.append(writer)
                left.append(list(reads[writer]))
