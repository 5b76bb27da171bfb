"""Deadlines of delayed operations, on one heap with one timer of the event loop. Compiled."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from mypy_extensions import i64, mypyc_attr

CLEAN_FROM: Final = 64
"""Up to this number of entries the heap is not cleaned. It is small enough that completed requests are
released before Python's garbage collector runs: objects that survive a collection make later ones slower.
"""
FIRED_AT_ONCE_MAX: Final = 256
"""Deadlines that are handled in one iteration of the loop; the rest are handled in the next."""


class TimerHandle(Protocol):
    """A timer that was set."""

    def cancel(self) -> None:
        """Prevents the timer from firing."""


class Scheduler(Protocol):
    """The monotonic time and the timers of an event loop."""

    def time(self) -> float:
        """Returns seconds since an arbitrary start."""
        raise NotImplementedError

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Calls ``callback`` once :meth:`time` has reached ``when``."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation:
    """An operation that expires at its deadline, unless it is completed before."""

    def on_expiration(self) -> None:
        """Called at the deadline. Also called for a completed operation, and then does nothing."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        """Whether the operation is completed, and needs no expiration."""
        raise NotImplementedError


class Deadlines:
    """Calls ``on_expiration`` of each entry at its time.

    Completed operations stay until their deadline, at the cost of one call, so a request only pays for
    adding. When the heap has doubled, it is cleaned: completed operations with late deadlines use no memory.

    Times are whole milliseconds of the loop's monotonic time.
    """

    def __init__(self, loop: Scheduler) -> None:
        self._loop = loop
        self._heap: list[tuple[i64, i64, DelayedOperation]] = []
        self._added: i64 = 0
        self._clean_at: i64 = CLEAN_FROM
        self._timer: TimerHandle | None = None
        self._timer_ms: i64 = 0

    def __len__(self) -> int:
        return len(self._heap)

    def now_ms(self) -> i64:
        """Returns the loop's time."""
        return i64(self._loop.time() * 1000.0)

    def add(self, delay_ms: i64, operation: DelayedOperation) -> None:
        """Calls ``operation.on_expiration()`` in ``delay_ms``."""
        self.add_at(self.now_ms() + delay_ms, operation)

    def add_at(self, deadline_ms: i64, operation: DelayedOperation) -> None:
        """Calls ``operation.on_expiration()`` when :meth:`now_ms` has reached ``deadline_ms``."""
        self._added += 1
        heapq.heappush(self._heap, (deadline_ms, self._added, operation))
        if len(self._heap) > self._clean_at:
            self._clean()
        self._arm(deadline_ms)

    def _clean(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_completed()]
        heapq.heapify(self._heap)
        self._clean_at = max(CLEAN_FROM, 2 * i64(len(self._heap)))

    def _arm(self, deadline_ms: i64) -> None:
        """Sets the timer of the loop, unless it fires before."""
        timer = self._timer
        if timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            timer.cancel()
        self._timer_ms = deadline_ms
        # A whole millisecond later: now_ms() truncates to milliseconds, and loops may wake up early.
        self._timer = self._loop.call_at(float(deadline_ms + 1) / 1000.0, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        fired: i64 = 0
        try:
            # Each call may add entries, and so clean the heap, or set the timer later than the next entry.
            while fired < FIRED_AT_ONCE_MAX and self._heap and self._heap[0][0] <= now_ms:
                fired += 1
                heapq.heappop(self._heap)[2].on_expiration()
        finally:
            # Also after an exception: the other entries still have their deadlines.
            if self._heap:
                self._arm(max(self._heap[0][0], now_ms))

    def close(self) -> None:
        """Removes all entries."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
