"""Acting on what changes in the store: what others write there is read again, and put right.

An event only says where to look. Several events at once cost one look, and what could not be done because
the store did not answer is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.port import Event, Store, StoreError, StoreUnavailable, Watch
from tidemill.model.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

RETRY_S = 0.2

Action = Callable[[], Awaitable[None]]


class Watching:
    """Calls an action when something happened at its path; one action at a time."""

    def __init__(self, store: Store, actions: Mapping[str, Action]) -> None:
        self._store = store
        self._actions = dict(actions)
        self._wanted: dict[str, None] = {}
        self._news = asyncio.Event()
        self._watches: list[Watch] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins: with a look at everything, since nobody watched before."""
        if self._task is None:
            self.want(self._actions)
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Ends it; an action that is under way is broken off."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()
        self._wanted.clear()

    async def stopped(self) -> None:
        """Ends it, and waits for the end."""
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def want(self, paths: Iterable[str]) -> None:
        """Has these paths looked at."""
        self._wanted.update(dict.fromkeys(paths))
        self._news.set()

    async def _run(self) -> None:
        await self._watch_all()
        while True:
            await self._news.wait()
            self._news.clear()
            wanted, self._wanted = self._wanted, {}
            for path in wanted:
                if not await self._act(path):
                    self.want([path])
            if self._wanted:
                await asyncio.sleep(RETRY_S)

    async def _watch_all(self) -> None:
        for path in self._actions:
            while True:
                try:
                    self._watches.append(await self._store.watch(path, self._happened))
                    break
                except StoreError as problem:
                    logger.warning("%s cannot be watched yet: %s", path, problem)
                    await asyncio.sleep(RETRY_S)

    def _happened(self, event: Event) -> None:
        if event.path in self._actions:
            self.want([event.path])

    async def _act(self, path: str) -> bool:
        """Whether it is done with."""
        try:
            await self._actions[path]()
        except StoreUnavailable:
            return False
        except NodeFormatError as problem:
            # It reads no better the next time, unless somebody corrects it.
            logger.error("what changed at %s could not be carried out: %s", path, problem)
        except StoreError as problem:
            # Somebody else wrote at the same time: what is there now is read again.
            logger.info("what changed at %s is looked at once more: %s", path, problem)
            return False
        except KafkaError as problem:
            if problem.code == ErrorCode.NOT_CONTROLLER:
                return True
            logger.error("what changed at %s could not be carried out: %s", path, problem)
        except Exception:
            logger.exception("what changed at %s could not be carried out", path)
        return True
