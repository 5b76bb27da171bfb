"""The start offset of each leader epoch of a partition, and its file ``leader-epoch-checkpoint``.

The file is text, one line each: the version ``0``, the number of entries, then ``<epoch> <start offset>`` per
entry, both growing. A returning follower asks its leader for the end offset of its last epoch, and truncates
its log there.

The first entry may begin at the offset before the log start offset: the epoch of the last deleted record. It
serves to compare an empty log with others, as long as it has no other record.

The file is written without a sync: its entries are also in the batches, so recovery restores those that a
power failure lost, and a flush of the log syncs it.

Source: KIP-101, KIP-279; Apache Kafka, ``LeaderEpochFileCache.java``, ``LeaderEpochCheckpointFile.java``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint, render_checkpoint
from tidemill.model.system_interfaces import Files

UNDEFINED: Final = (-1, -1)
RUNS_WEIGHED_MAX: Final = 1000

EpochRun: TypeAlias = tuple[int, int, int]
"""A leader epoch, its first offset, and the number of its consecutive batches."""


class LeaderEpochFileCache:
    """The leader epochs of one partition with their start offsets; the last may have no records yet."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.changes = 0
        """Counts the writes of the file, including a possible one by a killed process."""
        self.synced = 0
        """The value of :attr:`changes` at the last sync of the file."""
        self.unsaved = False
        """Whether the last entries of the file are outdated."""

    def load(self) -> None:
        """Reads the file; a missing file has no entries. Raises CheckpointDamaged."""
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
        """Whether the current file may not be on disk."""
        return self.changes != self.synced

    @property
    def latest(self) -> int:
        """The last epoch with records, or that this broker began to lead; -1 if there is none."""
        return self.epochs[-1] if self.epochs else -1

    def assign(self, epoch: int, start: int) -> None:
        """Records that ``epoch`` begins at ``start``. Ignores a known or negative epoch.

        Does not write the file.
        """
        if epoch < 0 or (self.epochs and epoch == self.epochs[-1]):
            return
        # Later entries are those of a truncated log.
        keep = min(bisect_left(self.epochs, epoch), bisect_left(self.starts, start))
        if keep < len(self.epochs) and self.epochs[keep] == epoch and self.starts[keep] == start:
            return
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start)
        self.unsaved = True

    def prepend(self, runs: list[EpochRun]) -> None:
        """Inserts the epochs of ``runs``, in their order, before the known ones."""
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
        """The largest epoch at or before ``epoch``, and its end offset, as OffsetForLeaderEpoch returns them.

        (-1, -1) if ``epoch`` is unknown: negative, or later than all.
        """
        if epoch < 0 or not self.epochs or epoch > self.epochs[-1]:
            return UNDEFINED
        if epoch == self.epochs[-1]:
            return epoch, log_end
        above = bisect_right(self.epochs, epoch)
        if above == 0:
            return epoch, self.starts[0]
        return self.epochs[above - 1], self.starts[above]

    def copy_empty_epochs(self, other: LeaderEpochFileCache, log_end: int) -> None:
        """Copies the epochs without records of a log with the same end offset. Does not write the file."""
        for epoch, start in zip(other.epochs, other.starts, strict=True):
            if start >= log_end:
                self.assign(epoch, start)

    def common_end(self, other: LeaderEpochFileCache, log_end: int) -> int:
        """The common end of two logs that both reach ``log_end``; -1 without a common epoch."""
        for epoch in reversed(self.epochs):
            if epoch in other.epochs:
                return min(self.end_offset(epoch, log_end)[1], other.end_offset(epoch, log_end)[1], log_end)
        return -1

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at ``offset``; -1 if it is older than all known ones."""
        above = bisect_right(self.starts, offset)
        return self.epochs[above - 1] if above else -1

    def may_follow(self, epoch: int, offset: int) -> bool:
        """Whether the next batches at or after ``offset`` may have ``epoch``.

        The recorded start of the epoch may be later: Apache Kafka records the first batch of an epoch as its
        start, even if compaction has removed earlier ones.
        """
        above = bisect_right(self.starts, offset)
        return above == 0 or epoch in self.epochs[above - 1 : above + 1]

    def truncate_from_end(self, offset: int) -> None:
        """Removes the epochs that begin at ``offset`` or later, after a truncation.

        Does not write the file.
        """
        keep = bisect_left(self.starts, offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self.unsaved = True

    def truncate_from_start(self, offset: int) -> None:
        """Removes the epochs that end before the record in front of ``offset``, the new log start offset.

        The file may still have them. Each start removes them again, and the next write omits them.
        """
        first = max(offset - 1, 0)
        gone = bisect_right(self.starts, first) - 1
        if gone >= 0:
            del self.epochs[:gone], self.starts[:gone]
            self.starts[0] = first

    def truncate_to_range(self, start: int, end: int) -> None:
        """Removes the epochs outside a log from ``start`` to ``end``. Raises OSError.

        Apache Kafka records the start of an emptied log as that of its last epoch.
        """
        at_end = self.epoch_of(end)
        self.truncate_from_end(end)
        if not self.epochs and 0 < start == end:
            self.assign(at_end, start - 1)
        self.save_changed()
        self.truncate_from_start(start)

    def save_changed(self) -> None:
        """Writes the file if its entries are outdated. Raises OSError."""
        if self.unsaved:
            self.save()

    def save(self) -> None:
        """Writes the file. Raises OSError."""
        lines = [f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts, strict=True)]
        self.files.write_unsynced(self.path, render_checkpoint(lines))
        self.changes += 1
        self.unsaved = False


def split_monotonic(runs: list[EpochRun]) -> tuple[list[EpochRun], list[EpochRun]]:
    """Splits the runs of a log into those with growing epochs, and the others.

    The checksum of a batch does not cover its leader epoch. As many batches as possible are kept. With more
    runs than :data:`RUNS_WEIGHED_MAX`, which no leader ever writes, the first ones are kept.
    """
    possible = [run for run in runs if run[0] >= 0]
    if all(before[0] <= after[0] for before, after in pairwise(possible)):
        kept = set(possible)
    elif len(possible) > RUNS_WEIGHED_MAX:
        kept = {run for run, most in zip(possible, accumulate(possible, max), strict=True) if run == most}
    else:
        kept = set(_heaviest(possible))
    return [run for run in runs if run in kept], [run for run in runs if run not in kept]


def _heaviest(runs: list[EpochRun]) -> list[EpochRun]:
    """The subsequence with growing epochs that has the most batches."""
    # For the subsequences that end with each run: batches, and the previous run.
    best: list[tuple[int, int]] = []
    for at, (epoch, _, batches) in enumerate(runs):
        before = max(((best[one][0], one) for one in range(at) if runs[one][0] <= epoch), default=(0, -1))
        best.append((before[0] + batches, before[1]))
    at = max(range(len(runs)), key=lambda one: (best[one][0], one))  # Of two equal ones, the later.
    found = []
    while at >= 0:
        found.append(runs[at])
        at = best[at][1]
    return found[::-1]
