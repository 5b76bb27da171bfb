"""Many deadlines behind one timer of the loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Final

from tidemill.groups.ports import Scheduler, TimerHandle

FIRED_AT_ONCE_MAX: Final = 256
"""Timers that fire in one turn of the loop; the rest come in the next."""
STALE_MIN: Final = 64


class Timers:
    """Calls ``fire(key)`` when a key's deadline is reached; deadlines are steady milliseconds.

    A heap; setting a key again or cancelling it leaves the old entry there, to be passed over. Once most
    entries are such, the heap is built anew, so it stays in proportion to the timers that are set.
    """

    def __init__(self, scheduler: Scheduler, fire: Callable[[Hashable], None]) -> None:
        self._scheduler = scheduler
        self._fire = fire
        self._heap: list[tuple[int, int, Hashable]] = []
        self._current: dict[Hashable, tuple[int, int]] = {}
        self._added = 0
        self._handle: TimerHandle | None = None
        self._handle_ms = 0

    def __len__(self) -> int:
        return len(self._current)

    def now_ms(self) -> int:
        """Steady milliseconds."""
        return int(self._scheduler.time() * 1000)

    def set(self, key: Hashable, deadline_ms: int) -> None:
        """Fires ``key`` at ``deadline_ms``, and not when it was set for before."""
        self._added += 1
        self._current[key] = (deadline_ms, self._added)
        heapq.heappush(self._heap, (deadline_ms, self._added, key))
        if len(self._heap) > 2 * len(self._current) + STALE_MIN:
            self._heap = [(at, added, each) for each, (at, added) in self._current.items()]
            heapq.heapify(self._heap)
        if self._handle is None or deadline_ms < self._handle_ms:
            self._arm(deadline_ms)

    def cancel(self, key: Hashable) -> None:
        """Does not fire ``key``; nothing happens when it is not set."""
        self._current.pop(key, None)

    def close(self) -> None:
        """Fires nothing any more."""
        self._heap.clear()
        self._current.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, deadline_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ms = deadline_ms
        # A whole millisecond past it: the clock is cut to milliseconds, and loops may wake up early.
        self._handle = self._scheduler.call_at((deadline_ms + 1) / 1000, self._due)

    def _due(self) -> None:
        self._handle = None
        now_ms = self.now_ms()
        fired = 0
        while self._heap and fired < FIRED_AT_ONCE_MAX:
            deadline_ms, added, key = self._heap[0]
            if self._current.get(key) != (deadline_ms, added):
                heapq.heappop(self._heap)
                continue
            if deadline_ms > now_ms:
                break
            heapq.heappop(self._heap)
            del self._current[key]
            fired += 1
            self._fire(key)
        if self._heap and self._handle is None:
            self._arm(max(self._heap[0][0], now_ms))
        elif self._heap and self._heap[0][0] < self._handle_ms:
            self._arm(self._heap[0][0])
