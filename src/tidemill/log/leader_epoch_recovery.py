"""Recovers leader epochs that their file lacks from the batches of the log.

The file omits epochs as soon as the log start offset advances beyond them. After a crash before that offset
is checkpointed, or before the segments are removed, their records are back. Without their epochs a follower
could not determine where it diverges from its leader, and would truncate to its high watermark.

An epoch begins at the end of the batch before its first one: the offsets in between were compacted, and their
epoch is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.batch_scan import BatchScan
from tidemill.log.leader_epoch_file_cache import EpochRun, LeaderEpochFileCache, split_monotonic
from tidemill.log.log_segment import LogSegment
from tidemill.model.types import NO_LEADER_EPOCH


def recover_earlier_epochs(
    epochs: LeaderEpochFileCache, segments: Sequence[LogSegment], start: int, end: int
) -> None:
    """Adds the epochs of the records from offset ``start`` on that precede all epochs in ``epochs``.

    ``end`` is the log end offset. Reads nothing if the file has the epoch of the first record, or if that
    record has none, as in the old message formats. Raises OSError.
    """
    before = min(epochs.starts[0], end) if epochs.starts else end
    if start < before and runs_of(segments, start, before, count=1):
        epochs.prepend(split_monotonic(runs_of(segments, start, before))[0])


def runs_of(segments: Sequence[LogSegment], start: int, before: int, count: int = -1) -> list[EpochRun]:
    """The epochs of the batches with offsets from ``start`` on that begin below ``before``.

    Reads only the first ``count`` batches, unless that is negative. Raises OSError.
    """
    runs: list[EpochRun] = []
    end = start
    for segment in segments:
        if count == 0 or segment.base_offset >= before:
            break
        scan = BatchScan(segment.file(), 0, segment.size)
        while count != 0 and scan.step() and scan.base_offset < before:
            if scan.last_offset < start:
                continue
            count -= 1
            epoch = int(scan.leader_epoch)
            if runs and epoch in (runs[-1][0], NO_LEADER_EPOCH):
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
            elif epoch != NO_LEADER_EPOCH:
                runs.append((epoch, end, 1))
            end = int(scan.last_offset) + 1
    return runs


def begin_at_log_end(runs: list[EpochRun], base_offset: int, end: int) -> list[EpochRun]:
    """The runs of a segment that begins at ``base_offset``, after a log that ends at ``end``."""
    if runs and runs[0][1] == base_offset > end:
        epoch, _, batches = runs[0]
        return [(epoch, end, batches), *runs[1:]]
    return runs
