"""Long lists in slices, for work that holds its thread: between two the event loop does other work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Final, TypeVar

ITEMS_A_PAUSE: Final = 500
"""Items of work with pauses, as the making of a message for each: some microseconds each."""
AT_ONCE_MAX: Final = 200
"""Items of work that cannot be left in between, as a commit of offsets: some ten microseconds each."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def slices_of(items: Sequence[Item], most: int = AT_ONCE_MAX) -> list[Sequence[Item]]:
    """``items`` in slices for work that cannot be left in between."""
    return [items[at : at + most] for at in range(0, len(items), most)]


def slices_by_weight(
    items: Sequence[Item], weight_of: Callable[[Item], int], most: int
) -> Iterator[Sequence[Item]]:
    """``items`` in slices that weigh at most ``most``; an item that weighs more has a slice of its own.

    The weights of a slice are asked for when it is taken, not before.
    """
    start = weight = 0
    for place, item in enumerate(items):
        own = weight_of(item)
        if weight + own > most and place > start:
            yield items[start:place]
            start, weight = place, 0
        weight += own
    if start < len(items):
        yield items[start:]


def in_one_go(work: Generator[None, None, Result]) -> Result:
    """What ``work`` returns, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Result = done.value
            return found


async def a_pause() -> None:
    """Lets the loop do its other work once."""
    await asyncio.sleep(0)


async def with_pauses(
    work: Generator[None, None, Result], pause: Callable[[], Awaitable[None]] = a_pause
) -> Result:
    """What ``work`` returns; where it pauses, the loop does its other work."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Result = done.value
            return found
        await pause()
