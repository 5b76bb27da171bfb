"""The controller over a store with one failing call, at any position: started operations are completed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from controller_stage import Setting, alter_config, create, delete, restart, with_controller

from alter_partition_items import isr_change, item_for
from tidemill.controller.alter_partition import ANY_EPOCH
from tidemill.controller.controller import KafkaController
from tidemill.controller.failover import Failover
from tidemill.controller.topics import Growth, NewTopic
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, Delete, StoreError, StoreUnavailable
from tidemill.coordination.nodes import REASSIGN_PARTITIONS, BrokerNode, ReassignmentNode
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition

CALLS = ("get", "get_many", "children", "exists", "transact")
FIRST = TopicPartition("t", 0)


class Silence:
    """Fails one call of a store, before its execution or by a lost response."""

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
        """Ends the failures; returns whether there are more calls to fail."""
        self.left = 0
        return self.has_failed


async def is_away() -> None:
    """Replaces a call of the store."""
    raise StoreUnavailable("it is away")


async def ask_for_set(controller: KafkaController, isr: list[int]) -> None:
    """Broker 0, the leader of ``t``, requests an in-sync set."""
    topic = controller.image.topics["t"]
    epochs = (topic.partitions[0].leader_epoch, topic.partitions[0].partition_epoch)
    change = isr_change(0, *epochs, [(broker, ANY_EPOCH) for broker in isr])
    await controller.alter_partitions([item_for(topic.topic_id, 0, change)])


async def refresh_until_idle(failover: Failover, refreshes: list[bool]) -> None:
    """Reads the brokers while a refresh is scheduled, and again after a store failure."""
    while refreshes:
        refreshes.clear()
        try:
            await failover.brokers_changed()
        except StoreError:
            refreshes.append(True)


def for_each_call(directory: Path, story: Callable[[Setting, int], Awaitable[bool]]) -> int:
    """Runs ``story`` with each store call failing in turn; returns the number of calls."""
    for call in itertools.count(1):
        one = directory / str(call)
        one.mkdir()
        if not with_controller(one, lambda setting, call=call: story(setting, call)):
            return call - 1
    raise AssertionError("it ends within the loop")


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("is_wished", [False, True])
def test_a_reassignment_completes_whichever_store_call_fails(
    tmp_path: Path, is_wished: bool, is_made: bool
) -> None:
    """The requested set is written even if the leader does not repeat its request."""

    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = controller.failover
        assert await create(setting, "t", [0]) is None
        await restart(setting, 1)
        await failover.brokers_changed()
        if is_wished:
            data = ReassignmentNode.encode({FIRST: [1]})
            await setting.store.transact([Create(REASSIGN_PARTITIONS, data)])
            await controller.reassignments.apply_requested_reassignments()
        else:
            await controller.reassignments.alter({FIRST: [1]})
        refreshes: list[bool] = []
        controller.context.schedule_broker_refresh = lambda: refreshes.append(True)
        silence = Silence(setting, call, is_made)
        for _ in range(4):
            with contextlib.suppress(StoreError, KafkaError):
                if refreshes:
                    refreshes.clear()
                    await failover.brokers_changed()
                elif controller.image.topics["t"].partitions[0].isr == [0]:
                    await ask_for_set(controller, [0, 1])
        has_more = silence.end()
        found = controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (1, [1], [1])
        assert not await setting.store.exists(REASSIGN_PARTITIONS)
        return has_more

    assert for_each_call(tmp_path, story) > 4


@pytest.mark.parametrize("is_made", [False, True])
def test_a_returning_broker_receives_deletions_whichever_store_call_fails(
    tmp_path: Path, is_made: bool
) -> None:
    """The same refresh completes a reassignment that was blocked when its last replica got in sync."""

    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = controller.failover
        await restart(setting, 1)
        await restart(setting, 2)
        await failover.brokers_changed()
        topics = [NewTopic("gone", assignments={0: [0, 1]}), NewTopic("t", assignments={0: [0]})]
        await controller.admin_manager.create_topics(topics)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        await failover.brokers_changed()
        await controller.admin_manager.delete_topics(["gone"])
        await controller.reassignments.alter({FIRST: [2]})
        controller.context.parts.refresh_brokers = is_away
        with pytest.raises(StoreUnavailable):
            await ask_for_set(controller, [0, 2])
        controller.context.parts.refresh_brokers = failover.refresh_brokers
        await restart(setting, 1)
        setting.deltas.clear()
        refreshes = [True]
        controller.context.schedule_broker_refresh = lambda: refreshes.append(True)
        silence = Silence(setting, call, is_made)
        await refresh_until_idle(failover, refreshes)
        has_more = silence.end()
        published = [delta for delta in setting.deltas if 1 in delta.image.brokers]
        assert "gone" in [topic.name for delta in published for topic in delta.deleted]
        assert not controller.image.topics["t"].partitions[0].is_reassigning
        return has_more

    assert for_each_call(tmp_path, story) > 5


def shape(topic: TopicImage) -> tuple[object, ...]:
    """Returns all store contents of a topic."""
    names = [name for name in PartitionImage.__slots__ if name != "offline"]
    values = [[getattr(partition, name) for name in names] for partition in topic.partitions]
    plain = [[list(value) if isinstance(value, tuple) else value for value in one] for one in values]
    return topic.topic_id, dict(topic.config), plain


def published(deltas: Sequence[Delta]) -> dict[str, tuple[object, ...]]:
    """Returns the topics of a broker that received all published changes."""
    known: dict[str, TopicImage] = {}
    for delta in deltas:
        for topic in delta.deleted:
            known.pop(topic.name, None)
        for topic in (*delta.created, *(new for _, new in (*delta.changed, *delta.reconfigured))):
            known[topic.name] = topic
    return {name: shape(topic) for name, topic in known.items()}


def stored(image: ClusterImage) -> dict[str, tuple[object, ...]]:
    """Returns the topics of an image."""
    return {name: shape(topic) for name, topic in image.topics.items()}


async def lose_broker_1(setting: Setting, failover: Failover) -> None:
    await setting.store.transact([Delete(BrokerNode.path(1))])
    await failover.brokers_changed()


async def renew_broker_1(setting: Setting, failover: Failover) -> None:
    """It restarts with an empty disk before its stop was detected."""
    await restart(setting, 1, missing=True)
    await failover.brokers_changed()


CHANGES: dict[str, Callable[[Setting, Failover], Awaitable[object]]] = {
    "create": lambda setting, _: setting.controller.admin_manager.create_topics(
        [NewTopic("u", 2, 2), NewTopic("v", 1, 1)]
    ),
    "grow": lambda setting, _: setting.controller.admin_manager.create_partitions([Growth("t", 3)]),
    "delete": lambda setting, _: delete(setting, "t"),
    "set": lambda setting, _: alter_config(setting, "min.insync.replicas", "2", topic="t"),
    "move": lambda setting, _: setting.controller.reassignments.alter({FIRST: [1]}),
    "elect": lambda setting, _: setting.controller.leader_elections.elect(None),
    "stop": lambda setting, _: setting.controller.leader_elections.handle_controlled_shutdown(1),
    "ask for a set": lambda setting, failover: ask_for_set(setting.controller, [0]),
    "lose a broker": lose_broker_1,
    "lose a disk": renew_broker_1,
}


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_brokers_receive_the_stored_state_whichever_store_call_fails(
    tmp_path: Path, change: str, is_made: bool
) -> None:
    async def story(setting: Setting, call: int) -> bool:
        controller = setting.controller
        failover = controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        await controller.admin_manager.create_topics([NewTopic("t", assignments={0: [0, 1], 1: [1, 0]})])
        refreshes: list[bool] = []
        controller.context.schedule_broker_refresh = lambda: refreshes.append(True)
        silence = Silence(setting, call, is_made)
        try:
            await CHANGES[change](setting, failover)
        except (StoreError, KafkaError):
            refreshes.append(True)
        await refresh_until_idle(failover, refreshes)
        has_more = silence.end()
        assert published(setting.deltas) == stored(controller.image)
        assert stored(controller.image) == stored(await load_image(setting.store, controller.image.brokers))
        return has_more

    assert for_each_call(tmp_path, story) >= 1
