"""Splits long work into slices, so that the event loop can do other work between two slices.

A function named ``x_in_slices`` is a generator that does the work of ``x``: it yields after each slice, and
returns the result of ``x``. After each slice, :func:`run_in_slices` lets the event loop do other work;
:func:`run_at_once` goes on with the next slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Final, TypeVar

from tidemill.model.system_interfaces import Clock

ITEMS_PER_SLICE: Final = 500
"""Items of work that takes some microseconds for each, as building, freeing or sorting messages."""
ITEMS_AT_ONCE_MAX: Final = 200
"""Items of work that cannot pause in between, as a commit of offsets: some ten microseconds each."""
STEPS_PER_SLICE: Final = 50
"""Steps of work that creates a log, or changes a partition, before the event loop does its other work."""
CHANGE_SLICE_S: Final = 0.004
"""The same as a time, for slow disks: a new log takes several files."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def slices_of(items: Sequence[Item], most: int = ITEMS_AT_ONCE_MAX) -> list[Sequence[Item]]:
    """Returns ``items`` in slices for work that cannot pause in between."""
    return [items[at : at + most] for at in range(0, len(items), most)]


def slices_by_weight(
    items: Sequence[Item], weight_of: Callable[[Item], int], most: int
) -> Iterator[Sequence[Item]]:
    """Yields ``items`` in slices of a total weight up to ``most``; a heavier item is a slice of its own.

    The weights of a slice are computed when it is requested, not before.
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


def run_at_once(work: Generator[None, None, Result]) -> Result:
    """Runs ``work`` without a pause. Returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Result = done.value
            return found


async def yield_to_loop() -> None:
    """Lets the event loop run its other work once."""
    await asyncio.sleep(0)


async def run_in_slices(
    work: Generator[None, None, Result], pause: Callable[[], Awaitable[None]] = yield_to_loop
) -> Result:
    """Runs ``work``; after each slice the event loop does other work. Returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Result = done.value
            return found
        await pause()


class TimeSlice:
    """Lets the event loop do other work after ``STEPS_PER_SLICE`` steps or ``CHANGE_SLICE_S``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = 0
        self._began = clock.monotonic()

    async def step(self) -> None:
        """Counts one step. Ends the slice if it is over."""
        self._steps += 1
        if self._steps == STEPS_PER_SLICE or self._clock.monotonic() - self._began > CHANGE_SLICE_S:
            await asyncio.sleep(0)
            self._steps = 0
            self._began = self._clock.monotonic()
