"""What a partition knows of its idempotent producers, and the snapshot file of it.

``<end offset>.snapshot``:

====  =====  ==========  ====================================================================
byte  type   field       notes
====  =====  ==========  ====================================================================
0     int16  version     1
2     u32    checksum    CRC-32C of byte 6 to the end
6     int32  count       of the entries that follow, 42 bytes each
====  =====  ==========  ====================================================================

=====  ==========================  =========================================================
type   field of an entry           notes
=====  ==========================  =========================================================
int64  producer id
int16  producer epoch
int32  last sequence               of the producer's last batch; -1 when none is known
int64  last offset                 of that batch; -1 when none is known
int32  offset delta                last less first offset of that batch
int64  timestamp                   ms; the largest of that batch
int32  coordinator epoch           of the last transaction marker; -1 without
int64  first offset of transaction of the open transaction; -1 without
=====  ==========================  =========================================================

A sequence number counts the records of a producer in a partition, and goes from 2^31 - 1 back to 0. The last
five batches of each producer are remembered, so that a batch that is sent again (at most five are in flight)
is answered with the offset that it got; every other batch must follow the last one.

A snapshot holds the last batch of each producer only; the batches after its end offset are read from the
log. It is no cache that may be missing: a partition without one reads its whole log at the start.

Source: KIP-98, KIP-185, KIP-360; Apache Kafka, ``ProducerStateManager.java``, ``ProducerAppendInfo.java``.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from tidemill.log.transaction_index import ABORTED_VERSION, Aborted
from tidemill.log.transactions import ABORT, Marker, Transactions
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.records.batch import Batch
from tidemill.records.checksum import crc32c

BATCHES_KEPT: Final = 5
"""As many requests as an idempotent producer has in flight at most."""

SEQUENCE_MAX: Final = 0x7FFFFFFF
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1

SNAPSHOT_VERSION: Final = 1
_HEADER: Final = struct.Struct(">hII")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
CHECKED_FROM: Final = 2 + 4
"""The checksum is over what follows it."""


class KeptBatch:
    """One batch of a producer that is in the log."""

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
    """The sequence number with which a batch begins."""
    first: i64 = last_sequence - offset_delta
    return first if first >= 0 else first + SEQUENCE_MAX + 1


def forget_from(batches: list[KeptBatch], sequence: i64) -> None:
    """Drops what a producer sent from ``sequence`` on: a batch that begins there comes behind it in the log.

    The leader of that batch did not know them: they lay before the start of its log, for instance. The
    producer goes on behind the new batch, also with the next leader. Else that one would answer some of its
    batches as repeated, and refuse the one after. Apache Kafka keeps them.
    """
    while batches:
        last: i64 = batches[len(batches) - 1].last_sequence
        ahead: i64 = (sequence - last - 1) & SEQUENCE_MAX
        if ahead <= SEQUENCE_MAX // 2:
            return
        batches.pop()


class ProducerEntry:
    """One producer: its epoch, its last batches (oldest first), its open transaction."""

    def __init__(self, producer_id: i64, epoch: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.batches: list[KeptBatch] = []
        self.coordinator_epoch: i64 = -1
        self.transaction_first_offset: i64 = NO_OFFSET
        self.last_timestamp: i64 = -1
        self.seen_ms: i64 = -1
        self.from_snapshot: bool = False
        """Whether batches before the kept ones may be in the log, which a snapshot does not tell."""

    @property
    def last_sequence(self) -> i64:
        """-1 when no batch of this epoch is known."""
        if not self.batches:
            return NO_SEQUENCE
        return self.batches[len(self.batches) - 1].last_sequence

    @property
    def last_offset(self) -> i64:
        """-1 when no batch of this epoch is known."""
        if not self.batches:
            return NO_OFFSET
        return self.batches[len(self.batches) - 1].last_offset

    def duplicate_of(self, batch: Batch) -> KeptBatch | None:
        """The kept batch that has the same sequence numbers, if one has."""
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
        """Notes a batch that is in the log now."""
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


class ProducerState:
    """The producers of one partition. ``end_offset`` is the offset up to which the log is in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, ProducerEntry] = {}
        self.transactions = Transactions()
        self.end_offset: i64 = 0
        self.snapshot_offset: i64 = -1

    def check(self, batch: Batch) -> KeptBatch | None:
        """The kept batch that ``batch`` repeats; None when it may be appended.

        Raises KafkaError with INVALID_PRODUCER_EPOCH for a producer that a newer one replaced, and with
        OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that does not follow the last one. A producer that the
        partition does not know (never did, or forgot: retention, expiry) may begin anywhere, as in Kafka,
        which answers UNKNOWN_PRODUCER_ID no more.
        """
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return None
        duplicate = entry.duplicate_of(batch)
        if duplicate is not None:
            return duplicate
        epoch: i64 = batch.producer_epoch
        if epoch < entry.epoch:
            raise KafkaError(
                f"producer {batch.producer_id} of {self.name} came with epoch {epoch}, "
                f"epoch {entry.epoch} has replaced it: close this producer",
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        first: i64 = batch.base_sequence
        if epoch > entry.epoch:
            if first != 0 and entry.epoch != NO_EPOCH:
                raise KafkaError(
                    f"producer {batch.producer_id} of {self.name} begins epoch {epoch} with sequence "
                    f"{first}, not 0 (the epoch before it was {entry.epoch})",
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                )
            return None
        expected: i64 = self.next_sequence(batch.producer_id, epoch)
        if first != expected and entry.epoch != NO_EPOCH:
            raise KafkaError(
                f"producer {batch.producer_id} (epoch {epoch}) of {self.name} sent sequence {first}, "
                f"{expected} is next: a batch before it is missing",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )
        return None

    def next_sequence(self, producer_id: i64, epoch: i64) -> i64:
        """The sequence with which a producer's next batch has to begin; -1 when any will do."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch == NO_EPOCH:
            return NO_SEQUENCE
        if epoch > entry.epoch:
            return 0
        last: i64 = entry.last_sequence
        return last + 1 if last < SEQUENCE_MAX else 0

    def note(
        self,
        producer_id: i64,
        epoch: i64,
        last_sequence: i64,
        last_offset: i64,
        offset_delta: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> None:
        """Takes in a data batch that is in the log now."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id, epoch)
            self.entries[producer_id] = entry
        entry.add(epoch, last_sequence, last_offset, offset_delta, timestamp)
        entry.seen_ms = now_ms

    def begin_transaction(self, producer_id: i64, first_offset: i64) -> None:
        """Notes where the producer's open transaction begins, unless one is open already."""
        entry = self.entries.get(producer_id)
        if entry is not None and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = first_offset
            self.transactions.begin(producer_id, first_offset)

    def aborted_by(self, producer_id: i64, marker: Marker, offset: i64) -> Aborted | None:
        """What the index of the segment is told of a marker at ``offset`` that is not taken in yet.

        None for a commit, and for a transaction that has no batches here.
        """
        entry = self.entries.get(producer_id)
        if marker.kind != ABORT or entry is None or entry.transaction_first_offset < 0:
            return None
        stable: i64 = self.transactions.first_open(producer_id)
        if stable < 0:
            stable = offset + 1
        first: i64 = entry.transaction_first_offset
        return Aborted(ABORTED_VERSION, int(producer_id), int(first), int(offset), int(stable))

    def end_transaction(
        self, producer_id: i64, epoch: i64, marker: Marker, offset: i64, timestamp: i64
    ) -> None:
        """Takes in a marker at ``offset``: the producer has no open transaction, and this epoch."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id, epoch)
            self.entries[producer_id] = entry
        if entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        if entry.transaction_first_offset >= 0:
            self.transactions.end(entry.transaction_first_offset, offset)
        entry.transaction_first_offset = NO_OFFSET
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp

    def expire(self, now_ms: i64, expiration_ms: i64) -> int:
        """Forgets producers without an open transaction that were silent for ``expiration_ms``; how many.

        A producer's silence counts from when this broker saw it last, not from its records' time: a
        producer of old records would be forgotten at once otherwise, and its retries stored twice.
        """
        silent = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset < 0
            and now_ms - max(entry.last_timestamp, entry.seen_ms) >= expiration_ms
        ]
        for producer_id in silent:
            del self.entries[producer_id]
        return len(silent)

    def forget(self) -> None:
        """Empties the state, before it is read anew."""
        self.entries.clear()
        self.transactions.clear()
        self.end_offset = 0

    def encode(self) -> bytes:
        """The state as a snapshot file's content."""
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
        """Takes over a snapshot's content. Raises StorageError when it is damaged; nothing changes then."""
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
    """The entries of a snapshot file. Raises StorageError when it is cut, changed or of another version."""
    if len(data) < CHECKED_FROM + 4:
        raise StorageError(f"{path} has {len(data)} bytes, too few for a producer snapshot")
    version, checksum, count = _HEADER.unpack_from(data, 0)
    if version != SNAPSHOT_VERSION:
        raise StorageError(
            f"{path} is a producer snapshot of version {version}, only {SNAPSHOT_VERSION} is known"
        )
    found = crc32c(memoryview(data)[CHECKED_FROM:])
    if found != checksum:
        raise StorageError(f"{path} has checksum {found}, its header says {checksum}")
    if len(data) != CHECKED_FROM + 4 + count * _ENTRY.size:
        raise StorageError(f"{path} has {len(data)} bytes, not what {count} producers take")
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
