"""Timers by key, which can be set again and cancelled, and the keys of shards."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from tidemill.net.deadlines import Deadlines, DelayedOperation, Scheduler

KeyT = TypeVar("KeyT", bound=Hashable)


class ShardTimer(Enum):
    """The timers of a shard itself."""

    LOAD = "load"
    """Retries a failed load."""
    APPEND = "append"
    """Ends the wait for the oldest append."""


class ShardTimerKey(NamedTuple):
    """Identifies a timer of a shard, or of its state machine."""

    shard: int
    """The number of the shard."""
    timer: Hashable
    """A :class:`ShardTimer`, or a key of the state machine."""


class _Timer(DelayedOperation, Generic[KeyT]):
    """The timer of a key. It is completed once the key is cancelled or set again."""

    __slots__ = ("_timers", "key")

    def __init__(self, timers: Timers[KeyT], key: KeyT) -> None:
        self._timers = timers
        self.key = key

    def on_expiration(self) -> None:
        self._timers.expired(self)

    def is_completed(self) -> bool:
        return self._timers.current.get(self.key) is not self


class Timers(Generic[KeyT]):
    """Calls ``fire(key)`` when a key's deadline is reached; deadlines are monotonic milliseconds."""

    def __init__(self, scheduler: Scheduler, fire: Callable[[KeyT], None]) -> None:
        self.current: dict[KeyT, _Timer[KeyT]] = {}
        """The timers that are set."""
        self._deadlines = Deadlines(scheduler)
        self.now_ms: Callable[[], int] = self._deadlines.now_ms
        """Returns monotonic milliseconds."""
        self._fire = fire

    def set(self, key: KeyT, deadline_ms: int) -> None:
        """Sets the deadline of ``key``, and replaces its previous deadline."""
        timer = self.current[key] = _Timer(self, key)
        self._deadlines.add_at(deadline_ms, timer)

    def cancel(self, key: KeyT) -> None:
        """Cancels the timer of ``key``; does nothing when it is not set."""
        self.current.pop(key, None)

    def expired(self, timer: _Timer[KeyT]) -> None:
        """Fires a timer whose deadline is reached, unless it is completed."""
        if not timer.is_completed():
            del self.current[timer.key]
            self._fire(timer.key)

    def close(self) -> None:
        """Cancels all timers."""
        self.current.clear()
        self._deadlines.close()
