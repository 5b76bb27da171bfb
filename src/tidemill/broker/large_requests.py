"""Handles large requests in slices, so that they do not block the event loop, and one at a time.

The event loop runs other work between two slices. A request that takes longer than one slice enters the
:class:`LargeRequestQueue`, whose requests are handled one after the other, in the order of their arrival: so
the memory for items, some hundred bytes each, is used once. A request leaves the queue with its response, and
while it waits for other operations.

Handlers iterate over all lists of a client with :meth:`RequestSlices.over`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
)
from typing import Final, TypeVar

from tidemill.broker.gc_pause import GcPause
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_in_slices, slices_of
from tidemill.net.memory_pool import MemoryPool, MemoryWaiter

REQUEST_SLICE_S: Final = 0.002
"""The longest slice of a request. A slice ends after the current item."""

CLOCK_READS_MIN: Final = 16
"""The fewest checks of the clock in a slice: a process that has waited for a processor is not slow."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class ResponseMemory(MemoryWaiter):
    """Waits until the memory pool has memory for a response."""

    def __init__(self) -> None:
        self.is_available = asyncio.Event()

    def resume_frames(self) -> None:
        self.is_available.set()


class LargeRequestQueue:
    """The requests of a broker that take longer than a slice."""

    def __init__(self, memory: MemoryPool) -> None:
        self.memory = memory
        self._current: RequestSlices | None = None
        self._gc_pause = GcPause()
        """Begins when the current request may build its objects, and ends when the request leaves."""
        self._waiting: OrderedDict[RequestSlices, asyncio.Future[None]] = OrderedDict()

    async def enter(self, slices: RequestSlices) -> None:
        """Appends a request. Returns when it is the current one, and memory for a response is available."""
        try:
            if self._current is None and not self._waiting:
                self._current = slices
            else:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting[slices] = future
                await future
            await _wait_for_memory(self.memory)
        except asyncio.CancelledError:
            self.leave(slices)
            raise
        self._gc_pause.begin()

    def leave(self, slices: RequestSlices) -> None:
        """Makes the next request the current one, if ``slices`` was."""
        if self._current is not slices:
            self._waiting.pop(slices, None)
            return
        self._gc_pause.end()
        self._current = None
        while self._waiting and self._current is None:
            following, future = self._waiting.popitem(last=False)
            if not future.done():
                self._current = following
                future.set_result(None)


async def _wait_for_memory(memory: MemoryPool) -> None:
    response = ResponseMemory()
    try:
        while not memory.can_respond(response):
            response.is_available.clear()
            await response.is_available.wait()
    finally:
        memory.stop_waiting(response)


class RequestSlices:
    """The slices of one request."""

    __slots__ = ("_clock_reads", "_has_waited", "_is_in_queue", "_now", "_queue", "_until")

    def __init__(self, queue: LargeRequestQueue | None = None) -> None:
        self._queue = queue
        self._is_in_queue = False
        self._has_waited = False
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + REQUEST_SLICE_S
        self._clock_reads = 0

    async def step(self) -> None:
        """Lets the event loop run other work if the slice has ended."""
        self._clock_reads += 1
        if self._now() > self._until and self._clock_reads > CLOCK_READS_MIN:
            await self._pass()

    async def over(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """Yields ``items``, with a :meth:`step` before each."""
        for item in items:
            self._clock_reads += 1
            if self._now() > self._until and self._clock_reads > CLOCK_READS_MIN:
                await self._pass()
            yield item

    async def counts(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Returns the number of occurrences of each key, in the order of the first occurrences.

        Handlers refuse duplicate keys.
        """
        found: dict[Key, int] = {}
        async for key in self.over(keys):
            found[key] = found.get(key, 0) + 1
        return found

    async def unique(self, keys: Iterable[Key]) -> dict[Key, None]:
        """Returns the distinct keys in the order of their first occurrence; free them with :meth:`clear`."""
        found: dict[Key, None] = {}
        async for key in self.over(keys):
            found[key] = None
        return found

    async def run(self, work: Generator[None, None, Result]) -> Result:
        """Runs a generator that pauses after many items. Returns its result."""
        return await run_in_slices(work, self._step_over_many)

    async def _step_over_many(self) -> None:
        self._clock_reads += CLOCK_READS_MIN
        await self.step()

    async def clear(self, items: dict[Key, Item] | set[Item] | list[Item]) -> None:
        """Clears a large collection in slices: to free it at once would block the event loop."""
        while items:
            if isinstance(items, list):
                del items[-ITEMS_PER_SLICE:]
            else:
                remove = items.popitem if isinstance(items, dict) else items.pop
                for _ in range(min(len(items), ITEMS_PER_SLICE)):
                    remove()
            await self.step()

    async def sorted(self, names: Iterable[str]) -> Iterator[str]:
        """Returns an iterator over the sorted names. It sorts them in slices, and merges these lazily."""
        runs = []
        for some in slices_of(list(names), ITEMS_PER_SLICE):
            runs.append(sorted(some))
            await self.step()
        return heapq.merge(*runs)

    async def wait_for(self, work: Awaitable[Result]) -> Result:
        """Waits for ``work`` outside of the queue. Returns its result.

        Continues the current slice if ``work`` finished without waiting.
        """
        self.end()
        self._has_waited = False
        note = asyncio.get_running_loop().call_soon(self._note_waited)
        result = await work
        if self._has_waited:
            self._begin()
        else:
            note.cancel()
            self._clock_reads += CLOCK_READS_MIN
            await self.step()
        return result

    def _note_waited(self) -> None:
        self._has_waited = True

    async def _pass(self) -> None:
        if self._queue is not None and not self._is_in_queue:
            await self._queue.enter(self)
            self._is_in_queue = True
        await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        self._until = self._now() + REQUEST_SLICE_S
        self._clock_reads = 0

    def end(self) -> None:
        """Leaves the queue: after the response, or while the request waits for other operations."""
        self._is_in_queue = False
        if self._queue is not None:
            self._queue.leave(self)
