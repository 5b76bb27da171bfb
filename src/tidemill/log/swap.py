"""Puts a cleaned segment in the place of those that it stands for; a crash leaves the one or the others.

============================================ =========================================================
step                                         a crash after it, and the next start
============================================ =========================================================
1. the new files are synced as ``.cleaned``  removes them: the old segments are there
2. each is renamed to ``.swap``, the log     with a ``.cleaned`` left of the same offset removes both; with
   first                                     none left goes on with step 3
3. the old files are renamed to              goes on with it: a complete ``.swap`` replaces the segments
   ``.deleted``, the oldest segment first    in whose range of offsets it lies
4. ``.swap`` is taken off the names          does the same
5. the directory is synced                   finds the new segment
============================================ =========================================================

The names and their order are Kafka's, so that Kafka too recovers what a crash leaves (``LogLoader.java``).

The renames run in a thread. The old segments' files and maps are open before, so that the log goes on reading
them meanwhile; what would cut or remove segments waits for the renames, or keeps them from beginning
(:meth:`Swap.settle`).

Source: Apache Kafka, ``LocalLog.java`` (``replaceSegments``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.log.errors import storage_error
from tidemill.log.names import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, offset_name
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.segment import Segment
from tidemill.model.errors import CorruptMessage
from tidemill.model.ports import Files


def pin_all(segments: Sequence[Segment]) -> None:
    """Opens the files of all segments, and keeps them open. Raises StorageError, with none kept."""
    try:
        for segment in segments:
            segment.pin()
    except OSError as problem:
        unpin_all(segments)
        path = segments[0].directory
        raise storage_error("open for compaction the segments of", path, problem) from problem


def unpin_all(segments: Sequence[Segment]) -> None:
    """The files may be closed again: they keep their names."""
    for segment in segments:
        segment.unpin()


class Swap:
    """One exchange of files. :meth:`run` in any thread, :meth:`settle` on the loop."""

    def __init__(self, files: Files, directory: str, old: Sequence[int], size: int) -> None:
        self.old = tuple(old)
        """Base offsets of the segments that go; the first is the new one's too."""
        self.size = size
        self.deleted: list[str] = []
        """Paths under which the old files wait for their removal."""
        self.done = False
        self.cancelled = False
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()

    def run(self) -> bool:
        """Renames; False when the swap was called off before.

        Raises CorruptMessage when the new segment is not what was written, before anything is renamed;
        OSError, half way then.
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
                    self._put_away(offset_name(offset, suffix))
            self._rename(base, SWAP, "")
            self._sync()
            self.done = True
        return True

    def _sync(self) -> None:
        """All names are exchanged: the log need not stop for want of a descriptor to sync them with."""
        try:
            self._files.sync_directory(self._directory)
        except OSError as problem:
            if not OPEN_FILES.make_room(problem):
                raise
            self._files.sync_directory(self._directory)

    def settle(self) -> bool:
        """Waits for renames that have begun, and calls off those that have not; whether they are done."""
        with self._lock:
            if not self.done:
                self.cancelled = True
            return self.done

    def _check_cleaned(self, path: str) -> None:
        """The last look before records are only there: raises CorruptMessage, with nothing renamed."""
        size = int(self._files.size(path)) if self._files.exists(path) else -1
        if size != self.size:
            found = "is gone" if size < 0 else f"has {size} bytes"
            raise CorruptMessage(
                f"{path} {found}, {self.size} were written: something else wrote to this directory; "
                "the segments stay as they are"
            )

    def _rename(self, base: int, old: str, new: str) -> None:
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self._directory}/{offset_name(base, suffix)}"
            if self._files.exists(path + old):
                self._files.rename(path + old, path + new)

    def _put_away(self, name: str) -> None:
        path = f"{self._directory}/{name}"
        if self._files.exists(path):
            self._files.rename(path, path + DELETED)
            self.deleted.append(path + DELETED)
