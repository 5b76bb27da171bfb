"""Limits the descriptors that logs hold: a broker may have more partitions than the limit of open files.

The log file of a segment and the maps of its two indexes (each with a descriptor) are opened on demand and
registered here. Above the limit, the least recently used ones are closed, and opened again on demand. A file
that is being sent, synced or written back stays open until then: the holder only drops its reference.

The order is a clock with second chance: a holder that was used since the last check goes to the end of the
queue. A use costs the data path one attribute store and no call.

The limit counts the files of segments, not the ranges that are being sent to clients, which the limits on
connections bound.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import Final, Protocol

SHARE: Final = 2
"""Logs hold at most this fraction (one half) of the process's descriptors; connections and syncs need others.
"""
HELD_LEAST: Final = 16
HELD_MOST: Final = 30_000
"""The kernel allows 65,530 maps per process (vm.max_map_count)."""

_SHORT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Holder(Protocol):
    """An object with one descriptor that can be closed and opened again."""

    touched: bool
    """Set on each use."""

    def close_idle(self) -> None:
        """Closes the descriptor until it is needed again."""


class OpenFiles:
    """The objects with open descriptors. ``limit`` of 0: a share of the process limit at the first file."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self.held: OrderedDict[Holder, None] = OrderedDict()
        """The holders of descriptors, those that were used least recently first."""
        self._lock = threading.Lock()

    def opened(self, holder: Holder) -> None:
        """Registers that ``holder`` opened its file. May be called from any thread."""
        with self._lock:
            self.held[holder] = None
            if self._limit == 0:
                self._limit = share_of_limit()
            if len(self.held) > self._limit:
                # Several at a time, so that a long scan does not evict at every open.
                self._evict(self._limit - self._limit // 8)

    def closed(self, holder: Holder) -> None:
        """Unregisters a holder that closed its file."""
        with self._lock:
            self.held.pop(holder, None)

    def _evict(self, keep: int) -> None:
        held = self.held
        chances = len(held)
        while len(held) > keep:
            holder, _ = held.popitem(last=False)
            if holder.touched and chances > 0:
                chances -= 1
                holder.touched = False
                held[holder] = None
            else:
                holder.close_idle()

    def make_room(self, problem: OSError) -> bool:
        """Closes half of the files after an open failed with ``problem``. Returns False if useless."""
        if problem.errno not in _SHORT_OF_DESCRIPTORS or not self.held:
            return False
        with self._lock:
            self._evict(len(self.held) // 2)
        return True


def share_of_limit() -> int:
    """The number of descriptors that logs may hold, from the limit of this process."""
    try:
        import resource
    except ImportError:  # not a Unix
        return HELD_MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return HELD_MOST
    return max(HELD_LEAST, min(HELD_MOST, soft // SHARE))


OPEN_FILES: Final = OpenFiles()
"""For this process: the limit applies to all brokers in it."""
