"""A controller that has taken office over a store of its own, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import Delta
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration, Endpoint
from tidemill.coordination.port import Create, Delete, Operation, Result, StoreUnavailable
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.ports import Clock

Told = TypeVar("Told")
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


def in_office(directory: Path, story: Callable[[Setting], Awaitable[Told]], **config: int | bool) -> Told:
    """What comes of ``story`` with a broker's controller that has taken office."""

    async def run() -> Told:
        async with started(directory, **config) as setting:
            return await story(setting)

    return asyncio.run(run())


def lose_answer(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, problem: type[BaseException] = StoreUnavailable
) -> None:
    """The next write is made, and not answered."""
    transact = setting.store.transact

    async def lost(operations: Sequence[Operation]) -> list[Result]:
        monkeypatch.setattr(setting.store, "transact", transact)
        await transact(operations)
        raise problem("the connection broke")

    monkeypatch.setattr(setting.store, "transact", lost)


def registration(broker: int, **lost: bool) -> BrokerRegistration:
    return BrokerRegistration(
        broker, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092 + broker),), lost=LostReplicas(**lost)
    )


async def restart(setting: Setting, broker: int, **lost: bool) -> None:
    """A broker is there from now on, or anew; nobody has looked yet."""
    path = BrokerNode.path(broker)
    if await setting.store.exists(path):
        await setting.store.transact([Delete(path)])
    await setting.store.transact(
        [Create(path, BrokerNode.encode(registration(broker, **lost)), ephemeral=True)]
    )


def epoch(setting: Setting, broker: int) -> int:
    """Of the registration that the controller knows."""
    return setting.controller.image.brokers[broker].epoch
