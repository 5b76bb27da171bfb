"""Replaces segments with a cleaned one; a crash leaves either the old ones or the new one.

============================================ =========================================================
step                                         the next start after a crash
============================================ =========================================================
1. the new files are synced as ``.cleaned``  removes them: the old segments exist
2. each is renamed to ``.swap``, the log     removes both if a ``.cleaned`` file of the same offset is left;
   first                                     otherwise continues with step 3
3. the old files are renamed to              continues: a complete ``.swap`` replaces the segments
   ``.deleted``, the oldest segment first    in its range of offsets
4. ``.swap`` is removed from the names       does the same
5. the directory is synced                   finds the new segment
============================================ =========================================================

The names and their order are Kafka's, so that Kafka also recovers from a crash (``LogLoader.java``).

The renames run in a thread. The files and maps of the old segments are opened before, so that the log stays
readable. Operations that truncate or remove segments wait for the renames or cancel them
(:meth:`SegmentSwap.finish_or_cancel`).

Source: Apache Kafka, ``LocalLog.java`` (``replaceSegments``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.log.delayed_file_removal import rename_deleted
from tidemill.log.errors import storage_error
from tidemill.log.file_names import CLEANED, LOG, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, offset_name
from tidemill.log.log_segment import LogSegment
from tidemill.log.open_files import OPEN_FILES
from tidemill.model.errors import CorruptMessage
from tidemill.model.system_interfaces import Files


def pin_all(segments: Sequence[LogSegment]) -> None:
    """Opens the files of all segments and keeps them open. Raises StorageError, and then keeps none."""
    try:
        for segment in segments:
            segment.pin()
    except OSError as problem:
        unpin_all(segments)
        path = segments[0].directory
        raise storage_error("open for compaction the segments of", path, problem) from problem


def unpin_all(segments: Sequence[LogSegment]) -> None:
    """Allows closing the files again: they keep their names."""
    for segment in segments:
        segment.unpin()


class SegmentSwap:
    """One replacement of segments. :meth:`run` is for any thread, other methods for the event loop."""

    def __init__(self, files: Files, directory: str, old: Sequence[int], size: int) -> None:
        self.old = tuple(old)
        """The base offsets of the old segments; the first is also that of the new one."""
        self.size = size
        self.deleted: list[str] = []
        """Paths of the renamed old files, to be removed later."""
        self.done = False
        self.cancelled = False
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()

    def run(self) -> bool:
        """Renames the files. Returns False if the swap was cancelled before.

        Raises CorruptMessage before any rename if the new segment differs from what was written; OSError half
        way.
        """
        with self._lock:
            if self.cancelled:
                return False
            base = self.old[0]
            self._check_cleaned(f"{self._directory}/{offset_name(base, LOG)}{CLEANED}")
            self._rename(base, CLEANED, SWAP)
            for offset in self.old:
                suffixes = SEGMENT_SUFFIXES if offset == base else (*SEGMENT_SUFFIXES, SNAPSHOT)
                for suffix in suffixes:
                    self._rename_deleted(offset_name(offset, suffix))
            self._rename(base, SWAP, "")
            self._sync()
            self.done = True
        return True

    def _sync(self) -> None:
        """Syncs the renames. A missing descriptor does not fail the log: other files are closed."""
        try:
            self._files.sync_directory(self._directory)
        except OSError as problem:
            if not OPEN_FILES.make_room(problem):
                raise
            self._files.sync_directory(self._directory)

    def finish_or_cancel(self) -> bool:
        """Waits for renames that have begun, or cancels the swap. Returns whether the renames are done."""
        with self._lock:
            if not self.done:
                self.cancelled = True
            return self.done

    def _check_cleaned(self, path: str) -> None:
        """Verifies the new segment before it replaces the records. Raises CorruptMessage."""
        size = int(self._files.size(path)) if self._files.exists(path) else -1
        if size != self.size:
            found = "is missing" if size < 0 else f"has {size} bytes"
            raise CorruptMessage(
                f"{path} {found}, expected {self.size}: another program wrote to this directory; "
                "the segments are unchanged"
            )

    def _rename(self, base: int, old: str, new: str) -> None:
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self._directory}/{offset_name(base, suffix)}"
            if self._files.exists(path + old):
                self._files.rename(path + old, path + new)

    def _rename_deleted(self, name: str) -> None:
        renamed = rename_deleted(self._files, f"{self._directory}/{name}")
        if renamed:
            self.deleted.append(renamed)
