"""Where each leader epoch begins in a partition, and its file ``leader-epoch-checkpoint``.

Text, one line each: the version ``0``, the number of entries, then ``<epoch> <start offset>`` per entry,
both growing. A follower that comes back asks its leader where its last epoch ended, and cuts its log there.

The first entry may begin at the offset before the log's start: the epoch of the last record that was deleted.
A log that is emptied is compared with others by it, as long as it has no other record.

The file is written without waiting for the disk: its entries are also in the batches, so recovery finds
those that a power cut took, and a flush of the log syncs it.

Source: KIP-101, KIP-279; Apache Kafka, ``LeaderEpochFileCache.java``, ``LeaderEpochCheckpointFile.java``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from tidemill.log.checkpoints import CheckpointDamaged, parse_checkpoint, render_checkpoint
from tidemill.model.ports import Files

UNDEFINED: Final = (-1, -1)
WEIGHED_MAX: Final = 1000

EpochRun: TypeAlias = tuple[int, int, int]
"""A leader epoch, its first offset, and how many batches in a row have it."""


class LeaderEpochs:
    """The epochs of one partition with the offset at which each begins; the last may have no records yet."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.changes = 0
        """Counts how often the file was written, or may have been by a process that was killed."""
        self.synced = 0
        """What :attr:`changes` was when the file was synced last."""
        self.unsaved = False
        """Whether the file has other entries at its end."""

    def load(self) -> None:
        """Reads the file; none is an empty one. Raises CheckpointDamaged when it makes no sense."""
        try:
            data = self.files.read(self.path)
        except FileNotFoundError:
            return
        epochs: list[int] = []
        starts: list[int] = []
        for fields in parse_checkpoint(data, 2, self.path):
            epoch, start = int(fields[0]), int(fields[1])
            if epochs and (epoch <= epochs[-1] or start < starts[-1]):
                raise CheckpointDamaged(
                    f"{self.path}: epoch {epoch} from {start} follows {epochs[-1]} from {starts[-1]}"
                )
            epochs.append(epoch)
            starts.append(start)
        self.epochs, self.starts = epochs, starts

    @property
    def is_unsynced(self) -> bool:
        """Whether the disk may not have the file as it is."""
        return self.changes != self.synced

    @property
    def latest(self) -> int:
        """The last epoch that has records, or that this broker began to lead; -1 without any."""
        return self.epochs[-1] if self.epochs else -1

    def assign(self, epoch: int, start: int, save: bool = True) -> None:
        """Notes that ``epoch`` begins at ``start``. An epoch that is there, or negative, changes nothing."""
        if epoch < 0 or (self.epochs and epoch == self.epochs[-1]):
            if self.unsaved and save:
                self.save()
            return
        # What a truncated log had after this point is not true any more.
        keep = min(bisect_left(self.epochs, epoch), bisect_left(self.starts, start))
        if keep < len(self.epochs) and self.epochs[keep] == epoch and self.starts[keep] == start:
            return
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start)
        self.unsaved = True
        if save:
            self.save()

    def begin_with(self, runs: list[EpochRun]) -> None:
        """Puts the epochs of ``runs``, in their order, before those that are known."""
        earlier = [run for run in runs if not self.epochs or run[0] <= self.epochs[0]]
        for epoch, start, _ in reversed(earlier):
            if self.epochs and self.epochs[0] == epoch:
                self.starts[0] = start
            else:
                self.epochs.insert(0, epoch)
                self.starts.insert(0, start)
        if earlier:
            self.save()

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at or before ``epoch``, and where it ends: what OffsetForLeaderEpoch answers.

        (-1, -1) when ``epoch`` is unknown here: negative, or later than all.
        """
        if epoch < 0 or not self.epochs or epoch > self.epochs[-1]:
            return UNDEFINED
        if epoch == self.epochs[-1]:
            return epoch, log_end
        above = bisect_right(self.epochs, epoch)
        if above == 0:
            return epoch, self.starts[0]
        return self.epochs[above - 1], self.starts[above]

    def take_empty(self, other: LeaderEpochs, log_end: int) -> None:
        """Takes over the epochs without records of a log that ends at ``log_end`` too; no file is written."""
        for epoch, start in zip(other.epochs, other.starts, strict=True):
            if start >= log_end:
                self.assign(epoch, start, save=False)

    def common_end(self, other: LeaderEpochs, log_end: int) -> int:
        """Up to where two logs are the same, both of which reach ``log_end``; -1 without a common epoch."""
        for epoch in reversed(self.epochs):
            if epoch in other.epochs:
                return min(self.end_offset(epoch, log_end)[1], other.end_offset(epoch, log_end)[1], log_end)
        return -1

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at ``offset``; -1 when it is older than all that are known."""
        above = bisect_right(self.starts, offset)
        return self.epochs[above - 1] if above else -1

    def may_begin(self, epoch: int, offset: int) -> bool:
        """Whether batches of ``epoch`` may be the next at or after ``offset``.

        The epoch may be said to begin behind that: Apache Kafka takes an epoch's first batch for its begin,
        whatever compaction has removed before it.
        """
        above = bisect_right(self.starts, offset)
        return above == 0 or epoch in self.epochs[above - 1 : above + 1]

    def truncate_end(self, offset: int, save: bool = True) -> None:
        """Forgets the epochs that begin at ``offset`` or later: the log was cut there."""
        keep = bisect_left(self.starts, offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self.unsaved = True
        if save:
            self.save_changed()

    def truncate_start(self, offset: int) -> None:
        """Forgets the epochs that end before the record in front of ``offset``: the log begins there now.

        The file may know them longer: each start forgets them again, and whatever is written next is without
        them.
        """
        first = max(offset - 1, 0)
        gone = bisect_right(self.starts, first) - 1
        if gone >= 0:
            del self.epochs[:gone], self.starts[:gone]
            self.starts[0] = first

    def fit(self, start: int, end: int) -> None:
        """Forgets what a log from ``start`` to ``end`` does not have. Raises OSError.

        Apache Kafka has the last epoch of an emptied log begin at its start.
        """
        at_end = self.epoch_of(end)
        self.truncate_end(end, save=False)
        if not self.epochs and 0 < start == end:
            self.assign(at_end, start - 1, save=False)
        self.save_changed()
        self.truncate_start(start)

    def save_changed(self) -> None:
        """Writes the file unless it has the same entries. Raises OSError."""
        if self.unsaved:
            self.save()

    def save(self) -> None:
        """Writes the file."""
        lines = [f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts, strict=True)]
        self.files.write_unsynced(self.path, render_checkpoint(lines))
        self.changes += 1
        self.unsaved = False


def in_order(runs: list[EpochRun]) -> tuple[list[EpochRun], list[EpochRun]]:
    """Splits the runs of a log into those whose epochs never go down, and the others.

    A batch's leader epoch is not under its checksum. As many batches as possible are believed; of more runs
    than :data:`WEIGHED_MAX`, which no leader ever wrote, those that come first.
    """
    possible = [run for run in runs if run[0] >= 0]
    if all(before[0] <= after[0] for before, after in pairwise(possible)):
        believed = set(possible)
    elif len(possible) > WEIGHED_MAX:
        believed = {run for run, most in zip(possible, accumulate(possible, max), strict=True) if run == most}
    else:
        believed = set(_heaviest(possible))
    return [run for run in runs if run in believed], [run for run in runs if run not in believed]


def _heaviest(runs: list[EpochRun]) -> list[EpochRun]:
    """Of the subsequences whose epochs never go down, the one with most batches."""
    best: list[tuple[int, int]] = []  # of those that end with each run: batches, and the run before it
    for at, (epoch, _, batches) in enumerate(runs):
        before = max(((best[one][0], one) for one in range(at) if runs[one][0] <= epoch), default=(0, -1))
        best.append((before[0] + batches, before[1]))
    at = max(range(len(runs)), key=lambda one: (best[one][0], one))  # of two as good, what later ones say
    found = []
    while at >= 0:
        found.append(runs[at])
        at = best[at][1]
    return found[::-1]
