"""Leader epochs that their file has forgotten, read from the batches of the log.

The file forgets epochs as soon as the log's start moves behind them. A crash before that start is written
down, or before the segments are gone, brings their records back: without an epoch a follower could not tell
where it parts from its leader, and would cut down to its high watermark.

An epoch begins where the batch before its first one ends: what lay in between was compacted, and its epoch
is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.leader_epochs import EpochRun, LeaderEpochs, in_order
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment

NO_EPOCH = -1


def find_earlier(epochs: LeaderEpochs, segments: Sequence[Segment], start: int, end: int) -> None:
    """Adds the epochs of the records from offset ``start`` on that lie before all that ``epochs`` knows.

    ``end`` is that of the log. Where the file knows the first record nothing is read, nor where that has no
    epoch, as in the old message formats: the file never knew of it. Raises OSError.
    """
    before = min(epochs.starts[0], end) if epochs.starts else end
    if start < before and runs_of(segments, start, before, count=1):
        epochs.begin_with(in_order(runs_of(segments, start, before))[0])


def runs_of(segments: Sequence[Segment], start: int, before: int, count: int = -1) -> list[EpochRun]:
    """The epochs of the batches with offsets from ``start`` on that begin below ``before``.

    Only of the first ``count`` batches, unless that is negative. Raises OSError.
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
            if runs and epoch in (runs[-1][0], NO_EPOCH):
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
            elif epoch != NO_EPOCH:
                runs.append((epoch, end, 1))
            end = int(scan.last_offset) + 1
    return runs


def begin_where_the_log_ended(runs: list[EpochRun], base_offset: int, end: int) -> list[EpochRun]:
    """The runs of a segment that begins at ``base_offset``, after a log that ends at ``end``."""
    if runs and runs[0][1] == base_offset > end:
        epoch, _, batches = runs[0]
        return [(epoch, end, batches), *runs[1:]]
    return runs
