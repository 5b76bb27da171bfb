"""Bounds the descriptors that logs hold: a broker may have more partitions than the process may open files.

A segment's log file and the maps of its two indexes (each map keeps a descriptor) are opened when they are
needed. Whoever opens one notes it here; over the limit, those that nobody touched for longest are let go, and
opened again when they are needed. What is being sent, synced or written back keeps its file until it is done:
a holder only drops its reference.

The order is that of a clock with a second chance: a holder that was touched since it was looked at last goes
to the back of the queue. So a hit costs the data path one store into an attribute, and no call.

What this does not promise: the limit counts what segments hold, not the ranges that are under way to clients;
the connections' own limits bound those.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import Any, Final, Protocol

SHARE: Final = 2
"""Logs hold at most one of so many descriptors of the process; connections and syncs have the others."""
HELD_LEAST: Final = 16
HELD_MOST: Final = 30_000
"""The kernel allows 65,530 maps a process (vm.max_map_count)."""

_SHORT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Holder(Protocol):
    """Something that holds one descriptor, and can do without it for a while."""

    touched: bool
    """Set by each use."""

    def let_go(self) -> None:
        """Drops the descriptor until it is needed again."""


class OpenFiles:
    """Who holds descriptors. ``limit`` of 0: a share of what the process may open when the first file is."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._held: OrderedDict[Any, None] = OrderedDict()
        self._lock = threading.Lock()
        self.let_go_count = 0
        """How often somebody had to let go."""

    def __len__(self) -> int:
        return len(self._held)

    def opened(self, holder: Holder) -> None:
        """Notes that ``holder`` opened its file. May be called from any thread."""
        with self._lock:
            self._held[holder] = None
            if self._limit == 0:
                self._limit = share_of_limit()
            if len(self._held) > self._limit:
                # A few at a time, so that not every opening of a long scan has to look for one.
                self._evict(self._limit - self._limit // 8)

    def closed(self, holder: Holder) -> None:
        """Forgets a holder that let go by itself."""
        with self._lock:
            self._held.pop(holder, None)

    def _evict(self, keep: int) -> None:
        held = self._held
        chances = len(held)
        while len(held) > keep:
            holder, _ = held.popitem(last=False)
            if holder.touched and chances > 0:
                chances -= 1
                holder.touched = False
                held[holder] = None
            else:
                holder.let_go()
                self.let_go_count += 1

    def make_room(self, problem: OSError) -> bool:
        """After an opening that failed with ``problem``: lets half go; False when that cannot help."""
        if problem.errno not in _SHORT_OF_DESCRIPTORS or not self._held:
            return False
        with self._lock:
            self._evict(len(self._held) // 2)
        return True


def share_of_limit() -> int:
    """What logs may hold of the descriptors that this process may open."""
    try:
        import resource
    except ImportError:  # not a Unix
        return HELD_MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return HELD_MOST
    return max(HELD_LEAST, min(HELD_MOST, soft // SHARE))


OPEN_FILES: Final = OpenFiles()
"""Of this process: the limit is the process's, however many brokers are in it."""
