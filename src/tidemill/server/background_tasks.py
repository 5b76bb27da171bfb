"""Tasks of the broker that no caller awaits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from tidemill.model.task_set import cancel_all

logger = logging.getLogger("tidemill.server")


class BackgroundTasks:
    """Runs tasks until they end or :meth:`stop` is called, and logs their failures."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Starts a task."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            logger.error("a background task of this broker failed, and is not repeated", exc_info=problem)

    async def stop(self) -> None:
        """Cancels all tasks and waits for their end."""
        await cancel_all(self.running)
