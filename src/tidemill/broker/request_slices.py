"""Large requests work in turns: none holds the loop for longer than a slice, and one at a time goes on.

A request's work is cut into slices of some milliseconds, with the loop's other work between them. A request
that is not done within its first slice enters the lane, where such requests go on one after the other, in the
order in which they came: what they hold meanwhile, some hundred bytes an item, is held once. It leaves the
lane when it is answered, and while it waits for something else than its turn.

Handlers go through a client's lists with :meth:`Turns.over`, whatever the length.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import heapq
import types
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Iterator,
)
from typing import Any, Final, TypeVar

from tidemill.model.slices import slices_of, with_pauses
from tidemill.net.memory import Holder, Memory

SLICE_S: Final = 0.002
"""Work of one request before it is the turn of the others. What was begun is ended: the loop looks at the
clock after a few items."""

LET_GO_ITEMS: Final = 500
LOOKS_MIN: Final = 16
"""So many looks at the clock a slice has at least: a process that had to wait for a processor is not slow."""

COLLECTS_AGAIN_S: Final = 60.0
"""The longest time without a collection of cycles: a JoinGroup may wait for minutes."""

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Room(Holder):
    """Waits for memory for a reply."""

    def __init__(self) -> None:
        super().__init__()
        self.there = asyncio.Event()

    def resume_frames(self) -> None:
        self.there.set()


class Lane:
    """The requests of a broker that are not done within a slice."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory
        self.entered = 0
        """How many came into it."""
        self._holder: Turns | None = None
        self._large: set[Turns] = set()
        """The requests that have been in it, and are not answered yet."""
        self._collects = False
        """Whether Python looked for cycles before the first of them came."""
        self._again: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[Turns, asyncio.Future[None]]] = deque()

    async def enter(self, turns: Turns) -> None:
        """Returns when it is the turn of ``turns``."""
        if self._holder is None and not self._waiting:
            self._hold(turns)
        else:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((turns, future))
            try:
                await future
            except asyncio.CancelledError:
                self.leave(turns)
                raise
        self.entered += 1
        memory = self.memory
        if memory is None:
            return
        room = Room()
        try:
            while not memory.may_answer(room):
                room.there.clear()
                await room.there.wait()
        except asyncio.CancelledError:
            memory.forget(room)
            self.leave(turns)
            raise

    def _hold(self, turns: Turns) -> None:
        self._holder = turns
        if not self._large:
            # Its items, hundreds of thousands of objects without a cycle, would be looked at over and over:
            # also while it waits for something else, as they are there until it is answered.
            self._collects = gc.isenabled()
            gc.disable()
            self._again = asyncio.get_running_loop().call_later(COLLECTS_AGAIN_S, self._collect_again)
        self._large.add(turns)

    def _collect_again(self) -> None:
        if not self._collects:
            return
        # What was made meanwhile and is there still stays, as new topics do. It joins the old objects unseen:
        # a look at hundreds of thousands takes a tenth of a second. How many there are cannot be told, as
        # what is freed counts against the count of new ones.
        gc.freeze()
        gc.unfreeze()
        gc.enable()

    def end(self, turns: Turns) -> None:
        """A request is answered: what it held is given back."""
        self.leave(turns)
        self._large.discard(turns)
        if not self._large and self._again is not None:
            self._again.cancel()
            self._again = None
            self._collect_again()

    def leave(self, turns: Turns) -> None:
        """It is the turn of the next one."""
        if self._holder is not turns:
            self._waiting = deque([one for one in self._waiting if one[0] is not turns])
            return
        self._holder = None
        while self._waiting and self._holder is None:
            following, future = self._waiting.popleft()
            if not future.done():
                self._hold(following)
                future.set_result(None)


class Turns:
    """The turns of one request."""

    __slots__ = ("_has_waited", "_in_lane", "_lane", "_looks", "_now", "_until")

    def __init__(self, lane: Lane | None = None) -> None:
        self._lane = lane
        self._in_lane = False
        self._has_waited = False
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + SLICE_S
        self._looks = 0

    async def step(self) -> None:
        """Lets the loop do its other work, if the slice is over."""
        self._looks += 1
        if self._now() > self._until and self._looks > LOOKS_MIN:
            await self._pass()

    async def over(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """Each of ``items``, with the loop's other work between them where the slice is over."""
        for item in items:
            self._looks += 1
            if self._now() > self._until and self._looks > LOOKS_MIN:
                await self._pass()
            yield item

    async def counts(self, keys: Iterable[Key]) -> dict[Key, int]:
        """How often each key comes, in the order in which they come first: what comes twice is refused."""
        found: dict[Key, int] = {}
        async for key in self.over(keys):
            found[key] = found.get(key, 0) + 1
        return found

    async def unique(self, keys: Iterable[Key]) -> dict[Key, None]:
        """The same keys, each once, in the order of their first occurrence; empty it with :meth:`let_go`."""
        found: dict[Key, None] = {}
        async for key in self.over(keys):
            found[key] = None
        return found

    async def finish(self, work: Generator[None, None, Result]) -> Result:
        """What ``work`` returns, which pauses after many items each."""
        return await with_pauses(work, self._step_over_many)

    async def _step_over_many(self) -> None:
        self._looks += LOOKS_MIN
        await self.step()

    async def let_go(self, items: dict[Any, Any] | set[Any] | list[Any]) -> None:
        """Empties a collection of many items, which would hold the loop if it were dropped as a whole."""
        while items:
            if isinstance(items, list):
                del items[-LET_GO_ITEMS:]
            else:
                take = items.popitem if isinstance(items, dict) else items.pop
                for _ in range(min(len(items), LET_GO_ITEMS)):
                    take()
            await self.step()

    async def in_order(self, names: Iterable[str]) -> Iterator[str]:
        """Names in their order. They are sorted in slices, and merged where they are taken."""
        runs = []
        for some in slices_of(list(names), LET_GO_ITEMS):
            runs.append(sorted(some))
            await self.step()
        return heapq.merge(*runs)

    async def rest(self, work: Awaitable[Result]) -> Result:
        """What ``work`` returns, which waits for others: the lane is free meanwhile.

        Continues the current slice if ``work`` finished without waiting.
        """
        self._leave()
        self._has_waited = False
        note = asyncio.get_running_loop().call_soon(self._note_waited)
        result = await work
        if self._has_waited:
            self._begin()
        else:
            note.cancel()
            self._looks += LOOKS_MIN
            await self.step()
        return result

    def _note_waited(self) -> None:
        self._has_waited = True

    async def _pass(self) -> None:
        if self._lane is not None and not self._in_lane:
            await self._lane.enter(self)
            self._in_lane = True
        await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        self._until = self._now() + SLICE_S
        self._looks = 0

    def _leave(self) -> None:
        if self._in_lane and self._lane is not None:
            self._in_lane = False
            self._lane.leave(self)

    def end(self) -> None:
        """Leaves the lane for good."""
        self._in_lane = False
        if self._lane is not None:
            self._lane.end(self)


def in_slices(handle: Callable[..., Coroutine[Any, Any, Result]]) -> Callable[..., Any]:
    """For a handler that waits for its turns only, and for futures: it is begun at once.

    Returns the response if the first slice completes it, else a coroutine that goes on.
    """

    @functools.wraps(handle)
    def begin(*arguments: Any) -> Any:
        work = handle(*arguments)
        try:
            first = work.send(None)
        except StopIteration as done:
            return done.value
        return _go_on(work, first)

    return begin


async def _go_on(work: Coroutine[Any, Any, Result], awaited: Any) -> Result:
    result: Result = await _resumed(work, awaited)
    return result


@types.coroutine
def _resumed(work: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Goes on with a coroutine that was begun, and waits for ``awaited``."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as problem:  # noqa: BLE001 - it is the coroutine's to take
            step = functools.partial(work.throw, problem)
        else:
            step = functools.partial(work.send, sent)
        try:
            awaited = step()
        except StopIteration as done:
            return done.value
