"""The state of transaction coordinators: the part of the promise ``coordinator`` about transactions.

Each coordinator is compared with a replay of the committed part of its log: when it has loaded the log,
whenever a write has ended, and whenever a write takes too long. It keeps requests for an id away while a
record of the id is being written, waits for the markers of each decided transaction, and completes the
transaction after the last one, again and again if the write fails.

Two promises of other names are checked here as well. ``zombie``: a transaction that its producer has not
ended is aborted with an epoch that the producer does not have. ``markers``: the decisions are collected, and
at rest :meth:`TransactionStatePromise.faults_of_markers` compares the markers in the logs with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from log_inspection import records_of
from transactions_promise import Fault, LogBatch, PartitionKey

from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.coordinator_runtime.coordinator_shard import CoordinatorShard
from tidemill.coordinator_runtime.pending_writes import Write
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.record_reader import iter_records
from tidemill.replication.partition import Partition
from tidemill.transactions.coordinator_effects import EndStored
from tidemill.transactions.transaction_log import decode_record
from tidemill.transactions.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    PREPARED,
    TransactionMetadata,
    TransactionState,
)
from tidemill.transactions.transaction_state_manager import TransactionStateManager

Shard: TypeAlias = CoordinatorShard[TransactionStateManager]
States = dict[str, TransactionMetadata]
"""By transactional id."""
COMPLETION_S = 3.0
"""A coordinator writes the completion of a transaction within this time, or tries so again."""
FAILURES_MAX = 5
"""The writes for an id that fail at one instant: the requests that wait for a failed write are refused."""
LOOKED_S = 0.5
"""A coordinator that was not looked at for so long may have been suspended."""


class Decision(NamedTuple):
    """The end of a transaction: its markers have this producer id and epoch."""

    producer_id: int
    epoch: int
    is_commit: bool


class Decided(NamedTuple):
    """What is known of a decision."""

    coordinator_epoch: int
    """Of the coordinator that has written it, or loaded it."""
    has_own_epoch: bool
    """Whether the markers have the epoch after that of the transaction (KIP-890)."""


class WatchedTransactions:
    """An active coordinator, and its expected state."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.states: States = {}

    def take(self, data: bytes) -> None:
        """Replays batches."""
        for record in iter_records(data, unpacked_bytes_max=UNPACKED_BYTES_MAX):
            change = decode_record(record.key, record.value)
            if change is not None and change.metadata is not None:
                self.states[change.transactional_id] = change.metadata
            elif change is not None:
                self.states.pop(change.transactional_id, None)


class TransactionStatePromise:
    """Compares transaction coordinators with their logs."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self._watched: dict[Shard, WatchedTransactions] = {}
        self._decided: dict[Decision, Decided] = {}
        self._waiting: dict[tuple[Shard, str], float] = {}
        """Since when a transaction with all its markers is not complete."""
        self._looked_s: dict[Shard, float] = {}
        self._failed: dict[tuple[Shard, str], tuple[int, int]] = {}
        """When a write for an id has failed last, in milliseconds; and how often at that instant."""
        self.two_phase_ids: frozenset[str] = frozenset()
        """The transactional ids whose producers use a two-phase commit."""

    def loaded(self, shard: Shard, partition: Partition) -> None:
        """A coordinator has loaded its log, and starts to respond."""
        watched = self._watched[shard] = WatchedTransactions(partition)
        watched.take(records_of(partition))
        for one in watched.states.values():
            self._decide(shard, one)
        if int(partition.high_watermark) < int(partition.log.end_offset):
            self._tell(shard, f"has loaded its log up to {partition.log.end_offset}, which is not committed")
        self._compare(shard, watched)

    def written(self, shard: Shard, write: Write, batch: bytes, end: int) -> None:
        """A write has succeeded; its effects follow."""
        watched = self._watched.get(shard)
        if watched is None:
            return
        mark = int(watched.partition.high_watermark)
        if not batch or end > mark:
            self._tell(shard, f"treats records up to {end} as written, and {mark} is committed")
        for effect in write.ending:
            if isinstance(effect.then, EndStored):
                self._check_fenced(shard, watched.states, effect.then)
        watched.take(batch)
        for one in watched.states.values():
            self._decide(shard, one)

    def _check_fenced(self, shard: Shard, states: States, then: EndStored) -> None:
        """A coordinator that aborts a transaction itself fences the producer. It aborts none of a two-phase
        commit, whose producers keep the transactions of former ones.
        """
        before, after = states.get(then.transactional_id), then.metadata
        if then.waiter is not None or before is None:
            return
        if not before.has_timeout or then.transactional_id in self.two_phase_ids:
            self._tell(shard, f"aborts {then.transactional_id}, {before}, which may be prepared")
        if after.producer_epoch <= before.producer_epoch:
            text = f"aborts the transaction of {then.transactional_id}, {before}, with its own epoch: {after}"
            self._broken("zombie", f"the coordinator of {TRANSACTION_TOPIC}-{shard.partition} {text}")

    def _decide(self, shard: Shard, one: TransactionMetadata) -> None:
        if one.state in PREPARED:
            is_commit = one.state is TransactionState.PREPARE_COMMIT
            decision = Decision(one.producer_id, one.producer_epoch, is_commit)
            has_own_epoch = one.client_version >= EPOCH_BUMP_VERSION
            known = self._decided.setdefault(decision, Decided(shard.epoch, has_own_epoch))
            if known.has_own_epoch and not has_own_epoch:
                # A producer of version 1 has gone on with the epoch of an abort that the coordinator decided.
                self._decided[decision] = known._replace(has_own_epoch=False)

    def ended(self, shard: Shard, write: Write | None = None) -> None:
        """A write has ended, or takes too long, and the effects of that have been performed."""
        for effect in write.ending if write is not None else ():
            for record in effect.records:
                self._waiting.pop((shard, record.transactional_id), None)
        if write is not None and _has_failed(write):
            self._write_failed(shard, write)
        watched = self._watched.get(shard)
        if watched is not None and shard.is_active:
            self._compare(shard, watched)
            self._check_pending(shard)
            self._check_decided(shard, watched.states)

    def _write_failed(self, shard: Shard, write: Write) -> None:
        """A failed write is not repeated before time has passed: its cause, such as a full disk, lasts."""
        now_ms = shard.now().monotonic_ms
        for record in (record for effect in write.ending for record in effect.records):
            key = (shard, record.transactional_id)
            before_ms, count = self._failed.get(key, (now_ms, 0))
            count = count + 1 if before_ms == now_ms else 1
            self._failed[key] = (now_ms, count)
            if count > FAILURES_MAX:
                text = f"has written a record of {record.transactional_id} {count} times at one instant"
                self._tell(shard, f"{text}, and failed")

    def closed(self, shard: Shard) -> None:
        """Another broker coordinates the transactions."""
        self._watched.pop(shard, None)

    def look(self, shard: Shard, now_s: float) -> None:
        """A running coordinator completes each transaction that has all its markers."""
        if now_s - self._looked_s.get(shard, 0.0) > LOOKED_S:
            self._waiting = {key: since for key, since in self._waiting.items() if key[0] is not shard}
        self._looked_s[shard] = now_s
        for name, unmarked in shard.machine._unmarked.items():
            if unmarked or name in shard.machine.pending or not shard.is_active:
                self._waiting.pop((shard, name), None)
            elif now_s - self._waiting.setdefault((shard, name), now_s) > COMPLETION_S:
                self._tell(shard, f"does not complete {name}, whose markers are written")

    def faults_of_markers(self, tp: PartitionKey, batches: Sequence[LogBatch]) -> Iterator[Fault]:
        """Yields the markers of a log without a decision, of a coordinator that did not know the decision, or
        of the transaction before the one that they end.
        """
        epochs: dict[int, int] = {}
        for batch in batches:
            if batch.marker is None:
                epochs.setdefault(batch.producer_id, batch.epoch)
                continue
            epoch = epochs.pop(batch.producer_id, -1)
            decided = self._decided.get(Decision(batch.producer_id, batch.epoch, batch.marker))
            if decided is None:
                yield Fault("markers", f"{tp} has a marker that no coordinator has decided: {batch}", tp)
            elif batch.coordinator_epoch < decided.coordinator_epoch:
                text = f"{tp} has a marker of a coordinator before that of the decision {decided}: {batch}"
                yield Fault("markers", text, tp)
            elif decided.has_own_epoch and epoch >= batch.epoch:
                text = f"{tp} has a marker of the transaction before that of epoch {epoch}: {batch}"
                yield Fault("markers", text, tp)

    def _compare(self, shard: Shard, watched: WatchedTransactions) -> None:
        known = {name: _as_written(one) for name, one in shard.machine.transactions.items()}
        written = {name: _as_written(one) for name, one in watched.states.items()}
        for name in sorted({*known, *written}):
            if known.get(name) != written.get(name):
                text = f"knows {known.get(name)} of {name}, and its log has {written.get(name)}"
                self._tell(shard, text)

    def _check_pending(self, shard: Shard) -> None:
        """The ids with a record that is being written are busy."""
        outgoing = [one.effect for one in shard._outgoing]
        effects = [*outgoing, *(one for write in shard._writes for one in write.ending)]
        names = {record.transactional_id for one in effects for record in one.records}
        if names != shard.machine.pending:
            self._tell(shard, f"treats {shard.machine.pending} as busy, and writes {names}")

    def _check_decided(self, shard: Shard, states: Mapping[str, TransactionMetadata]) -> None:
        """A decided transaction waits for markers in some of its partitions, and no other does."""
        unmarked = shard.machine._unmarked
        for name, one in states.items():
            waits = name in unmarked
            if one.state in PREPARED and not (waits and unmarked[name] <= one.partitions):
                self._tell(shard, f"waits for markers of {unmarked.get(name)}, and {name} is {one}")
            elif one.state not in PREPARED and waits:
                self._tell(shard, f"waits for markers of {unmarked[name]}, and {name} is {one}")

    def _tell(self, shard: Shard, text: str) -> None:
        self._broken("coordinator", f"the coordinator of {TRANSACTION_TOPIC}-{shard.partition} {text}")


def _has_failed(write: Write) -> bool:
    result = write.result
    return result is not None and not result.cancelled() and result.exception() is not None


def _as_written(one: TransactionMetadata) -> TransactionMetadata:
    """The log does not have the last epoch."""
    return one._replace(last_producer_epoch=-1)
