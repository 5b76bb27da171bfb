"""Tasks that a component has started, and ends with itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

Result = TypeVar("Result")


class TaskSet(set[asyncio.Task[object]]):
    """The running tasks of a component. The event loop itself keeps no strong reference to a task."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__()
        self._loop = loop

    def start(self, work: Coroutine[object, object, Result]) -> asyncio.Task[Result]:
        """Starts a task, which stays in the set until it ends."""
        task = asyncio.ensure_future(work, loop=self._loop)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self) -> None:
        """Cancels all tasks and waits for their end."""
        await cancel_all(self)


async def cancel_all(tasks: Iterable[asyncio.Task[object]]) -> None:
    """Cancels ``tasks`` and waits for their end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
