"""The disk of a test's broker, which the test can fill or slow down.

The test and the broker's process share a page of memory: a file beside the data directory.

=====  =======  =====================================================================
byte   type     field
=====  =======  =====================================================================
0      int64    generation: how often the free space was set
8      int64    free space in bytes since then; -1 for that of the real disk
16     float64  delay of every sync, in seconds
24     float64  delay of every write, in seconds
32     float64  delay of every read, in seconds
=====  =======  =====================================================================

A change takes effect with the next operation, and survives restarts. Other versions may use another layout.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

GENERATION: Final = 0
FREE_SPACE: Final = 8
DELAYS: Final = 16
PAGE_BYTES: Final = 4096
UNLIMITED: Final = -1
_INT64: Final = struct.Struct("=q")
_FREE_SPACE: Final = struct.Struct("=qq")
_DELAYS: Final = struct.Struct("=ddd")


class DiskState:
    """The shared page. One process writes it, others read it."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)

    @classmethod
    def create(cls, path: str) -> DiskState:
        """Creates the file, in the state of a disk without faults."""
        with open(path, "wb") as file:
            file.write(_FREE_SPACE.pack(0, UNLIMITED).ljust(PAGE_BYTES, b"\0"))
        return cls(path)

    def free_space(self) -> tuple[int, int]:
        """Returns the generation, and the free space at its start."""
        generation, free_space = _FREE_SPACE.unpack_from(self._page, GENERATION)
        return generation, free_space

    def set_free_space(self, free_space: int) -> None:
        """Sets the free space, and starts a new generation."""
        generation, _ = self.free_space()
        _INT64.pack_into(self._page, FREE_SPACE, free_space)
        _INT64.pack_into(self._page, GENERATION, generation + 1)

    def delays(self) -> tuple[float, float, float]:
        """Returns the delays of a sync, a write and a read, in seconds."""
        sync_s, write_s, read_s = _DELAYS.unpack_from(self._page, DELAYS)
        return sync_s, write_s, read_s

    def set_delays(self, sync_s: float, write_s: float, read_s: float) -> None:
        """Sets the delays."""
        _DELAYS.pack_into(self._page, DELAYS, sync_s, write_s, read_s)


class Disk:
    """``broker.disk``: fills, frees and slows down the disk as the broker sees it.

    The broker's own calls of the file system fail or wait, as the system's would. Other programs that use its
    directory are not affected; nor is compaction, which runs in its own process.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._state = DiskState.create(path)

    def fill(self, free_bytes: int = 0) -> None:
        """Leaves this much free space: larger writes fail with ENOSPC, and no directory can be created."""
        if free_bytes < 0:
            raise ValueError(f"free_bytes={free_bytes}: it must be 0 or more")
        self._state.set_free_space(free_bytes)

    def free(self) -> None:
        """Restores the free space of the real disk."""
        self._state.set_free_space(UNLIMITED)

    def slow_down(self, *, sync_s: float = 0.0, write_s: float = 0.0, read_s: float = 0.0) -> None:
        """Delays every sync, write or read by this many seconds.

        A write waits in the broker's event loop, as a write that the kernel throttles: all clients wait with
        it. Syncs and reads wait in threads.
        """
        for name, seconds in (("sync_s", sync_s), ("write_s", write_s), ("read_s", read_s)):
            if seconds < 0:
                raise ValueError(f"{name}={seconds}: a delay must be 0 s or more")
        self._state.set_delays(sync_s, write_s, read_s)

    def speed_up(self) -> None:
        """Ends all delays."""
        self._state.set_delays(0.0, 0.0, 0.0)

    def mend(self) -> None:
        """Restores the free space and the speed of the real disk."""
        self.free()
        self.speed_up()
