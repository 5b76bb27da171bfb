"""The controller over a store that does not answer once, at any of its calls: what was begun is ended."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from controller_office import REGISTRATION, Setting, in_office

from tidemill.controller.configs import Alteration, AlterOperation, ResourceType
from tidemill.controller.failover import Failover, WantedIsr
from tidemill.controller.isr import ANY_EPOCH, IsrChange
from tidemill.controller.shell import ConfigCommand, Controller
from tidemill.controller.topics import Growth, NewTopic
from tidemill.coordination.image import ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.loading import load_image
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import BrokerNode, ReassignmentNode
from tidemill.coordination.port import Create, Delete, StoreError, StoreUnavailable
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition

CALLS = ("get", "get_many", "children", "exists", "transact")
FIRST = TopicPartition("t", 0)


class Silence:
    """Fails one call of a store: before it was made, or as if its answer was lost."""

    def __init__(self, setting: Setting, call: int, is_made: bool) -> None:
        self.left = call
        self.is_made = is_made
        self.has_failed = False
        for name in CALLS:
            setattr(setting.store, name, self._counted(getattr(setting.store, name)))

    def _counted(self, ask: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted(*arguments: object) -> object:
            self.left -= 1
            fails = self.left == 0
            self.has_failed |= fails
            if fails and not self.is_made:
                raise StoreUnavailable("it is away")
            answer = await ask(*arguments)
            if fails:
                raise StoreUnavailable("the connection broke")
            return answer

        return counted

    def end(self) -> bool:
        """Fails no other call; whether there are more calls to fail."""
        self.left = 0
        return self.has_failed


async def register(setting: Setting, broker: int) -> None:
    data = BrokerNode.encode(REGISTRATION._replace(broker_id=broker))
    await setting.store.transact([Create(BrokerNode.path(broker), data, ephemeral=True)])


async def is_away() -> None:
    """Stands for a call of the store."""
    raise StoreUnavailable("it is away")


async def ask_for_set(controller: Controller, failover: Failover, isr: list[int]) -> None:
    """Broker 0, which leads ``t``, asks for an in-sync set."""
    topic = controller.image.topics["t"]
    epochs = (topic.partitions[0].leader_epoch, topic.partitions[0].partition_epoch)
    change = IsrChange(0, *epochs, [(broker, ANY_EPOCH) for broker in isr])
    await failover.alter_isr([WantedIsr(topic.topic_id, 0, change)])


async def look_while_asked(failover: Failover, looks: list[bool]) -> None:
    """Looks at the brokers as long as a look is asked for, and again where the store fails."""
    while looks:
        looks.clear()
        try:
            await failover.brokers_changed()
        except StoreError:
            looks.append(True)


def for_each_call(directory: Path, story: Callable[[Setting, int], Awaitable[bool]]) -> int:
    """Tells ``story`` with each call of the store failing, until it has no more calls; their number."""
    for call in itertools.count(1):
        one = directory / str(call)
        one.mkdir()
        if not in_office(one, lambda setting, call=call: story(setting, call)):
            return call - 1
    raise AssertionError("it ends within the loop")


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("is_wished", [False, True])
def test_a_move_ends_whichever_call_of_the_store_fails(
    tmp_path: Path, is_wished: bool, is_made: bool
) -> None:
    """Also where the leader does not ask again: the set that it asked for is written."""

    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = Failover(controller)
        await controller.create_topics([NewTopic("t", assignments={0: [0]})])
        await register(setting, 1)
        await failover.brokers_changed()
        if is_wished:
            data = ReassignmentNode.encode({FIRST: [1]})
            await setting.store.transact([Create(ReassignmentNode.path, data)])
            await controller.moves.take_wishes()
        else:
            await controller.moves.alter({FIRST: [1]})
        looks: list[bool] = []
        controller.look_again = lambda: looks.append(True)
        silence = Silence(setting, call, is_made)
        for _ in range(4):
            with contextlib.suppress(StoreError, KafkaError):
                if looks:
                    looks.clear()
                    await failover.brokers_changed()
                elif controller.image.topics["t"].partitions[0].isr == [0]:
                    await ask_for_set(controller, failover, [0, 1])
        has_more = silence.end()
        found = controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (1, [1], [1])
        assert not await setting.store.exists(ReassignmentNode.path)
        return has_more

    assert for_each_call(tmp_path, story) > 4


@pytest.mark.parametrize("is_made", [False, True])
def test_a_broker_that_comes_back_is_told_of_a_deletion_whichever_call_of_the_store_fails(
    tmp_path: Path, is_made: bool
) -> None:
    """A move ends with the same look: it could not when its last replica got in sync."""

    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = Failover(controller)
        await register(setting, 1)
        await register(setting, 2)
        await failover.brokers_changed()
        topics = [NewTopic("gone", assignments={0: [0, 1]}), NewTopic("t", assignments={0: [0]})]
        await controller.create_topics(topics)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        await failover.brokers_changed()
        await controller.delete_topics(["gone"])
        await controller.moves.alter({FIRST: [2]})
        controller.look_at_brokers = is_away
        with pytest.raises(StoreUnavailable):
            await ask_for_set(controller, failover, [0, 2])
        controller.look_at_brokers = failover.look
        await register(setting, 1)
        setting.deltas.clear()
        looks = [True]
        controller.look_again = lambda: looks.append(True)
        silence = Silence(setting, call, is_made)
        await look_while_asked(failover, looks)
        has_more = silence.end()
        told = [delta for delta in setting.deltas if 1 in delta.image.brokers]
        assert "gone" in [topic.name for delta in told for topic in delta.deleted]
        assert not controller.image.topics["t"].partitions[0].is_moving
        return has_more

    assert for_each_call(tmp_path, story) > 5


def shape(topic: TopicImage) -> tuple[object, ...]:
    """All that the store has of a topic."""
    names = [name for name in PartitionImage.__slots__ if name != "offline"]
    values = [[getattr(partition, name) for name in names] for partition in topic.partitions]
    plain = [[list(value) if isinstance(value, tuple) else value for value in one] for one in values]
    return topic.topic_id, dict(topic.config), plain


def told(deltas: Sequence[Delta]) -> dict[str, tuple[object, ...]]:
    """The topics as a broker knows them that was told of all changes."""
    known: dict[str, TopicImage] = {}
    for delta in deltas:
        for topic in delta.deleted:
            known.pop(topic.name, None)
        for topic in (*delta.created, *(new for _, new in (*delta.changed, *delta.reconfigured))):
            known[topic.name] = topic
    return {name: shape(topic) for name, topic in known.items()}


def stored(image: ClusterImage) -> dict[str, tuple[object, ...]]:
    """The topics of an image."""
    return {name: shape(topic) for name, topic in image.topics.items()}


def setting_of(key: str, value: str) -> ConfigCommand:
    return ConfigCommand(ResourceType.TOPIC, "t", [Alteration(key, AlterOperation.SET, value)])


async def lose_broker_1(controller: Controller, failover: Failover) -> None:
    await controller.store.transact([Delete(BrokerNode.path(1))])
    await failover.brokers_changed()


async def renew_broker_1(controller: Controller, failover: Failover) -> None:
    """It comes back with an empty disk before anybody took note that it went."""
    lost = REGISTRATION._replace(broker_id=1, lost=LostReplicas(missing=True))
    await controller.store.transact([Delete(BrokerNode.path(1))])
    await controller.store.transact([Create(BrokerNode.path(1), BrokerNode.encode(lost), ephemeral=True)])
    await failover.brokers_changed()


CHANGES: dict[str, Callable[[Controller, Failover], Awaitable[object]]] = {
    "create": lambda controller, _: controller.create_topics([NewTopic("u", 2, 2), NewTopic("v", 1, 1)]),
    "grow": lambda controller, _: controller.create_partitions([Growth("t", 3)]),
    "delete": lambda controller, _: controller.delete_topics(["t"]),
    "set": lambda controller, _: controller.alter_configs([setting_of("min.insync.replicas", "2")]),
    "move": lambda controller, _: controller.moves.alter({FIRST: [1]}),
    "elect": lambda controller, _: controller.leading.elect(None),
    "stop": lambda controller, _: controller.leading.shut_down(1),
    "ask for a set": lambda controller, failover: ask_for_set(controller, failover, [0]),
    "lose a broker": lose_broker_1,
    "lose a disk": renew_broker_1,
}


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_brokers_are_told_what_the_store_has_whichever_call_of_the_store_fails(
    tmp_path: Path, change: str, is_made: bool
) -> None:
    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = Failover(controller)
        await register(setting, 1)
        await failover.brokers_changed()
        await controller.create_topics([NewTopic("t", assignments={0: [0, 1], 1: [1, 0]})])
        looks: list[bool] = []
        controller.look_again = lambda: looks.append(True)
        silence = Silence(setting, call, is_made)
        try:
            await CHANGES[change](controller, failover)
        except (StoreError, KafkaError):
            looks.append(True)
        await look_while_asked(failover, looks)
        has_more = silence.end()
        assert told(setting.deltas) == stored(controller.image)
        assert stored(controller.image) == stored(await load_image(setting.store, controller.image.brokers))
        return has_more

    assert for_each_call(tmp_path, story) >= 1
