"""The disk of a simulated machine: loses what was not synced, tears writes, fails, and drops data."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from simulated_loop import START_S, WALL_MS, SimulatedLoop

from tidemill.testing.files import FaultyFile, FaultyFiles


class SimulatedFile(FaultyFile):
    """A file whose ranges go to simulated sockets."""

    _files: SimulatedFiles

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        sent: int = self._files.loop.sockets[descriptor].send(self.read_at(position, count))
        return sent

    def sync(self) -> None:
        if self._files.drops(self._path, bool(self._node.pending)):
            # As Linux does: the error is reported once, the pages are clean and hold what was not written,
            # until they are read from the disk again.
            self._node.pending.clear()
            self._files.dropped.append(self._path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        if self._path in self._files.dropped:
            self._sync_new_pages()
        else:
            super().sync()

    def _sync_new_pages(self) -> None:
        """Writes what was written since pages were dropped; these are clean, and not written again."""
        self._check("sync")
        durable, current = self._node.durable, self._node.current
        if len(current) < len(durable):
            durable.resize(len(current))
        for position, data in self._node.pending:
            durable.write(position, data)
        durable.size = max(len(durable), len(current))
        self._node.pending.clear()


class SimulatedFiles(FaultyFiles):
    """The file system of a simulated machine; it outlives the machine's processes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self.loop = loop
        self.dropped: list[str] = []
        """Files whose last writes were dropped: pages hold them as long as the process runs."""
        self._drops: tuple[str, int, Callable[[str], None]] | None = None

    def open(self, path: str, create: bool = False, read_only: bool = False) -> SimulatedFile:
        super().open(path, create, read_only)
        return SimulatedFile(self, path, self._file_node(path))

    def check(self, operation: str, path: str) -> None:
        self.now_ms = WALL_MS + int((self.loop.time() - START_S) * 1000)
        super().check(operation, path)
        # Nobody asks which operations there were, and there are many.
        self.operations.clear()

    def drop_syncs(self, path_part: str, times: int, dropped: Callable[[str], None]) -> None:
        """Lets the next syncs of such files fail, and what they were to write get lost."""
        self._drops = (path_part, times, dropped)

    def drops(self, path: str, has_pending: bool) -> bool:
        """Whether this sync drops its data."""
        if self._drops is None or not has_pending or self._drops[0] not in path:
            return False
        part, times, dropped = self._drops
        self._drops = (part, times - 1, dropped) if times > 1 else None
        dropped(path)
        return True

    def heal(self) -> None:
        super().heal()
        self._drops = None

    def kill(self) -> None:
        """The process stops. The system may forget clean pages, also those that were never written."""
        super().kill()
        if self.dropped and self.loop.random.random() < 0.7:
            self._forget_dropped()

    def power_cut(self, random: object = None) -> None:
        super().power_cut(random)  # type: ignore[arg-type]
        self.dropped.clear()

    def _forget_dropped(self) -> None:
        for path in self.dropped:
            node = self._names.get(path)
            if node is not None:
                size = len(node.current)
                node.current = node.durable.copy()
                node.current.size = max(size, node.current.size)
        self.dropped.clear()
