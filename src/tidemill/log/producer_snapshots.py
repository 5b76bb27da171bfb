"""Writes and removes the snapshots of a partition's producer state. Compiled.

A snapshot ``<offset>.snapshot`` has the producer state at that offset. There is one at the start of each
segment, to which the log may be truncated, and one at the log end offset after a clean shutdown.
"""

from __future__ import annotations

from mypy_extensions import i64

from tidemill.log.file_names import SNAPSHOT, offset_name, offset_of
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.segment_list import SegmentList
from tidemill.model.system_interfaces import Files


class ProducerSnapshots:
    """The snapshot files in the directory of one partition."""

    def __init__(self, segments: SegmentList) -> None:
        self.segments = segments

    def path(self, offset: i64) -> str:
        """The path of the snapshot at ``offset``."""
        return f"{self.segments.directory}/{offset_name(offset, SNAPSHOT)}"

    def write(self, producers: ProducerStateManager) -> None:
        """Writes the producer state at the log end offset, unless it exists. Raises OSError."""
        segments = self.segments
        offset: i64 = producers.end_offset
        if offset <= producers.snapshot_offset:
            return
        write_snapshot(segments.files, self.path(offset), producers.encode())
        before: i64 = producers.snapshot_offset
        producers.snapshot_offset = offset
        segments.names_changed += 1
        if before >= 0 and segments.all[segments.at(before)].base_offset != before:
            # Older snapshots are only needed at segment starts, to which the log may be truncated.
            path = self.path(before)
            if segments.files.exists(path):
                segments.files.remove(path)

    def remove_after(self, offset: i64, producers: ProducerStateManager) -> None:
        """Removes the snapshots after ``offset``. Raises OSError."""
        remove_snapshots_after(self.segments.files, self.segments.directory, offset)
        if producers.snapshot_offset > offset:
            producers.snapshot_offset = -1


def remove_snapshots_after(files: Files, directory: str, offset: i64) -> None:
    """Removes the producer snapshots after ``offset`` from the directory of a log. Raises OSError."""
    for name in files.list(directory):
        if offset_of(name, SNAPSHOT) > offset:
            files.remove(f"{directory}/{name}")


def write_snapshot(files: Files, path: str, data: bytes) -> None:
    """Writes a producer snapshot, which the next flush of the log syncs. Raises OSError."""
    files.write_unsynced(path, data)
