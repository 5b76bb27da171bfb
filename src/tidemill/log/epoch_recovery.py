"""Leader epochs that their file has forgotten, read from the batches of the log.

The file forgets epochs as soon as the log's start moves behind them. A crash before that start is written
down, or before the segments are gone, brings their records back: without an epoch a follower could not tell
where it parts from its leader, and would cut down to its high watermark.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.leader_epochs import EpochRun, LeaderEpochs, in_order
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment


def find_earlier(epochs: LeaderEpochs, segments: Sequence[Segment], start: int, end: int) -> None:
    """Adds the epochs of the records from offset ``start`` on that lie before all that ``epochs`` knows.

    ``end`` is that of the log. Where the file knows the first record nothing is read. Raises OSError.
    """
    before = min(epochs.starts[0], end) if epochs.starts else end
    if start < before:
        epochs.begin_with(in_order(_runs(segments, start, before))[0])


def _runs(segments: Sequence[Segment], start: int, before: int) -> list[EpochRun]:
    """The epochs of the batches with offsets from ``start`` on that begin below ``before``.

    Nothing where the first of them has none, as in the old message formats: the file never knew of it.
    """
    runs: list[EpochRun] = []
    for segment in segments:
        scan = BatchScan(segment.file(), 0, segment.size)
        while segment.base_offset < before and scan.step() and scan.base_offset < before:
            if scan.last_offset < start:
                continue
            epoch = int(scan.leader_epoch)
            if runs and runs[-1][0] == epoch:
                runs[-1] = (epoch, runs[-1][1], runs[-1][2] + 1)
            elif runs or epoch >= 0:
                runs.append((epoch, int(scan.base_offset), 1))
            else:
                return []
    return runs
