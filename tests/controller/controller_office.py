"""A controller that has taken office over a store of its own, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import Delta
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.ports import Clock

Result = TypeVar("Result")
REGISTRATION = BrokerRegistration(0, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),))


class FixedClock(Clock):
    """A clock that stands still."""

    def wall_ms(self) -> int:
        """Some time in 2023."""
        return 1_700_000_000_000


class Setting:
    """A controller over a store, and what it published."""

    def __init__(self, store: EmbeddedStore, broker_id: int = 0, **config: int | bool) -> None:
        self.store = store
        self.config = BrokerConfig.of(**config)
        self.deltas: list[Delta] = []
        self.fails: dict[str, KafkaError] = {}
        self.controller = Controller(
            store, broker_id, lambda: self.config, self.publish, FixedClock(), Random(1)
        )

    async def publish(self, delta: Delta) -> None:
        """Takes a change down, and fails what is to fail."""
        self.deltas.append(delta)
        for topic in (*delta.created, *delta.deleted):
            if topic.name in self.fails:
                delta.fail(topic.name, self.fails[topic.name])


@asynccontextmanager
async def started(directory: Path, **config: int | bool) -> AsyncIterator[Setting]:
    """A broker's controller that has taken office."""
    store = EmbeddedStore.open(str(directory / "coordination.db"))
    setting = Setting(store, **config)
    await setting.controller.load()
    await setting.controller.register(REGISTRATION)
    await setting.controller.activate()
    setting.deltas.clear()
    try:
        yield setting
    finally:
        await store.close()


def in_office(directory: Path, story: Callable[[Setting], Awaitable[Result]], **config: int | bool) -> Result:
    """What comes of ``story`` with a broker's controller that has taken office."""

    async def run() -> Result:
        async with started(directory, **config) as setting:
            return await story(setting)

    return asyncio.run(run())
