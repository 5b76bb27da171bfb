"""Deadlines of things that wait, on one heap behind one timer of the loop."""

from __future__ import annotations

import heapq
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

CLEAN_FROM: Final = 64
"""Entries below which the heap is left alone. So few that requests which were answered go before Python's
collector looks for garbage: what it finds alive it carries along, and then goes through all that lives."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """Something that gives up waiting at its deadline."""

    def on_deadline(self) -> None:
        """The deadline has passed. Called also when the wait is over: then it does nothing."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether the wait ended some other way."""
        raise NotImplementedError


class Deadlines:
    """Calls ``on_deadline`` of each entry when its time has come.

    A wait that ended is left to its deadline, where it costs one call; so adding is all that a request pays
    for. When such entries have doubled the heap, it is cleaned: deadlines far away keep no memory.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._heap: list[tuple[float, i64, Waiting]] = []
        self._added: i64 = 0
        self._clean_at: i64 = CLEAN_FROM
        self._timer: Any = None
        self._timer_at: float = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, delay_ms: i64, waiting: Waiting) -> None:
        """Calls ``waiting.on_deadline()`` in ``delay_ms``."""
        at: float = self._loop.time() + float(delay_ms) / 1000.0
        self._added += 1
        heapq.heappush(self._heap, (at, self._added, waiting))
        if len(self._heap) > self._clean_at:
            self._clean()
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def _clean(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_over()]
        heapq.heapify(self._heap)
        self._clean_at = max(CLEAN_FROM, 2 * i64(len(self._heap)))

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now: float = self._loop.time()
        try:
            # Whom this calls may add entries, and so clean the heap or arm the timer for later than the next.
            while self._heap and self._heap[0][0] <= now:
                heapq.heappop(self._heap)[2].on_deadline()
        finally:
            # Also when one of them raises: the others have their deadlines all the same.
            if self._heap and (self._timer is None or self._heap[0][0] < self._timer_at):
                self._arm(self._heap[0][0])

    def close(self) -> None:
        """Calls nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
