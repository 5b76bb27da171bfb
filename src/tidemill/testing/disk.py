"""The disk of a broker that a test made: full or slow, as the test says.

The test and the broker's process share a page of memory, a file beside the data directory:

=====  =======  =====================================================================
byte   type     field
=====  =======  =====================================================================
0      int64    generation: how often the room was set
8      int64    room in bytes since then; -1 for that of the real disk
16     float64  seconds that every sync takes more
24     float64  seconds that every write takes more
32     float64  seconds that every read takes more
=====  =======  =====================================================================

It takes effect with the next operation, and stays over restarts. The file promises nothing to other versions.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

GENERATION: Final = 0
ROOM: Final = 8
SYNC: Final = 16
WRITE: Final = 24
READ: Final = 32
PAGE_BYTES: Final = 4096
UNLIMITED: Final = -1
_INT64: Final = struct.Struct("=q")
_FLOAT64: Final = struct.Struct("=d")
_ROOM: Final = struct.Struct("=qq")
_DELAYS: Final = struct.Struct("=ddd")


class DiskState:
    """The shared page. One process sets it, others read it."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)

    @classmethod
    def create(cls, path: str) -> DiskState:
        """Makes the file: a disk that nothing was done to."""
        with open(path, "wb") as file:
            file.write(_ROOM.pack(0, UNLIMITED).ljust(PAGE_BYTES, b"\0"))
        return cls(path)

    def room(self) -> tuple[int, int]:
        """Generation, and the room since then."""
        generation, room = _ROOM.unpack_from(self._page, GENERATION)
        return generation, room

    def set_room(self, room: int) -> None:
        """Another room, which counts from now on."""
        generation, _ = self.room()
        _INT64.pack_into(self._page, ROOM, room)
        _INT64.pack_into(self._page, GENERATION, generation + 1)

    def delays(self) -> tuple[float, float, float]:
        """What a sync, a write and a read take more, in seconds."""
        sync_s, write_s, read_s = _DELAYS.unpack_from(self._page, SYNC)
        return sync_s, write_s, read_s

    def set_delays(self, sync_s: float, write_s: float, read_s: float) -> None:
        """Other delays."""
        for position, seconds in ((SYNC, sync_s), (WRITE, write_s), (READ, read_s)):
            _FLOAT64.pack_into(self._page, position, seconds)


class Disk:
    """``broker.disk``: fills, empties, slows down the disk as the broker sees it.

    The broker's own calls of the file system fail or wait, as the system's would; what other programs do with
    its directory is not concerned, nor is compaction, which a process of its own does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._state = DiskState.create(path)

    def fill(self, free_bytes: int = 0) -> None:
        """Leaves so much room: what does not fit is refused with ENOSPC, and no directory can be made."""
        if free_bytes < 0:
            raise ValueError(f"free_bytes={free_bytes}: a disk has 0 bytes of room, or more")
        self._state.set_room(free_bytes)

    def free(self) -> None:
        """Gives the room of the real disk back."""
        self._state.set_room(UNLIMITED)

    def slow_down(self, *, sync_s: float = 0.0, write_s: float = 0.0, read_s: float = 0.0) -> None:
        """Every sync, write or read takes so many seconds more.

        A write waits in the broker's event loop, as one does that the kernel throttles: all clients wait with
        it. Syncs and reads wait in threads.
        """
        for name, seconds in (("sync_s", sync_s), ("write_s", write_s), ("read_s", read_s)):
            if seconds < 0:
                raise ValueError(f"{name}={seconds}: a delay is 0 s or more")
        self._state.set_delays(sync_s, write_s, read_s)

    def speed_up(self) -> None:
        """Ends all delays."""
        self._state.set_delays(0.0, 0.0, 0.0)

    def mend(self) -> None:
        """Room and speed are those of the real disk again."""
        self.free()
        self.speed_up()
