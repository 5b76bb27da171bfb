"""An elected controller over a store of its own, and the brokers in that store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from tidemill.controller.admin_manager import ConfigCommand
from tidemill.controller.configuration_control import Alteration, AlterOperation, ResourceType
from tidemill.controller.topics import NewTopic
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    Operation,
    Result,
    SetData,
    StoreUnavailable,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    BrokerNode,
    BrokerRegistration,
    Endpoint,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Clock
from unwatched_controller import new_controller

Outcome = TypeVar("Outcome")
REGISTRATION = BrokerRegistration(0, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),))


class FixedClock(Clock):
    """A clock that does not advance."""

    def wall_ms(self) -> int:
        """A fixed time in 2023."""
        return 1_700_000_000_000


class Setting:
    """A controller over a store, with the changes that it published."""

    def __init__(self, store: EmbeddedStore, broker_id: int = 0, **config: int | bool) -> None:
        self.store = store
        self.config = BrokerConfig.of(**config)
        self.deltas: list[Delta] = []
        self.fails: dict[str, KafkaError] = {}
        self.controller = new_controller(
            store, broker_id, lambda: self.config, self.publish, FixedClock(), Random(1)
        )

    async def publish(self, delta: Delta) -> Announcement:
        """Records a change and raises the errors that are set."""
        self.deltas.append(delta)
        announcement = Announcement(delta)
        for topic in (*delta.created, *delta.deleted):
            if topic.name in self.fails:
                announcement.fail(topic.name, self.fails[topic.name])
        return announcement


@asynccontextmanager
async def started(directory: Path, **config: int | bool) -> AsyncIterator[Setting]:
    """Returns the controller of a broker that was elected as controller."""
    store = EmbeddedStore.open(str(directory / "coordination.db"))
    setting = Setting(store, **config)
    await setting.controller.context.load()
    await setting.controller.election.register(REGISTRATION)
    await setting.controller.context.activate()
    setting.deltas.clear()
    try:
        yield setting
    finally:
        await store.close()


def with_controller(
    directory: Path, story: Callable[[Setting], Awaitable[Outcome]], **config: int | bool
) -> Outcome:
    """Returns the result of ``story`` with an elected controller."""

    async def run() -> Outcome:
        async with started(directory, **config) as setting:
            return await story(setting)

    return asyncio.run(run())


def lose_answer(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, problem: type[BaseException] = StoreUnavailable
) -> None:
    """Applies the next write and loses its response."""
    transact = setting.store.transact

    async def lost(operations: Sequence[Operation]) -> list[Result]:
        monkeypatch.setattr(setting.store, "transact", transact)
        await transact(operations)
        raise problem("the connection broke")

    monkeypatch.setattr(setting.store, "transact", lost)


def registration(broker: int, **lost: Any) -> BrokerRegistration:
    """Returns the registration of a broker, which reports these losses."""
    return BrokerRegistration(
        broker, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092 + broker),), lost=LostReplicas(**lost)
    )


async def restart(setting: Setting, broker: int, **lost: Any) -> None:
    """Registers a broker, possibly again, without notifying the controller."""
    path = BrokerNode.path(broker)
    if await setting.store.exists(path):
        await setting.store.transact([Delete(path)])
    await setting.store.transact(
        [Create(path, BrokerNode.encode(registration(broker, **lost)), ephemeral=True)]
    )


def epoch(setting: Setting, broker: int) -> int:
    """Returns the broker's registration as the controller knows it."""
    return setting.controller.image.brokers[broker].epoch


async def create(setting: Setting, name: str, replicas: Sequence[int] | None = None) -> KafkaError | None:
    """Creates a topic with one partition, on these replicas or with one replica; returns the error."""
    topic = NewTopic(name, 1, 1) if replicas is None else NewTopic(name, assignments={0: replicas})
    (outcome,) = await setting.controller.admin_manager.create_topics([topic])
    return outcome.error


async def delete(setting: Setting, name: str) -> KafkaError | None:
    """Deletes a topic; returns the error."""
    (outcome,) = await setting.controller.admin_manager.delete_topics([name])
    return outcome.error


async def alter_config(setting: Setting, key: str, value: str, *, topic: str = "") -> KafkaError | None:
    """Changes a setting of a topic, or of the cluster; returns the error."""
    kind = ResourceType.TOPIC if topic else ResourceType.BROKER
    command = ConfigCommand(kind, topic, [Alteration(key, AlterOperation.SET, value)])
    (error,) = await setting.controller.admin_manager.alter_configs([command])
    return error


def only_partition(setting: Setting, topic: str) -> PartitionImage:
    """Returns the partition of a topic as the controller knows it."""
    (partition,) = setting.controller.image.topics[topic].partitions
    return partition


async def place(
    setting: Setting, assignment: TopicAssignment, state: LeaderIsrAndControllerEpoch, *others: Operation
) -> None:
    """Writes the assignment of topic ``t`` and the state of ``t-0`` without notifying the controller."""
    await setting.store.transact(
        [
            *others,
            SetData(TopicNode.path("t"), TopicNode.encode(assignment)),
            SetData(PartitionStateNode.path("t", 0), PartitionStateNode.encode(state)),
        ]
    )


async def next_controller(setting: Setting, **config: int | bool) -> Setting:
    """Returns the next elected controller of the same store."""
    other = Setting(setting.store, **config)
    await other.controller.context.load()
    assert await other.controller.context.activate()
    return other


class Brokers:
    """Brokers whose registrations the controller reads at once, and a topic ``t`` with one partition."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.controller = setting.controller
        self.failover = setting.controller.failover

    async def start(self, broker: int, **lost: Any) -> None:
        """Registers the broker, which reports these losses; ends an earlier registration first."""
        path = BrokerNode.path(broker)
        if await self.setting.store.exists(path):
            await self.stop(broker)
        data = BrokerNode.encode(registration(broker, **lost))
        await self.setting.store.transact([Create(path, data, ephemeral=True)])
        await self.failover.brokers_changed()

    async def stop(self, broker: int) -> None:
        """Removes the registration of the broker."""
        await self.setting.store.transact([Delete(BrokerNode.path(broker))])
        await self.failover.brokers_changed()

    @property
    def state(self) -> PartitionImage:
        """Returns the partition as the controller knows it."""
        return only_partition(self.setting, "t")

    @property
    def members(self) -> tuple[int, list[int], list[int]]:
        """Returns leader, in-sync set and ELR."""
        return self.state.leader, sorted(self.state.isr), sorted(self.state.elr)
