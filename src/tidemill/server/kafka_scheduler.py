"""The periodic tasks of a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from tidemill.model.task_set import TaskSet

logger = logging.getLogger("tidemill.server")

PERIOD_S_MIN = 0.1
"""The shortest interval. Kafka's keys allow 0, which would occupy the event loop."""


class KafkaScheduler:
    """Runs tasks until the broker stops."""

    def __init__(self) -> None:
        self._tasks = TaskSet()

    def schedule(
        self, period_s: float, task: Callable[[], Awaitable[None]], *, first_s: float | None = None
    ) -> None:
        """Calls ``task`` after ``first_s`` (default: ``period_s``), and then with pauses of ``period_s``."""
        self.run(_repeat(period_s if first_s is None else first_s, max(period_s, PERIOD_S_MIN), task))

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Starts a task that has its own pauses."""
        self._tasks.start(work)

    async def stop(self) -> None:
        """Cancels all tasks and waits for their end."""
        await self._tasks.cancel()


async def _repeat(first_s: float, period_s: float, task: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(first_s)
    while True:
        try:
            await task()
        except Exception:
            logger.exception("a periodic task failed, and is retried in %g s", period_s)
        await asyncio.sleep(period_s)
