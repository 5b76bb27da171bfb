"""Tasks that a component has started, and ends with itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeVar

Result = TypeVar("Result")


class TaskSet(set[asyncio.Task[object]]):
    """The running tasks of a component. The event loop itself keeps no strong reference to a task.

    ``on_failure`` gets the exception of each task that fails. Without it, asyncio logs an exception that is
    never read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._on_failure = on_failure

    def start(self, work: Coroutine[object, object, Result]) -> asyncio.Task[Result]:
        """Starts a task, which stays in the set until it ends."""
        task = asyncio.ensure_future(work, loop=self._loop)
        self.track(task)
        return task

    def track(self, task: asyncio.Task[object]) -> None:
        """Keeps a task that was started elsewhere until it ends."""
        self.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self.discard(task)
        if self._on_failure is not None and not task.cancelled():
            problem = task.exception()
            if problem is not None:
                self._on_failure(problem)

    async def cancel(self) -> None:
        """Cancels all tasks and waits for their end."""
        await cancel_all(self)


async def cancel_all(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Cancels ``tasks`` and waits for their end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
