"""The disk of a simulated machine: loses what was not synced, tears writes, and fails when it is told to."""

from __future__ import annotations

from simulated_loop import SimulatedLoop

from tidemill.testing.files import FaultyFile, FaultyFiles


class SimulatedFile(FaultyFile):
    """A file whose ranges go to simulated sockets."""

    _files: SimulatedFiles

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        sent: int = self._files.loop.sockets[descriptor].send(self.read_at(position, count))
        return sent


class SimulatedFiles(FaultyFiles):
    """The file system of a simulated machine; it outlives the machine's processes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self.loop = loop

    def open(self, path: str, create: bool = False, read_only: bool = False) -> SimulatedFile:
        super().open(path, create, read_only)
        return SimulatedFile(self, path, self._file_node(path))

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        # Nobody asks which operations there were, and there are many.
        self.operations.clear()
