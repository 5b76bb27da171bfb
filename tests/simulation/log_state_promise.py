"""The state of logs in memory: ``no-hole``, ``epochs``, ``producers``, ``recovery-point``, ``checkpoints``.

A fault in this state does harm only if a leader fails, a producer retries or a machine loses its power at the
right moment, which is rare in a run. So the state is compared with the segments: when a log was opened or
truncated, when its recovery point has moved, when its process ends, and at rest. Compaction removes batches
that show the start of an epoch, and the end of a log: if that may explain a difference, the excuse is
``compacted``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from log_inspection import log_directory
from simulated_disk import SimulatedFiles

from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint
from tidemill.log.file_names import LOG, RECOVERY_POINTS, SWAP, offset_name, offset_of
from tidemill.log.log import Log
from tidemill.log.log_directories import DataDirectories
from tidemill.log.producer_state_manager import ProducerEntry
from tidemill.replication.partition import Partition

DATA = "/data"
_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Of a batch: base offset, length, leader epoch, magic, crc, attributes, last delta, two timestamps, producer
id, producer epoch, base sequence, count."""
_FRAME = 12
"""Base offset and length, which the length does not count."""
TRANSACTIONAL = 0x10
CONTROL = 0x20
HORIZON = 0x40
"""The first timestamp is that until which tombstones stay (KIP-534)."""
SEQUENCES = 1 << 31


class BatchHeader(NamedTuple):
    """The compared fields of a batch; ``end`` is its end position in its file."""

    base: int
    last: int
    epoch: int
    crc: int
    attributes: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    end: int
    max_ms: int
    """The largest timestamp in it."""
    horizon_ms: int
    """The time until which its tombstones stay; -1 before the first cleaning."""
    records: int
    """How many records it has: 0 after a cleaning that has kept only its header."""


class CheckedLog(NamedTuple):
    """A log at the last check."""

    log: Log
    end: int
    recovery_point: int
    clean_end: int
    start: int
    epoch: int
    """The latest that is known."""

    @staticmethod
    def of(log: Log) -> CheckedLog:
        """Returns the current state."""
        return CheckedLog(
            log,
            int(log.end_offset),
            int(log.recovery_point),
            int(log.clean_end),
            int(log.start_offset),
            log.leader_epochs.latest,
        )


class KnownProducer(NamedTuple):
    """The state of a producer in a partition."""

    epoch: int
    last_sequence: int
    """Of its last batch in this epoch; -1 without one."""
    last_offset: int
    opened_at: int
    """The first offset of its open transaction; -1 without one."""
    seen_at: int = -1
    """The offset of its last batch or marker."""

    def after(self, batch: BatchHeader) -> KnownProducer:
        """Returns the state after a batch or a marker of the producer."""
        if batch.attributes & CONTROL:
            ended = self._replace(opened_at=-1, seen_at=batch.last)
            if batch.producer_epoch == self.epoch:
                return ended
            return ended._replace(epoch=batch.producer_epoch, last_sequence=-1, last_offset=-1)
        is_first = batch.attributes & TRANSACTIONAL and self.opened_at < 0
        return KnownProducer(
            batch.producer_epoch,
            batch.last_sequence,
            batch.last,
            batch.base if is_first else self.opened_at,
            batch.last,
        )

    @staticmethod
    def of(entry: ProducerEntry) -> KnownProducer:
        """Returns the state that a log knows."""
        return KnownProducer(
            int(entry.epoch),
            int(entry.last_sequence),
            int(entry.last_offset),
            int(entry.transaction_first_offset),
        )


NEW_PRODUCER = KnownProducer(-1, -1, -1, -1)


def headers_of(data: bytes) -> Iterator[BatchHeader]:
    """Returns the headers of the batches of a segment."""
    position = 0
    while position + _HEADER.size <= len(data):
        (
            base,
            length,
            epoch,
            _,
            crc,
            attributes,
            delta,
            first_ms,
            max_ms,
            producer,
            producer_epoch,
            sequence,
            records,
        ) = _HEADER.unpack_from(data, position)
        position += _FRAME + length
        if length <= 0 or position > len(data):
            return
        last = (sequence + delta) % SEQUENCES if sequence >= 0 else -1
        horizon_ms = first_ms if attributes & HORIZON else -1
        ids = producer, producer_epoch, last
        yield BatchHeader(
            base,
            base + delta,
            epoch,
            crc,
            attributes,
            *ids,
            end=position,
            max_ms=max_ms,
            horizon_ms=horizon_ms,
            records=records,
        )


def segments_of(files: SimulatedFiles, directory: str) -> list[tuple[str, bytes]]:
    """Returns the names and contents of a log's segments, in order."""
    return sorted(files.stored(directory, lambda name: offset_of(name, LOG) >= 0).items())


class LogStatePromise:
    """Compares the state of logs in brokers with their segments."""

    def __init__(self, broken: Callable[[str, str], None], excused: Callable[[str], bool]) -> None:
        self._broken = broken
        self._excused = excused
        self._seen: dict[int, CheckedLog] = {}
        """The last checked state of each log."""
        self._batches: dict[tuple[str, bytes], dict[tuple[int, int], tuple[int, str]]] = {}
        """By partition the batches that were seen, by leader epoch and offset: checksum, and whose it was."""
        self._ends: dict[Log, set[int]] = {}
        """The log end offsets at the open and after each truncation."""
        self._last_epochs: dict[str, dict[str, tuple[int, int]]] = {}
        """By broker and directory where a log with records ended, and the leader epoch of its last record."""

    def opened(self, broker: str, log: Log) -> None:
        """A process has opened a log."""
        self._ends[log] = {int(log.end_offset)}
        self.check(broker, log)

    def look(self, broker: str, partitions: Iterable[Partition], directories: DataDirectories) -> None:
        """Checks the logs of a running broker that have changed since the last call."""
        for partition in partitions:
            log = partition.log
            seen = self._seen.get(id(log))
            now = CheckedLog.of(log)
            if partition.is_leader:
                self._check_leads(broker, partition)
            if seen == now:
                continue
            self._seen[id(log)] = now
            self._check_order(broker, now)
            self._check_last_epoch(broker, log)
            if seen is None:
                continue
            # A log that starts again continues with its first record.
            if now.end > seen.end and now.end > now.start:
                self._check_checkpoints(broker, log, directories)
            # If an earlier epoch is the latest again, compaction may have removed the batches before it.
            if now.epoch > seen.epoch and log.config.compact:
                self._check_begin(broker, log)
            if now.end < seen.end:
                self.check(broker, log)
            elif now.recovery_point != seen.recovery_point:
                self._check_recovery_point(broker, log)

    def cut(self, broker: str, log: Log) -> None:
        """Checks a log after a truncation, or after one without effect."""
        self._ends.setdefault(log, set()).add(int(log.end_offset))
        self.forget_last_epoch(broker, log.directory)
        if log.closed or log.has_unfinished_truncation:
            return
        self._check_order(broker, CheckedLog.of(log))
        epochs = log.leader_epochs
        if epochs.starts and epochs.starts[-1] >= int(log.end_offset):
            self._broken(
                "epochs",
                f"{broker} has truncated {_name(log)}, and knows an epoch beyond its end: {_epochs(log)},"
                f" {log.end_offset}",
            )
        self.check(broker, log)

    def forget_last_epoch(self, broker: str, directory: str) -> None:
        """A log starts again, or has another end: its last record has changed. Or the disk may have lost its
        epoch file.
        """
        self._last_epochs.get(broker, {}).pop(directory, None)

    def disk_lost(self, broker: str) -> None:
        """A disk has lost its unsynced data, or all: the epoch file may be among them."""
        self._last_epochs.pop(broker, None)

    def _check_order(self, broker: str, now: CheckedLog) -> None:
        """No state refers to offsets beyond the end of a log."""
        for what, offset in (
            ("has its recovery point at", now.recovery_point),
            ("is clean up to", now.clean_end),
            ("begins at", now.start),
        ):
            if offset > now.end:
                self._broken(
                    "checkpoints", f"{broker}: {_name(now.log)} {what} {offset}, and ends at {now.end}"
                )
                return

    def _check_leads(self, broker: str, partition: Partition) -> None:
        """A leader knows its own epoch, also before its first write in it."""
        log = partition.log
        if partition.is_offline or log.closed or log.leader_epochs.latest == int(partition.leader_epoch):
            return
        self._broken(
            "epochs",
            f"{broker} leads {_name(log)} in epoch {partition.leader_epoch}, and knows {_epochs(log)} of it",
        )

    def _check_checkpoints(self, broker: str, log: Log, directories: DataDirectories) -> None:
        """No checkpoint of an existing log has a larger offset than is synced, deleted or compacted."""
        if log.closed:
            return
        directory = directories.directory_of(log)
        key = log.topic_partition
        for checkpoint, offset in (
            # A log whose records were all deleted appends a batch that begins before its start.
            (directory.recovery_points, max(int(log.recovery_point), int(log.start_offset))),
            (directory.start_offsets, int(log.start_offset)),
            (directory.cleaner_offsets, max(int(log.clean_end), 0)),
        ):
            if checkpoint.max_offset(key) > offset:
                if not getattr(checkpoint, "_is_known", True):
                    self._excused("full-disk")
                    continue
                self._broken(
                    "checkpoints",
                    f"{broker}: {_name(log)} continues, and {checkpoint.path} may have "
                    f"{checkpoint.max_offset(key)}, not {offset}",
                )
                return

    def check(self, broker: str, log: Log) -> None:
        """Checks the whole state of a log."""
        if log.closed or not isinstance(log.segment_list.files, SimulatedFiles):
            return
        # A truncation that a full disk interrupted is completed before any read or write.
        if log.has_unfinished_truncation or not log.segment_list.files.exists(log.directory):
            return
        batches = [
            header
            for _, data in segments_of(log.segment_list.files, log.directory)
            for header in headers_of(data)
            if header.base < int(log.end_offset)
        ]
        self._check_order(broker, CheckedLog.of(log))
        self._check_holes(broker, log, batches)
        self._check_same(broker, log, batches)
        self._check_epochs(broker, log, batches)
        self._check_last_epoch(broker, log)
        self._check_producers(broker, log, batches)
        self._check_recovery_point(broker, log)

    def _check_holes(self, broker: str, log: Log, batches: list[BatchHeader]) -> None:
        """Each batch begins at the end of the previous one, and the log ends with the last."""
        end = batches[0].base if batches else int(log.end_offset)
        for batch in batches:
            if batch.base < end or (batch.base > end and not self._is_compacted(log)):
                self._broken("no-hole", f"{broker}: {_name(log)} has a batch at {batch.base} beyond {end}")
                return
            end = batch.last + 1
        if end > int(log.end_offset) or (end < int(log.end_offset) and not self._is_compacted(log)):
            self._broken(
                "no-hole", f"{broker}: {_name(log)} ends at {log.end_offset}, and its batches at {end}"
            )

    def _is_compacted(self, log: Log) -> bool:
        """Whether compaction may explain a difference."""
        return bool(log.config.compact) and self._excused("compacted")

    def _check_same(self, broker: str, log: Log, batches: list[BatchHeader]) -> None:
        """No two replicas have different batches of the same leader epoch at the same offset."""
        name = _name(log)
        known = self._batches.setdefault((name, log.topic_id), {})
        for batch in batches:
            if batch.epoch < 0:
                continue
            crc, other = known.setdefault((batch.epoch, batch.base), (batch.crc, broker))
            if crc != batch.crc and not self._is_compacted(log):
                self._broken(
                    "one-batch",
                    f"{broker} has another batch at offset {batch.base} of {name} in epoch {batch.epoch} than"
                    f" {other} has or had",
                )
                return

    def _check_epochs(self, broker: str, log: Log, batches: list[BatchHeader]) -> None:
        """Each batch has the recorded epoch of its offset, and each epoch begins with a batch of it."""
        known = log.leader_epochs
        begins: dict[int, int] = {}
        for batch in batches:
            if batch.last < int(log.start_offset) or batch.epoch < 0:
                continue
            begins.setdefault(batch.epoch, batch.base)
            found = known.epoch_of(max(batch.base, int(log.start_offset)))
            if found != batch.epoch:
                self._broken(
                    "epochs",
                    f"{broker} assigns offset {batch.base} of {_name(log)} to epoch {found}, and it has"
                    f" {batch.epoch} (known: {_epochs(log)})",
                )
                return
        if known.starts and known.starts[-1] > int(log.end_offset):
            self._broken(
                "epochs",
                f"{broker} knows epochs beyond the end of {_name(log)}: {_epochs(log)}, {log.end_offset}",
            )
            return
        for epoch, start in zip(known.epochs, known.starts, strict=True):
            is_inside = int(log.start_offset) < start < int(log.end_offset)
            if is_inside and begins.get(epoch) != start and not self._is_compacted(log):
                self._broken(
                    "epochs",
                    f"{broker} has epoch {epoch} of {_name(log)} begin at {start}, and its first batch is"
                    f" {begins.get(epoch)} (known: {_epochs(log)})",
                )
                return

    def _check_last_epoch(self, broker: str, log: Log) -> None:
        """The epoch of the last record is known, also after its deletion: elections compare logs by it."""
        ends = self._last_epochs.setdefault(broker, {})
        end = int(log.end_offset)
        epoch = log.leader_epochs.epoch_of(end - 1)
        if log.start_offset < end:
            ends[log.directory] = end, epoch
            return
        known_end, known = ends.get(log.directory, (-1, -1))
        if known_end == end and known != epoch:
            self._broken(
                "epochs",
                f"{broker} has deleted all of {_name(log)}, whose last record was of epoch {known}, and knows"
                f" {_epochs(log)}",
            )

    def _check_begin(self, broker: str, log: Log) -> None:
        """In a copy of a compacted log too, an epoch begins at the former end of the log."""
        if (
            not isinstance(log.segment_list.files, SimulatedFiles)
            or log.closed
            or not log.leader_epochs.epochs
        ):
            return
        name = offset_name(int(log.active.base_offset), LOG)
        data = log.segment_list.files.stored(log.directory, lambda one: one == name).get(name, b"")
        latest, start = log.leader_epochs.epochs[-1], log.leader_epochs.starts[-1]
        for before, batch in pairwise(headers_of(data)):
            if before.epoch < latest == batch.epoch and start > before.last + 1:
                if start in self._ends.get(log, ()):
                    self._excused("unflushed-truncation")
                    return
                self._broken(
                    "epochs",
                    f"{broker} has epoch {latest} of {_name(log)} begin at {start}, and the batch before it"
                    f" ends at {before.last}",
                )
                return

    def _check_producers(self, broker: str, log: Log, batches: list[BatchHeader]) -> None:
        """The state of each producer follows from the log: its last batch, and its open transaction."""
        last: dict[int, KnownProducer] = {}
        for batch in batches:
            if batch.producer_id >= 0:
                last[batch.producer_id] = last.get(batch.producer_id, NEW_PRODUCER).after(batch)
        entries = log.producer_state.entries
        opened = {
            int(one.transaction_first_offset): producer_id
            for producer_id, one in entries.items()
            if one.transaction_first_offset >= 0
        }
        if opened != log.producer_state.transactions._open:
            self._broken(
                "producers",
                f"{broker} has open transactions {log.producer_state.transactions._open} of {_name(log)},"
                f" and its producers have {opened}",
            )
            return
        start = int(log.start_offset)
        for producer_id in {*last, *entries}:
            entry, there = entries.get(producer_id), last.get(producer_id)
            if entry is not None and (gap := _gap_in(entry)):
                self._broken("producers", f"{broker} keeps {gap} of producer {producer_id} of {_name(log)}")
                return
            found = None if entry is None else KnownProducer.of(entry)
            if there is None and found is not None and found.last_offset < start:
                continue  # Its batches are removed with the start of the log.
            if there is not None and there.seen_at < start:
                continue
            if found != (there and there._replace(seen_at=-1)) and not self._is_compacted(log):
                self._broken(
                    "producers",
                    f"{broker} knows {found} of producer {producer_id} of {_name(log)}, and the log has"
                    f" {there}",
                )
                return

    def _check_recovery_point(self, broker: str, log: Log) -> None:
        self.check_synced(broker, log, int(log.recovery_point), "its recovery point")

    def check_synced(self, broker: str, log: Log, point: int, what: str) -> None:
        """Checks that a log is on the disk up to ``point``; ``what`` is for the message."""
        if log.closed or not isinstance(log.segment_list.files, SimulatedFiles):
            return
        self._check_synced(
            broker, log.segment_list.files, log.directory, point, what, bool(log.config.compact)
        )

    def process_ends(self, broker: str, files: SimulatedFiles, is_compacted: Callable[[str], bool]) -> None:
        """The data below the recovery points are on the disk."""
        path = f"{DATA}/{RECOVERY_POINTS}"
        if RECOVERY_POINTS not in files.durable_names(DATA):
            return
        try:
            points = parse_checkpoint(files.durable(path), 3, path)
        except CheckpointDamaged:
            return
        there = set(files.directories(DATA))
        for topic, index, offset in points:
            name = f"{topic}-{index}"
            if name in there:
                directory = f"{DATA}/{name}"
                self._check_synced(
                    broker, files, directory, int(offset), "the checkpoint", is_compacted(topic)
                )

    def _check_synced(
        self,
        broker: str,
        files: SimulatedFiles,
        directory: str,
        point: int,
        what: str,
        is_compacted: bool,
    ) -> None:
        """The disk has each batch that ends before ``point``; of a compacted log also its former batches."""
        if log_directory(files.durable_names, directory.rpartition("/")[2]) != directory:
            return  # A copy without a durable name: a power cut restores the original.
        durable = set(files.durable_names(directory))

        def is_unsynced(name: str) -> bool:
            return 0 <= offset_of(name, LOG) < point and not files.is_synced(f"{directory}/{name}")

        for name, data in sorted(files.stored(directory, is_unsynced).items()):
            ends = [header.end for header in headers_of(data) if header.last < point]
            size = max(ends, default=0)
            if not size:
                continue
            on_disk = files.durable(f"{directory}/{name}") if name in durable else b""
            if on_disk[:size] == data[:size]:
                continue
            if not is_compacted or _missing(files, directory, data, point):
                self._broken(
                    "recovery-point",
                    f"{broker}: {what} of {directory} is {point}, and {name} is not flushed",
                )
                return


def end_of_batches(log: Log, end: int) -> int:
    """Returns the end of the last batch before ``end`` that a process reads; the log start offset without
    one.
    """
    if not isinstance(log.segment_list.files, SimulatedFiles):
        return end
    for _, data in reversed(segments_of(log.segment_list.files, log.directory)):
        lasts = [header.last for header in headers_of(data) if header.last < end]
        if lasts:
            return max(lasts) + 1
    return int(log.start_offset)


def _missing(files: SimulatedFiles, directory: str, data: bytes, point: int) -> set[int]:
    """Returns the offsets of the batches of a segment before ``point`` that a power failure would lose.

    While compaction replaces segments, the batches are in the replaced ones.
    """
    kept: set[int] = set()
    for name in files.durable_names(directory):
        if offset_of(name.removesuffix(SWAP), LOG) >= 0:
            kept |= {header.base for header in headers_of(files.durable(f"{directory}/{name}"))}
    return {header.base for header in headers_of(data) if header.last < point} - kept


def _name(log: Log) -> str:
    return str(log.directory.rpartition("/")[2])


def _epochs(log: Log) -> dict[Any, Any]:
    return dict(zip(log.leader_epochs.epochs, log.leader_epochs.starts, strict=True))


def _gap_in(entry: ProducerEntry) -> str:
    """Returns two kept batches of a producer that do not follow each other."""
    for before, kept in pairwise(entry.batches):
        # Batches of the group coordinator have no sequence.
        has_sequences = before.last_sequence >= 0 and kept.last_sequence >= 0
        ahead = (int(kept.first_sequence) - int(before.last_sequence) - 1) % SEQUENCES
        if has_sequences and ahead > SEQUENCES // 2:
            return (
                f"sequence {before.last_sequence} beside a later batch that begins with {kept.first_sequence}"
            )
    return ""
