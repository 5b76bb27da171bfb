"""Pauses between attempts, and the loop that repeats an attempt until it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")
Failure = TypeVar("Failure", bound=Exception)


class Backoff:
    """Pauses from ``first_s`` to ``max_s`` seconds, each twice as long as the one before."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Returns the next pause."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """Begins with the first pause again, after a success."""
        self._next_s = self._first_s

    async def sleep(self) -> None:
        """Sleeps for the next pause."""
        await asyncio.sleep(self.next_s())


async def retry(
    attempt: Callable[[], Awaitable[Result]],
    errors: type[Failure],
    backoff: Backoff,
    failed: Callable[[Failure, float], None],
) -> Result:
    """Repeats ``attempt`` until it raises none of ``errors``, and returns its result.

    ``failed`` gets each error and the pause that follows. Other exceptions are raised.
    """
    while True:
        try:
            return await attempt()
        except errors as problem:
            pause_s = backoff.next_s()
            failed(problem, pause_s)
            await asyncio.sleep(pause_s)
