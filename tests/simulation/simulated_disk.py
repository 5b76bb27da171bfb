"""The disk of a simulated machine: loses unsynced data, tears writes, fails, and drops data."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from faulty_files import PAGE_BYTES, FaultyFile, FaultyFiles, Killed
from simulated_loop import SimulatedLoop, wall_ms_at

from tidemill.log.file_names import CLEANED, DELETE_DIRECTORY, LOG, SWAP

ALL_OPERATIONS, RENAMES, OLD_SEGMENTS = "operations", "renames", "renames of later segments"
"""Before which operations of a cleaning a process may end."""


class SentPages:
    """A part of a file that the network references without a copy, as ``sendfile`` does.

    Later writes to the file arrive. Pages beyond a truncation arrive unchanged; bytes removed within the last
    remaining page arrive as zeros, or as the bytes appended there.
    """

    def __init__(self, files: SimulatedFiles, node: Any, position: int, taken: bytes) -> None:
        self._files = files
        self._node = node
        self._position = position
        self._taken = taken
        self._cuts = len(node.cuts)
        self._life = files.life

    def __len__(self) -> int:
        return len(self._taken)

    def first(self, count: int) -> SentPages:
        """Returns its first ``count`` bytes."""
        return SentPages(self._files, self._node, self._position, self._taken[:count])

    def read(self) -> bytes:
        """Returns the bytes that arrive now."""
        if self._life != self._files.life:
            return self._taken
        position, count = self._position, len(self._taken)
        cuts = self._node.cuts[self._cuts :]
        if cuts:
            pages = -(-min(cuts) // PAGE_BYTES)
            count = min(count, max(0, pages * PAGE_BYTES - position))
        there: bytes = self._node.current.read(position, position + count)
        return there.ljust(count, b"\0") + self._taken[count:]


class SimulatedFile(FaultyFile):
    """A file whose ranges can be sent to simulated sockets."""

    _files: SimulatedFiles

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        pages = SentPages(self._files, self._node, position, self.read_at(position, count))
        sent: int = self._files.loop.sockets[descriptor].send_pages(pages)
        return sent

    def sync(self) -> None:
        had_pending = bool(self._node.pending)
        size = len(self._node.durable)
        try:
            self._files.check_drops(self.path, had_pending)
            super().sync()
            if len(self._node.durable) < size and self.path.endswith(LOG):
                self._files.shrunk(self.path)
        except OSError:
            if had_pending and self._life == self._files.life and not self._closed:
                self._node.drop()
                if self._node.dropped:  # Nothing is lost if all unwritten data were truncated before.
                    self._files.sync_failed(self.path)
            raise


class SimulatedFiles(FaultyFiles):
    """The file system of a simulated machine; it survives the machine's processes."""

    _file_type = SimulatedFile

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self.loop = loop
        self.dropped: Callable[[str], None] = lambda path: None
        """Called with a file when a sync of it fails, and when what that did not write is read no more."""
        self.shrunk: Callable[[str], None] = lambda path: None
        """Called with a segment that has become shorter on the disk."""
        self.renamed: Callable[[str, str], None] | None = None
        """Called after each rename."""
        self.process_ends: Callable[[bool], None] = lambda may_lose: None
        """Called before a process ends, or power is lost: whether what was not synced may be gone then."""
        self.power_lost: Callable[[], None] = lambda: None
        """Called with the disk as it is after a power failure."""
        self._fresh: set[str] = set()
        """Files of which the present process has met a sync that failed."""
        self.is_full = False
        """Whether no file gets another page."""
        self.refused_s = float("-inf")
        """When an operation failed last, in the loop's time."""
        self.deletion_refused: Callable[[], None] = lambda: None
        """Called when there is no room to rename the directory of a partition that is deleted."""
        self._kept = ("", 0)
        """Directories of deleted partitions that keep their names: how their paths begin, how many times."""
        self._drops: tuple[str, int] | None = None
        self._hangs: Callable[[], float] | None = None
        self._stop: tuple[int, Callable[[str], bool]] | None = None
        self._stops_at = ALL_OPERATIONS
        self._exchanged = ""
        """The name of the first segment of the exchange that runs, without its suffix."""
        self._has_stopped = False

    def check(self, operation: str, path: str) -> None:
        self.now_ms = wall_ms_at(self.loop.time())
        if self.loop.is_in_job:
            self._stop_here(operation, path)
        if self._faults:
            try:
                super().check(operation, path)
            except OSError:
                self.refused_s = self.loop.time()
                raise
            # No caller needs the list of operations, which is long.
            self.operations.clear()

    def take_pages(self, node: Any, position: int, count: int) -> bool:
        pages = range(position // PAGE_BYTES, (position + count - 1) // PAGE_BYTES + 1)
        if self.is_full and not node.pages.issuperset(pages):
            self.refused_s = self.loop.time()
            return False
        return super().take_pages(node, position, count)

    def rename(self, old: str, new: str) -> None:
        prefix, times = self._kept
        if times > 0 and new.endswith(DELETE_DIRECTORY) and old.startswith(prefix):
            self._kept = (prefix, times - 1)
            self.refused_s = self.loop.time()
            self.deletion_refused()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old)
        super().rename(old, new)
        if self.renamed is not None:
            self.renamed(old, new)

    def refuse_deletions(self, prefix: str, times: int) -> None:
        """Refuses that many renames of deleted partition directories whose path has this prefix, as a full
        disk does.
        """
        self._kept = (prefix, times)

    def drop_syncs(self, path_part: str, times: int, hangs: Callable[[], float] | None = None) -> None:
        """The next syncs of such files with unwritten data fail.

        ``hangs`` is called for each, and returns the delay of the error.
        """
        self._drops = (path_part, times)
        self._hangs = hangs

    def sync_failed(self, path: str) -> None:
        """A sync has failed, and its data are dropped."""
        self._fresh.add(path)
        self.dropped(path)

    def check_drops(self, path: str, has_pending: bool) -> None:
        """Raises the error of :meth:`drop_syncs`."""
        if self._drops is None or not has_pending or self._drops[0] not in path:
            return
        part, times = self._drops
        self._drops = (part, times - 1) if times > 1 else None
        if self._hangs is not None and self.loop.is_in_job:
            self.loop.job_hangs_s = self._hangs()
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def stop_in_cleaning(self, after: int, stop: Callable[[str], bool], stops_at: str) -> None:
        """Calls ``stop`` to end the process within a compaction, or an exchange of segments.

        That is before the operation with this number; of all, of renames, or of renames of the second and
        later removed segments. ``stop`` gets the operation's name, and returns whether it has ended the
        process.
        """
        self._stop = (after, stop)
        self._stops_at = stops_at

    def _stop_here(self, operation: str, path: str) -> None:
        if self._has_stopped:
            # The process has ended, and its unwinding calls change nothing.
            raise Killed("the process has ended in the middle of a job")
        if self._stop is None or not self._is_place_to_stop(operation, path):
            return
        after, stop = self._stop
        self._stop = (after - 1, stop) if after > 0 else None
        if after <= 0 and stop(operation):
            self._has_stopped = True
            self.loop.call_soon(self._go_on, context=Context())
            raise Killed(f"the process ends before {operation} {path}")

    def _is_place_to_stop(self, operation: str, path: str) -> bool:
        is_new_segment = path.endswith((CLEANED, SWAP))
        if operation == "rename" and path.endswith(LOG + CLEANED):
            self._exchanged = path.removesuffix(LOG + CLEANED)
        if self._stops_at == OLD_SEGMENTS:
            return operation == "rename" and not (is_new_segment or path.startswith(self._exchanged))
        return operation == "rename" or (self._stops_at == ALL_OPERATIONS and is_new_segment)

    def _go_on(self) -> None:
        self._has_stopped = False

    def directories(self, parent: str) -> list[str]:
        """Returns the names of subdirectories; never fails."""
        return [name for name in self._names.names_in(parent) if self._names[f"{parent}/{name}"] is None]

    def stored(self, directory: str, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
        """Returns the files of wanted names in a directory, as a process would read them; never fails.

        Indexes are large and nearly empty: callers that do not need them exclude them.
        """
        found = {}
        for name in filter(is_wanted, self._names.names_in(directory)):
            node = self._names[f"{directory}/{name}"]
            if node is not None:
                found[name] = node.current.read(0, len(node.current))
        return found

    def stored_names(self, directory: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Returns the wanted names in a directory; never fails."""
        return list(filter(is_wanted, self._names.names_in(directory)))

    def durable_names(self, directory: str) -> list[str]:
        """Returns the names in a directory after a power failure."""
        return sorted(self._durable_names.names_in(directory))

    def is_synced(self, path: str) -> bool:
        """Whether a file, as a process reads it, survives a power failure with its name."""
        node = self._durable_names.get(path)
        return node is not None and node is self._names.get(path) and not node.pending and not node.dropped

    def durable(self, path: str) -> bytes:
        """Returns the guaranteed content of a file after a power failure."""
        node = self._durable_names[path]
        return b"" if node is None else node.durable.read(0, len(node.durable))

    def written(self, path: str) -> bytes:
        """Returns the content of a file on the disk, with or without its name."""
        node = self._names[path]
        return b"" if node is None else node.durable.read(0, len(node.durable))

    @property
    def is_failing(self) -> bool:
        """Whether some operation is to fail, or a sync of the current process has failed."""
        return bool(self._faults or self._fresh) or self.is_full or self._drops is not None

    def heal(self) -> None:
        super().heal()
        self.is_full = False
        self._kept = ("", 0)
        self._drops = None
        self._stop = None

    def unsynced(self, suffix: str) -> list[str]:
        """Returns the files of such names with records that the process has written and that are not on the
        disk.
        """
        return [
            path
            for path, node in self._names.items()
            if node is not None
            and path.endswith(suffix)
            and (node.pending or (node.dropped and path in self._fresh))
        ]

    def kill(self) -> None:
        """The process ends. The system may drop clean pages, even pages that were never written."""
        paths = self._with_dropped()
        self._fresh.clear()
        self.process_ends(bool(paths))
        super().kill()
        if paths and self.loop.random.random() < 0.7:
            for path in paths:
                self._file_node(path).forget_cached()
                self.dropped(path)

    def power_cut(self, random: Random | None = None) -> None:
        paths = self._with_dropped()
        self._fresh.clear()
        self.process_ends(True)
        super().power_cut(random)
        self.power_lost()
        for path in paths:
            self.dropped(path)

    def forget_cached(self, path: str) -> None:
        has_dropped = bool(self._file_node(path).dropped)
        super().forget_cached(path)
        if has_dropped:
            self.dropped(path)

    def forget_written(self, path: str) -> None:
        has_dropped = bool(self._file_node(path).dropped)
        super().forget_written(path)
        if has_dropped:
            self.dropped(path)

    @property
    def has_dropped(self) -> bool:
        """Whether the system holds pages that never reach the disk."""
        return bool(self._with_dropped())

    def _with_dropped(self) -> list[str]:
        return [path for path, node in self._names.items() if node is not None and node.dropped]
