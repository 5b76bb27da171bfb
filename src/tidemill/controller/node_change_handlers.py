"""Runs handlers when nodes in the store change.

An event only names a path. Its handler reads the store. Several events for one path cause a single call. A
handler that fails because the store is unavailable is called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidemill.coordination.coordination_store import Event, Store, StoreError, StoreUnavailable, Watch
from tidemill.coordination.encoding import NodeFormatError
from tidemill.model.backoff import Backoff, retry
from tidemill.model.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

RETRY_S = 0.2

Action = Callable[[], Awaitable[None]]


class NodeChangeHandlers:
    """Calls the handler of a path when its node changes, one handler at a time."""

    def __init__(self, store: Store, actions: Mapping[str, Action]) -> None:
        self._store = store
        self._actions = dict(actions)
        self._scheduled: dict[str, None] = {}
        self._wakeup = asyncio.Event()
        self._watches: list[Watch] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts, and calls every handler once: earlier changes were not watched."""
        if self._task is None:
            self.schedule(self._actions)
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stops, and cancels a running handler."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()
        self._scheduled.clear()

    async def stopped(self) -> None:
        """Stops, and waits until the running handler has ended."""
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def schedule(self, paths: Iterable[str]) -> None:
        """Schedules the handlers of these paths."""
        self._scheduled.update(dict.fromkeys(paths))
        self._wakeup.set()

    async def _run(self) -> None:
        for path in self._actions:
            self._watches.append(await self._watch(path))
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            requested, self._scheduled = self._scheduled, {}
            for path in requested:
                if not await self._handle(path):
                    self.schedule([path])
            if self._scheduled:
                await asyncio.sleep(RETRY_S)

    async def _watch(self, path: str) -> Watch:
        def failed(problem: StoreError, pause_s: float) -> None:
            logger.warning("could not watch %s, will retry: %s", path, problem)

        backoff = Backoff(RETRY_S, RETRY_S)
        return await retry(lambda: self._store.watch(path, self._node_changed), StoreError, backoff, failed)

    def _node_changed(self, event: Event) -> None:
        if event.path in self._actions:
            self.schedule([event.path])

    async def _handle(self, path: str) -> bool:
        """Calls the handler of ``path``. Returns False if it has to be called again."""
        try:
            await self._actions[path]()
        except StoreUnavailable:
            return False
        except NodeFormatError as problem:
            # A retry would fail until a client corrects the node.
            logger.error("the change of %s could not be applied: %s", path, problem)
        except StoreError as problem:
            # Another client wrote at the same time: the handler reads the new content.
            logger.info("the change of %s is handled again: %s", path, problem)
            return False
        except KafkaError as problem:
            if problem.code != ErrorCode.NOT_CONTROLLER:
                logger.error("the change of %s could not be applied: %s", path, problem)
        except Exception:
            logger.exception("the change of %s could not be applied", path)
        return True
