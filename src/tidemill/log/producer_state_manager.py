"""The state of the idempotent producers of a partition, and its snapshot file.

``<end offset>.snapshot``:

====  =====  ==========  ====================================================================
byte  type   field       notes
====  =====  ==========  ====================================================================
0     int16  version     1
2     u32    checksum    CRC-32C of byte 6 to the end
6     int32  count       of the entries that follow, 42 bytes each
====  =====  ==========  ====================================================================

=====  ===========================  =========================================================
type   field of an entry            notes
=====  ===========================  =========================================================
int64  producer id
int16  producer epoch
int32  last sequence                of the producer's last batch; -1 if unknown
int64  last offset                  of that batch; -1 if unknown
int32  offset delta                 last minus first offset of that batch
int64  timestamp                    ms; the largest of that batch
int32  coordinator epoch            of the last transaction marker; -1 without
int64  first offset of transaction  of the open transaction; -1 without
=====  ===========================  =========================================================

A sequence number counts the records of a producer in a partition, and continues at 0 after 2^31 - 1. The last
five batches of each producer are kept, so that a retried batch (at most five requests are in flight) gets the
offset of the original. Every other batch must follow the last one.

A snapshot has only the last batch of each producer; batches after its end offset are read from the log. It is
not optional like a cache: without a snapshot, a start reads the whole log.

Source: KIP-98, KIP-185, KIP-360; Apache Kafka, ``ProducerStateManager.java``, ``ProducerAppendInfo.java``.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final

from mypy_extensions import i64

from tidemill.log.partition_transactions import PartitionTransactions
from tidemill.log.transaction_index import ABORTED_VERSION, Aborted
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, slices_of
from tidemill.model.types import NO_OFFSET
from tidemill.records.batch import (
    CONTROL_FLAG,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    TRANSACTIONAL_FLAG,
    Batch,
)
from tidemill.records.checksum import crc32c
from tidemill.records.end_transaction_marker import ABORT, EndTransactionMarker

BATCHES_KEPT: Final = 5
"""The maximum number of requests that an idempotent producer has in flight."""

SNAPSHOT_VERSION: Final = 1
_HEADER: Final = struct.Struct(">hII")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
CHECKED_FROM: Final = 2 + 4
"""The checksum covers the bytes from here on."""


class KeptBatch:
    """A batch of a producer that is in the log."""

    def __init__(self, last_sequence: i64, last_offset: i64, offset_delta: i64, timestamp: i64) -> None:
        self.last_sequence: i64 = last_sequence
        self.last_offset: i64 = last_offset
        self.offset_delta: i64 = offset_delta
        self.timestamp: i64 = timestamp

    @property
    def first_sequence(self) -> i64:
        """The sequence number of its first record."""
        return first_of(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> i64:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


def first_of(last_sequence: i64, offset_delta: i64) -> i64:
    """The first sequence number of a batch."""
    first: i64 = last_sequence - offset_delta
    return first if first >= 0 else first + SEQUENCE_MAX + 1


def forget_from(batches: list[KeptBatch], sequence: i64) -> None:
    """Removes batches from ``sequence`` on: a batch that begins there follows them in the log.

    The leader of that batch did not have them: for instance, they were before its log start offset. The
    producer continues after the new batch, also with the next leader. Otherwise that leader would treat some
    of its batches as duplicates and reject the next one. Apache Kafka keeps them.
    """
    while batches:
        last: i64 = batches[len(batches) - 1].last_sequence
        ahead: i64 = (sequence - last - 1) & SEQUENCE_MAX
        if ahead <= SEQUENCE_MAX // 2:
            return
        batches.pop()


class ProducerEntry:
    """A producer: its epoch, its last batches (oldest first), its open transaction."""

    def __init__(self, producer_id: i64, epoch: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.batches: list[KeptBatch] = []
        self.coordinator_epoch: i64 = -1
        self.transaction_first_offset: i64 = NO_OFFSET
        self.last_timestamp: i64 = -1
        self.seen_ms: i64 = -1
        self.from_snapshot: bool = False
        """Whether the log may have earlier batches, which a snapshot does not contain."""

    @property
    def last_sequence(self) -> i64:
        """-1 if no batch of this epoch is known."""
        if not self.batches:
            return NO_SEQUENCE
        return self.batches[len(self.batches) - 1].last_sequence

    @property
    def last_offset(self) -> i64:
        """-1 if no batch of this epoch is known."""
        if not self.batches:
            return NO_OFFSET
        return self.batches[len(self.batches) - 1].last_offset

    def duplicate_of(self, batch: Batch) -> KeptBatch | None:
        """The kept batch with the same sequence numbers, or None."""
        if batch.producer_epoch != self.epoch:
            return None
        last: i64 = batch.last_sequence
        delta: i64 = batch.last_offset_delta
        for kept in self.batches:
            if kept.last_sequence == last and kept.offset_delta == delta:
                return kept
        return None

    def add(
        self, epoch: i64, last_sequence: i64, last_offset: i64, offset_delta: i64, timestamp: i64
    ) -> None:
        """Adds a batch that was appended to the log."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.from_snapshot = False
        if last_sequence >= 0:
            forget_from(self.batches, first_of(last_sequence, offset_delta))
        if len(self.batches) >= BATCHES_KEPT:
            kept = self.batches.pop(0)
            kept.last_sequence = last_sequence
            kept.last_offset = last_offset
            kept.offset_delta = offset_delta
            kept.timestamp = timestamp
            self.batches.append(kept)
            self.from_snapshot = False
        else:
            self.batches.append(KeptBatch(last_sequence, last_offset, offset_delta, timestamp))
        self.last_timestamp = timestamp


class VerificationGuard:
    """A question to the transaction coordinator: does it know the transaction of a producer?

    Its answer is void once a marker has followed: it may have been about the transaction that the marker has
    ended (KIP-890). Batches of the producer that wait at the same time share the guard.

    If each transaction has its own epoch, the marker with the same epoch belongs to the transaction before.
    """

    def __init__(self, epoch: i64, has_own_epoch: bool) -> None:
        self.epoch: i64 = epoch
        self.has_own_epoch: bool = has_own_epoch
        self.uses: i64 = 0

    def is_voided_by(self, epoch: i64) -> bool:
        """Whether a marker with ``epoch`` voids the answer."""
        return epoch > self.epoch or (epoch == self.epoch and not self.has_own_epoch)


class ProducerStateManager:
    """The producers of one partition. ``end_offset`` is the offset up to which the log was applied."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, ProducerEntry] = {}
        self.transactions = PartitionTransactions()
        self.end_offset: i64 = 0
        self.snapshot_offset: i64 = -1
        self.ended_mirror = b""
        """The topic id in the last end of a mirror that was applied. It is not in a snapshot."""
        self._guards: dict[int, dict[int, VerificationGuard]] = {}
        """The verifications that have begun, by producer id and epoch. They are not in a snapshot."""

    def check(self, batch: Batch) -> KeptBatch | None:
        """The kept batch that ``batch`` duplicates; None if ``batch`` may be appended.

        Raises KafkaError: INVALID_PRODUCER_EPOCH for a fenced producer, OUT_OF_ORDER_SEQUENCE_NUMBER for a
        batch that does not follow the last one. A producer that the partition does not know (it is new, or
        was removed by retention or expiry) may begin with any sequence, as in Kafka, which does not return
        UNKNOWN_PRODUCER_ID any more. INVALID_TXN_STATE for a batch outside of a transaction, while a
        transaction of its producer is open.
        """
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return None
        if batch.base_sequence != NO_SEQUENCE:
            duplicate = entry.duplicate_of(batch)
            if duplicate is not None:
                return duplicate
        epoch: i64 = batch.producer_epoch
        if entry.transaction_first_offset >= 0 and batch.attributes & TRANSACTIONAL_FLAG == 0:
            raise KafkaError(
                f"producer {batch.producer_id} of {self.name} has a transaction, and sent a batch that does"
                " not belong to it: send records outside of transactions with another producer",
                ErrorCode.INVALID_TXN_STATE,
            )
        if epoch < entry.epoch:
            raise KafkaError(
                f"producer {batch.producer_id} of {self.name} has epoch {epoch}, but "
                f"a newer instance has epoch {entry.epoch}: close this producer",
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        first: i64 = batch.base_sequence
        if first == NO_SEQUENCE:
            return None  # The group coordinator writes offsets for a producer, without sequence numbers.
        if epoch > entry.epoch:
            if first != 0 and entry.epoch != NO_PRODUCER_EPOCH:
                raise KafkaError(
                    f"producer {batch.producer_id} of {self.name} starts epoch {epoch} with sequence "
                    f"{first}, not 0 (the epoch before it was {entry.epoch})",
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                )
            return None
        expected: i64 = self.next_sequence(batch.producer_id, epoch)
        if first != expected and entry.epoch != NO_PRODUCER_EPOCH:
            raise KafkaError(
                f"producer {batch.producer_id} (epoch {epoch}) of {self.name} sent sequence {first}, "
                f"expected {expected}: a previous batch is missing",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )
        return None

    def check_marker(self, producer_id: i64, epoch: i64, coordinator_epoch: i64, has_new_epoch: bool) -> None:
        """Raises KafkaError unless a marker with these epochs may be appended.

        INVALID_PRODUCER_EPOCH for a marker of a fenced producer. With ``has_new_epoch``, the marker has the
        epoch after that of its transaction (KIP-890): a transaction of the same epoch is a later one.
        TRANSACTION_COORDINATOR_FENCED for a marker of a coordinator that has a successor.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        is_late = has_new_epoch and epoch == entry.epoch and entry.transaction_first_offset >= 0
        if epoch < entry.epoch or is_late:
            raise KafkaError(
                f"the marker of producer {producer_id} of {self.name} has epoch {epoch}, but a later"
                f" transaction has epoch {entry.epoch}",
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                f"the marker of producer {producer_id} of {self.name} is from a coordinator with epoch"
                f" {coordinator_epoch}, but a later coordinator has epoch {entry.coordinator_epoch}",
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )

    def has_transaction(self, producer_id: i64, epoch: i64) -> bool:
        """Whether a transaction of the producer with this epoch is open."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    def begin_verification(self, producer_id: i64, epoch: i64, has_own_epoch: bool) -> VerificationGuard:
        """Returns the guard of a batch that would begin a transaction of the producer.

        ``has_own_epoch``: whether each transaction of the producer has its own epoch (KIP-890).
        """
        guards = self._guards.get(producer_id)
        if guards is None:
            guards = {}
            self._guards[producer_id] = guards
        guard = guards.get(epoch)
        if guard is None:
            guard = VerificationGuard(epoch, has_own_epoch)
            guards[epoch] = guard
        elif not has_own_epoch:
            guard.has_own_epoch = False
        guard.uses += 1
        return guard

    def end_verification(self, producer_id: i64, guard: VerificationGuard) -> bool:
        """Ends the use of ``guard``. Returns whether it is still valid: no marker has followed."""
        guards = self._guards.get(producer_id)
        is_valid = guards is not None and guards.get(guard.epoch) is guard
        guard.uses -= 1
        if guards is not None and is_valid and guard.uses == 0:
            del guards[guard.epoch]
            if not guards:
                del self._guards[producer_id]
        return is_valid

    def _void_verifications(self, producer_id: i64, epoch: i64) -> None:
        """Voids the verifications before a marker with ``epoch``."""
        guards = self._guards.get(producer_id)
        if guards is None:
            return
        for guard in list(guards.values()):
            if guard.is_voided_by(epoch):
                del guards[guard.epoch]
        if not guards:
            del self._guards[producer_id]

    def next_sequence(self, producer_id: i64, epoch: i64) -> i64:
        """The expected sequence of a producer's next batch; -1 if any is valid."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            return NO_SEQUENCE
        if epoch > entry.epoch:
            return 0
        last: i64 = entry.last_sequence
        return last + 1 if last < SEQUENCE_MAX else 0

    def apply(
        self,
        batch: Batch,
        marker: EndTransactionMarker | None,
        base_offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> None:
        """Applies a batch of a producer that is in the log at ``base_offset``, with ``timestamp``.

        A transactional batch begins the producer's transaction, unless one is open. ``marker`` is that of a
        control batch: it ends the transaction and sets the epoch. Other control batches have no effect.
        """
        if marker is None and batch.attributes & CONTROL_FLAG != 0:
            return
        producer_id: i64 = batch.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id, batch.producer_epoch)
            self.entries[producer_id] = entry
        if marker is not None:
            self._void_verifications(producer_id, batch.producer_epoch)
            self._end_transaction(entry, batch.producer_epoch, marker, base_offset, timestamp)
            return
        delta: i64 = batch.last_offset_delta
        entry.add(batch.producer_epoch, batch.last_sequence, base_offset + delta, delta, timestamp)
        entry.seen_ms = now_ms
        if batch.attributes & TRANSACTIONAL_FLAG != 0 and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self.transactions.begin(producer_id, base_offset)

    def aborted_by(self, producer_id: i64, marker: EndTransactionMarker, offset: i64) -> Aborted | None:
        """The index entry for a marker at ``offset`` that was not applied yet.

        None for a commit, and for a transaction without batches here.
        """
        entry = self.entries.get(producer_id)
        if marker.control_type != ABORT or entry is None or entry.transaction_first_offset < 0:
            return None
        stable: i64 = self.transactions.first_open(producer_id)
        if stable < 0:
            stable = offset + 1
        first: i64 = entry.transaction_first_offset
        return Aborted(ABORTED_VERSION, int(producer_id), int(first), int(offset), int(stable))

    def _end_transaction(
        self, entry: ProducerEntry, epoch: i64, marker: EndTransactionMarker, offset: i64, timestamp: i64
    ) -> None:
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        if entry.transaction_first_offset >= 0:
            self.transactions.end(entry.transaction_first_offset, offset)
        entry.transaction_first_offset = NO_OFFSET
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp

    def remove_expired_in_slices(self, now_ms: int, expiration_ms: int) -> Generator[None, None, None]:
        """Removes producers without open transaction that were idle for ``expiration_ms``.

        The time counts from when this broker last saw a batch, not from record timestamps: otherwise a
        producer of old records would expire at once, and its retries would be stored twice. Pauses after many
        producers: a client can add any number of them, because a partition keeps each new producer id.
        """
        for producer_ids in slices_of(list(self.entries), ITEMS_PER_SLICE):
            self._remove_expired(producer_ids, now_ms, expiration_ms)
            yield

    def _remove_expired(self, producer_ids: Sequence[int], now_ms: i64, expiration_ms: i64) -> None:
        for producer_id in producer_ids:
            entry = self.entries.get(producer_id)
            if entry is None or entry.transaction_first_offset >= 0:
                continue
            if now_ms - max(entry.last_timestamp, entry.seen_ms) >= expiration_ms:
                del self.entries[producer_id]

    def end_mirror(self, topic_id: bytes) -> None:
        """Removes all producers at the end of the mirror with ``topic_id``: they were of another cluster.

        Their transactions have ended; those whose markers are not committed yet are kept apart from them.
        """
        self.entries.clear()
        self.ended_mirror = topic_id

    def forget(self) -> None:
        """Clears the state before it is read again."""
        self.ended_mirror = b""
        self.entries.clear()
        self.transactions.clear()
        self.end_offset = 0

    def encode(self) -> bytes:
        """The state as the content of a snapshot file."""
        parts = [struct.pack(">i", len(self.entries))]
        for entry in self.entries.values():
            delta = 0
            if entry.batches:
                delta = int(entry.batches[len(entry.batches) - 1].offset_delta)
            parts.append(
                _ENTRY.pack(
                    entry.producer_id,
                    entry.epoch,
                    entry.last_sequence,
                    entry.last_offset,
                    delta,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        body = b"".join(parts)
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, data: bytes, end_offset: i64, now_ms: i64, path: str) -> None:
        """Replaces the state with a snapshot. Raises StorageError for a damaged one, changing nothing."""
        entries = decode_snapshot(data, path)
        self.entries.clear()
        self.transactions.clear()
        for entry in entries:
            entry.seen_ms = now_ms
            self.entries[entry.producer_id] = entry
        for entry in sorted(entries, key=_transaction_first_offset):
            if entry.transaction_first_offset >= 0:
                self.transactions.begin(entry.producer_id, entry.transaction_first_offset)
        self.end_offset = end_offset


def _transaction_first_offset(entry: ProducerEntry) -> int:
    return int(entry.transaction_first_offset)


def decode_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """The entries of a snapshot file. Raises StorageError if it is damaged or of another version."""
    if len(data) < CHECKED_FROM + 4:
        raise StorageError(f"{path} has {len(data)} bytes, too few for a producer snapshot")
    version, checksum, count = _HEADER.unpack_from(data, 0)
    if version != SNAPSHOT_VERSION:
        raise StorageError(f"{path} is a producer snapshot of version {version}, expected {SNAPSHOT_VERSION}")
    found = crc32c(memoryview(data)[CHECKED_FROM:])
    if found != checksum:
        raise StorageError(f"{path} has checksum {found}, but its header has {checksum}")
    if len(data) != CHECKED_FROM + 4 + count * _ENTRY.size:
        raise StorageError(f"{path} has {len(data)} bytes, which does not match {count} producers")
    entries: list[ProducerEntry] = []
    at = CHECKED_FROM + 4
    for _ in range(count):
        values = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        entry = ProducerEntry(values[0], values[1])
        if values[3] >= 0:
            entry.batches.append(KeptBatch(values[2], values[3], values[4], values[5]))
            entry.from_snapshot = True
        entry.last_timestamp = values[5]
        entry.coordinator_epoch = values[6]
        entry.transaction_first_offset = values[7]
        entries.append(entry)
    return entries
