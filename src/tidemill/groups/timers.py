"""Timers by key, which can be set again and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tidemill.net.deadlines import Deadlines, Scheduler, Waiting


class _Timer(Waiting):
    """The timer of a key. It is over once the key is cancelled or set again."""

    __slots__ = ("_timers", "key")

    def __init__(self, timers: Timers, key: Hashable) -> None:
        self._timers = timers
        self.key = key

    def on_deadline(self) -> None:
        self._timers.expired(self)

    def is_over(self) -> bool:
        return self._timers.current.get(self.key) is not self


class Timers:
    """Calls ``fire(key)`` when a key's deadline is reached; deadlines are steady milliseconds."""

    def __init__(self, scheduler: Scheduler, fire: Callable[[Hashable], None]) -> None:
        self.current: dict[Hashable, _Timer] = {}
        """The timers that are set."""
        self._deadlines = Deadlines(scheduler)
        self.now_ms: Callable[[], int] = self._deadlines.now_ms
        """Returns steady milliseconds."""
        self._fire = fire

    def __len__(self) -> int:
        return len(self.current)

    def set(self, key: Hashable, deadline_ms: int) -> None:
        """Sets the deadline of ``key``, and replaces its previous deadline."""
        timer = self.current[key] = _Timer(self, key)
        self._deadlines.add_at(deadline_ms, timer)

    def cancel(self, key: Hashable) -> None:
        """Cancels the timer of ``key``; does nothing when it is not set."""
        self.current.pop(key, None)

    def expired(self, timer: _Timer) -> None:
        """Fires a timer whose deadline is reached, unless it is over."""
        if not timer.is_over():
            del self.current[timer.key]
            self._fire(timer.key)

    def close(self) -> None:
        """Cancels all timers."""
        self.current.clear()
        self._deadlines.close()
