"""A timestamp lookup that may have to read from the disk: runs in a thread on copies of the segments.

:func:`is_cached_lookup` checks on the event loop whether the pages are cached; then the lookup runs there.
Otherwise a :class:`TimeLookup` is created on the event loop and runs in any thread. The event loop then gets
the result, or learns that the log has changed and the lookup must be repeated.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.errors import StorageErrors, storage_error
from tidemill.log.log import Log
from tidemill.log.log_segment import LogSegment, first_reaching
from tidemill.log.timestamp_lookup import first_at, largest
from tidemill.model.errors import StorageError

LARGEST: Final = -3
"""In place of a timestamp: looks for the record with the largest timestamp."""
PROBED_BYTES: Final = 1024 * 1024
"""The bytes of the log file from the indexed position on that are probed: most batches are smaller."""


def is_cached_lookup(log: Log, timestamp: int) -> bool:
    """Whether the lookup is likely to need no disk reads. Raises StorageError."""
    with StorageErrors("read", log.directory):
        return _is_cached_lookup(log, timestamp)


def _is_cached_lookup(log: Log, timestamp: int) -> bool:
    first = log.segment_list.at(log.start_offset)
    if timestamp == LARGEST:
        target: LogSegment | None = None
        for segment in log.segments[first:]:
            if segment.size == 0:
                continue
            if not segment.knows_timestamps or segment.base_offset < log.start_offset:
                return False  # A whole segment is read to find it.
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
    """One lookup of the first record at or after ``timestamp``, or of the largest timestamp."""

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
        """Runs the lookup, in any thread."""
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
                copy.close_handlers()

    def is_valid(self) -> bool:
        """Whether the result is valid for the current log. To be called on the event loop."""
        log = self.log
        replaced = any(segment.replaced for segment in self._segments)
        if self._lost or replaced or self._truncations != log.truncations:
            return False
        for segment, copy in zip(self._segments, self._copies, strict=True):
            segment.update_from(copy)
        return self.found is None or self.found[1] >= log.start_offset
