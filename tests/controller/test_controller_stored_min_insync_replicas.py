"""Eligible leader replicas, where somebody else has written another ``min.insync.replicas`` to the store.

The leader may have read it, and commit by it, before the controller is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from controller_office import REGISTRATION, Setting, in_office, lose_answer

from tidemill.broker.metadata import effective_config
from tidemill.controller.configs import Alteration, AlterOperation, ResourceType
from tidemill.controller.failover import Failover, WantedIsr
from tidemill.controller.isr import IsrChange
from tidemill.controller.shell import ConfigCommand
from tidemill.controller.topics import NewTopic
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import ClusterImage, PartitionImage
from tidemill.coordination.nodes import DEFAULT_ENTITY, BrokerNode, ConfigNode
from tidemill.coordination.port import Create, Delete, SetData, StoreUnavailable

BROKERS = (1, 2, 3)


class Brokers:
    """Brokers 1 to 3, and a topic of one partition on all of them, which broker 1 leads."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.controller = setting.controller
        self.controller.policies.with_settings = lambda config, image: effective_config(config, image, 0)
        self.failover = Failover(setting.controller)

    async def make_topic(self, minimum: int, *, is_default: bool) -> None:
        """``min.insync.replicas`` is the topic's, or the cluster's."""
        for broker in BROKERS:
            await self.start(broker)
        settings = {"min.insync.replicas": str(minimum)}
        if is_default:
            path = ConfigNode.path("brokers", DEFAULT_ENTITY)
            await self.setting.store.transact([Create(path, ConfigNode.encode(settings))])
            await self.controller.take_settings({("brokers", DEFAULT_ENTITY): settings})
        config = {} if is_default else settings
        await self.controller.create_topics([NewTopic("t", assignments={0: list(BROKERS)}, config=config)])

    async def make_eligible(self, *, is_default: bool) -> None:
        """Broker 3, which is back, is eligible beside the leader by a minimum of 2."""
        await self.make_topic(2, is_default=is_default)
        for broker in (2, 3):
            await self.stop(broker)
        await self.start(3)
        assert self.members == (1, [1], [3])

    async def write_minimum(self, minimum: int, *, is_default: bool) -> None:
        """As an administrator's tool does; nobody has told the controller of it."""
        path = ConfigNode.path(*(("brokers", DEFAULT_ENTITY) if is_default else ("topics", "t")))
        data = ConfigNode.encode({"min.insync.replicas": str(minimum)})
        await self.setting.store.transact([SetData(path, data)])

    async def start(self, broker: int) -> None:
        data = BrokerNode.encode(REGISTRATION._replace(broker_id=broker))
        await self.setting.store.transact([Create(BrokerNode.path(broker), data, ephemeral=True)])
        await self.failover.brokers_changed()

    async def stop(self, broker: int) -> None:
        await self.setting.store.transact([Delete(BrokerNode.path(broker))])
        await self.failover.brokers_changed()

    async def ask_for(self, *isr: int) -> None:
        """The leader asks for this in-sync set, once more where the partition's state is another by then."""
        topic = self.controller.image.topics["t"]
        for _ in range(2):
            one = self.state
            members = [(member, -1) for member in isr]
            change = IsrChange(one.leader, one.leader_epoch, one.partition_epoch, members)
            await self.failover.alter_isr([WantedIsr(topic.topic_id, 0, change)])

    @property
    def state(self) -> PartitionImage:
        return self.controller.image.topics["t"].partitions[0]

    @property
    def members(self) -> tuple[int, list[int], list[int]]:
        """Leader, in-sync set and ELR."""
        return self.state.leader, sorted(self.state.isr), sorted(self.state.elr)


@pytest.mark.parametrize("is_default", [False, True])
def test_nobody_is_elected_without_what_a_leader_commits_by_a_minimum_that_it_alone_has_read(
    tmp_path: Path, is_default: bool
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_eligible(is_default=is_default)
        await brokers.write_minimum(1, is_default=is_default)
        await brokers.stop(1)
        assert brokers.members == (-1, [], [1])
        await brokers.start(1)
        assert brokers.members == (1, [1], [])

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_topic_that_gets_the_minimum_which_it_has_from_the_cluster_keeps_its_eligible_leaders(
    tmp_path: Path, is_told: bool
) -> None:
    """Nothing is committed otherwise than before. ``is_told``: the controller is asked to write it."""
    minimum = {"min.insync.replicas": "2"}

    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic(2, is_default=True)
        for broker in (2, 3):
            await brokers.stop(broker)
        assert brokers.members == (1, [1], [3])
        if is_told:
            alteration = Alteration("min.insync.replicas", AlterOperation.SET, "2")
            command = ConfigCommand(ResourceType.TOPIC, "t", [alteration])
            assert await brokers.controller.alter_configs([command]) == [None]
        else:
            path = ConfigNode.path("topics", "t")
            node = await setting.store.get(path)
            write = (
                Create(path, ConfigNode.encode(minimum))
                if node is None
                else SetData(path, ConfigNode.encode(minimum))
            )
            await setting.store.transact([write])
            await brokers.controller.take_settings({("topics", "t"): minimum})
        assert brokers.controller.image.topics["t"].config == minimum
        assert brokers.members == (1, [1], [3])
        alteration = Alteration("min.insync.replicas", AlterOperation.SET, "1")
        command = ConfigCommand(ResourceType.TOPIC, "t", [alteration])
        assert await brokers.controller.alter_configs([command]) == [None]
        assert brokers.members == (1, [1], [])

    in_office(tmp_path, story)


def test_a_new_controller_heeds_a_minimum_that_was_written_while_it_read_the_store(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic(2, is_default=False)
        for broker in (2, 3):
            await brokers.stop(broker)
        await brokers.start(3)
        assert brokers.members == (1, [1], [3])
        brokers.controller.resign()
        read = brokers.controller._read

        async def read_slowly() -> ClusterImage:
            """The settings were read; the leader reads others, commits by them, and ends."""
            image = await read()
            await brokers.write_minimum(1, is_default=False)
            await setting.store.transact([Delete(BrokerNode.path(1))])
            return image.with_brokers({one: known for one, known in image.brokers.items() if one != 1})

        brokers.controller._read = read_slowly  # type: ignore[method-assign]
        assert await brokers.controller.activate()
        assert brokers.members == (-1, [], [1])

    in_office(tmp_path, story)


def test_a_smaller_in_sync_set_makes_nobody_eligible_whom_commits_by_a_lower_minimum_left_out(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic(3, is_default=False)
        await brokers.ask_for(1, 2)
        assert brokers.members == (1, [1, 2], [3])
        await brokers.write_minimum(2, is_default=False)
        await brokers.ask_for(1)
        assert brokers.members == (1, [1], [2])

    in_office(tmp_path, story)


@pytest.mark.parametrize("name", ["min.insync.replicas", "unclean.leader.election.enable"])
@pytest.mark.parametrize("is_default", [False, True])
def test_a_client_that_changes_settings_overwrites_no_lower_minimum_before_it_is_heeded(
    tmp_path: Path, is_default: bool, name: str
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_eligible(is_default=is_default)
        await brokers.write_minimum(1, is_default=is_default)
        value = "2" if name == "min.insync.replicas" else "false"
        kind, entity = (ResourceType.BROKER, "") if is_default else (ResourceType.TOPIC, "t")
        alteration = Alteration(name, AlterOperation.SET, value)
        assert await brokers.controller.alter_configs([ConfigCommand(kind, entity, [alteration])]) == [None]
        assert brokers.members == (1, [1], [])
        path = ConfigNode.path(*(("brokers", DEFAULT_ENTITY) if is_default else ("topics", "t")))
        node = await setting.store.get(path)
        assert node is not None
        minimum = "2" if name == "min.insync.replicas" else "1"
        assert ConfigNode.decode(path, node.data)["min.insync.replicas"] == minimum

    in_office(tmp_path, story)


@pytest.mark.parametrize(("is_default", "is_cluster_altered"), [(False, False), (True, True), (True, False)])
def test_a_lower_minimum_is_heeded_that_is_written_after_the_controller_has_looked_for_one(
    tmp_path: Path, is_default: bool, is_cluster_altered: bool
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_eligible(is_default=is_default)
        look = brokers.controller.take_other_min_insync

        async def look_before_it_is_written(topics: Iterable[str]) -> bool:
            found = await look(topics)
            brokers.controller.take_other_min_insync = look  # type: ignore[method-assign]
            await brokers.write_minimum(1, is_default=is_default)
            return found

        brokers.controller.take_other_min_insync = look_before_it_is_written  # type: ignore[method-assign]
        kind, entity = (ResourceType.BROKER, "") if is_cluster_altered else (ResourceType.TOPIC, "t")
        alteration = Alteration("min.insync.replicas", AlterOperation.SET, "2")
        assert await brokers.controller.alter_configs([ConfigCommand(kind, entity, [alteration])]) == [None]
        assert brokers.members == (1, [1], [])

    in_office(tmp_path, story)


@pytest.mark.parametrize(("before", "after", "eligible"), [(2, 1, []), (1, 2, [2])])
def test_a_replica_that_leaves_the_set_is_eligible_by_the_clusters_minimum_as_a_client_has_changed_it(
    tmp_path: Path, before: int, after: int, eligible: list[int]
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic(before, is_default=True)
        await brokers.stop(3)
        assert brokers.members == (1, [1, 2], [])
        alteration = Alteration("min.insync.replicas", AlterOperation.SET, str(after))
        command = ConfigCommand(ResourceType.BROKER, "", [alteration])
        assert await brokers.controller.alter_configs([command]) == [None]
        await brokers.stop(2)
        assert brokers.members == (1, [1], eligible)

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_node_removed", [False, True])
@pytest.mark.parametrize("is_read_anew", [False, True])
def test_a_cluster_whose_minimum_somebody_removes_has_that_of_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_anew: bool, is_node_removed: bool
) -> None:
    """Else each leader would commit by the one in its own file."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)
    path = ConfigNode.path("brokers", DEFAULT_ENTITY)

    async def story(setting: Setting) -> None:
        brokers, store = Brokers(setting), setting.store
        assert brokers.controller.image.default_broker_config() == {"min.insync.replicas": "2"}
        await store.transact([Delete(path) if is_node_removed else SetData(path, ConfigNode.encode({}))])
        if is_read_anew:
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await brokers.controller.write_operations([])
        await brokers.controller.take_settings({("brokers", DEFAULT_ENTITY): {}})
        node = await store.get(path)
        assert node is not None
        assert ConfigNode.decode(path, node.data) == {"min.insync.replicas": "2"}
        assert setting.deltas[-1].image.default_broker_config() == {"min.insync.replicas": "2"}

    in_office(tmp_path, story, min_insync_replicas=2)
