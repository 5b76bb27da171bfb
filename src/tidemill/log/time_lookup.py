"""A look-up by time whose pages may have to come from the disk: by a thread, over copies of the segments.

:func:`is_warm` tells on the loop whether the pages are in memory; the look-up is done there then. Otherwise a
:class:`TimeLookup` is made on the loop, runs in any thread, and tells on the loop what it found, or that the
log changed so that it is to be made again.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.errors import storage_error
from tidemill.log.log import Log
from tidemill.log.lookup import first_at, largest
from tidemill.log.segment import Segment, first_reaching
from tidemill.model.errors import StorageError

LARGEST: Final = -3
"""In the place of a timestamp: the record with the largest one is looked for."""
PROBED_BYTES: Final = 1024 * 1024
"""Of the log file, from where the index leads to: most batches are smaller."""


def is_warm(log: Log, timestamp: int) -> bool:
    """Whether the look-up is likely to be answered from memory. Raises StorageError."""
    try:
        return _is_warm(log, timestamp)
    except OSError as problem:
        raise storage_error("read", log.directory, problem) from problem


def _is_warm(log: Log, timestamp: int) -> bool:
    first = log.segment_at(log.start_offset)
    if timestamp == LARGEST:
        target: Segment | None = None
        for segment in log.segments[first:]:
            if segment.size == 0:
                continue
            if not segment.knows_timestamps or segment.base_offset < log.start_offset:
                return False  # a whole segment is read to find it
            if target is None or segment.max_timestamp() > target.max_timestamp():
                target = segment
    else:
        at = first_reaching(log.segments, first, timestamp, False)
        if at < 0:
            return False
        target = log.segments[at] if at < len(log.segments) else None
    if target is None:
        return True
    if not target.index.is_cached() or not target.time_index.is_cached():
        return False
    if timestamp == LARGEST:
        offset = int(target.max_timestamp_offset())
    else:
        offset = max(int(target.time_index.lookup(timestamp)), int(log.start_offset))
    position = target.index.lookup(offset)
    return target.file().is_cached(position, min(PROBED_BYTES, target.size - position))


class TimeLookup:
    """One look-up of the first record at or after ``timestamp``, or of the largest timestamp."""

    def __init__(self, log: Log, timestamp: int) -> None:
        self.log = log
        self.timestamp = timestamp
        self.found: tuple[int, int] | None = None
        self.problem: StorageError | None = None
        self._lost = False
        self._segments = list(log.segments)
        self._copies = [segment.private_copy() for segment in self._segments]
        self._start_offset = int(log.start_offset)
        self._truncations = int(log.truncations)

    def run(self) -> None:
        """Looks, in any thread."""
        unpacked_bytes_max = self.log.config.unpacked_bytes_max
        try:
            if self.timestamp == LARGEST:
                self.found = largest(self._copies, self._start_offset, unpacked_bytes_max)
            else:
                self.found = first_at(self._copies, self.timestamp, self._start_offset, unpacked_bytes_max)
        except (FileNotFoundError, IndexError):
            self._lost = True
        except OSError as problem:
            self.problem = storage_error("read", self.log.directory, problem)
        finally:
            for copy in self._copies:
                copy.release()

    def is_true(self) -> bool:
        """Whether what was found holds for the log as it is now. On the loop."""
        log = self.log
        replaced = any(segment.replaced for segment in self._segments)
        if self._lost or replaced or self._truncations != log.truncations:
            return False
        for segment, copy in zip(self._segments, self._copies, strict=True):
            segment.learn(copy)
        return self.found is None or self.found[1] >= log.start_offset
