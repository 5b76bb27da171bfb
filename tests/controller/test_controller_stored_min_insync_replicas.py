"""Eligible leader replicas after another client changed ``min.insync.replicas`` in the store.

The leader may have applied the setting before the controller is notified of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from controller_stage import Brokers, Setting, alter_config, lose_answer, started

from alter_partition_items import isr_change, item_for
from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.controller.topics import NewTopic
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, Delete, SetData, StoreUnavailable
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import DEFAULT_ENTITY, BrokerNode, ConfigNode, ConfigResource

BROKERS = (1, 2, 3)


MIN_INSYNC = "min.insync.replicas"


def minimum_path(*, is_default: bool) -> str:
    """Returns the node with the settings of the cluster or of the topic."""
    return ConfigNode.path(*(("brokers", DEFAULT_ENTITY) if is_default else ("topics", "t")))


class Replicas(Brokers):
    """Brokers 1 to 3, and a topic with one partition on all of them, led by broker 1."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.controller.context.policies.with_settings = lambda config, image: effective_config(
            config, image, 0
        )

    async def make_topic(self, minimum: int, *, is_default: bool) -> None:
        """``min.insync.replicas`` is set for the topic or for the cluster."""
        for broker in BROKERS:
            await self.start(broker)
        settings = {MIN_INSYNC: str(minimum)}
        if is_default:
            path = minimum_path(is_default=True)
            await self.setting.store.transact([Create(path, ConfigNode.encode(settings))])
            await self.controller.context.apply_stored_settings(
                {ConfigResource("brokers", DEFAULT_ENTITY): settings}
            )
        config = {} if is_default else settings
        await self.controller.admin_manager.create_topics(
            [NewTopic("t", assignments={0: list(BROKERS)}, config=config)]
        )

    async def make_eligible(self, *, is_default: bool) -> None:
        """Broker 3 has restarted and is eligible beside the leader with a minimum of 2."""
        await self.make_topic(2, is_default=is_default)
        for broker in (2, 3):
            await self.stop(broker)
        await self.start(3)
        assert self.members == (1, [1], [3])

    async def write_minimum(self, minimum: int, *, is_default: bool) -> None:
        """Writes the setting as an administrator's tool does, without notifying the controller."""
        data = ConfigNode.encode({MIN_INSYNC: str(minimum)})
        await self.setting.store.transact([SetData(minimum_path(is_default=is_default), data)])

    async def ask_for(self, *isr: int) -> None:
        """The leader requests this in-sync set, and again if the partition epoch has changed."""
        topic = self.controller.image.topics["t"]
        for _ in range(2):
            one = self.state
            members = [(member, -1) for member in isr]
            change = isr_change(one.leader, one.leader_epoch, one.partition_epoch, members)
            await self.controller.alter_partitions([item_for(topic.topic_id, 0, change)])


@pytest.mark.parametrize("is_default", [False, True])
async def test_no_replica_without_records_committed_under_an_unread_minimum_is_elected(
    tmp_path: Path, is_default: bool
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_eligible(is_default=is_default)
        await brokers.write_minimum(1, is_default=is_default)
        await brokers.stop(1)
        assert brokers.members == (-1, [], [1])
        await brokers.start(1)
        assert brokers.members == (1, [1], [])


@pytest.mark.parametrize("is_told", [False, True])
async def test_setting_the_inherited_minimum_on_a_topic_keeps_its_elr(tmp_path: Path, is_told: bool) -> None:
    """The commit rule is unchanged. With ``is_told`` the change is requested from the controller."""
    minimum = {"min.insync.replicas": "2"}

    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic(2, is_default=True)
        for broker in (2, 3):
            await brokers.stop(broker)
        assert brokers.members == (1, [1], [3])
        if is_told:
            assert await alter_config(setting, MIN_INSYNC, "2", topic="t") is None
        else:
            path = minimum_path(is_default=False)
            node = await setting.store.get(path)
            write = (
                Create(path, ConfigNode.encode(minimum))
                if node is None
                else SetData(path, ConfigNode.encode(minimum))
            )
            await setting.store.transact([write])
            await brokers.controller.context.apply_stored_settings({ConfigResource("topics", "t"): minimum})
        assert brokers.controller.image.topics["t"].config == minimum
        assert brokers.members == (1, [1], [3])
        assert await alter_config(setting, MIN_INSYNC, "1", topic="t") is None
        assert brokers.members == (1, [1], [])


async def test_a_new_controller_applies_a_minimum_written_while_it_read_the_store(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_eligible(is_default=False)
        brokers.controller.election.resign()
        read = brokers.controller.context._read

        async def read_slowly() -> ClusterImage:
            """The controller has read the settings. The leader reads others, commits by them, and fails."""
            image = await read()
            await brokers.write_minimum(1, is_default=False)
            await setting.store.transact([Delete(BrokerNode.path(1))])
            return image.with_brokers({one: known for one, known in image.brokers.items() if one != 1})

        brokers.controller.context._read = read_slowly  # type: ignore[method-assign]
        assert await brokers.controller.context.activate()
        assert brokers.members == (-1, [], [1])


async def test_a_smaller_isr_makes_no_replica_without_committed_records_eligible(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic(3, is_default=False)
        await brokers.ask_for(1, 2)
        assert brokers.members == (1, [1, 2], [3])
        await brokers.write_minimum(2, is_default=False)
        await brokers.ask_for(1)
        assert brokers.members == (1, [1], [2])


@pytest.mark.parametrize("name", ["min.insync.replicas", "unclean.leader.election.enable"])
@pytest.mark.parametrize("is_default", [False, True])
async def test_a_settings_change_does_not_overwrite_an_unapplied_lower_minimum(
    tmp_path: Path, is_default: bool, name: str
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_eligible(is_default=is_default)
        await brokers.write_minimum(1, is_default=is_default)
        value = "2" if name == "min.insync.replicas" else "false"
        assert await alter_config(setting, name, value, topic="" if is_default else "t") is None
        assert brokers.members == (1, [1], [])
        path = minimum_path(is_default=is_default)
        node = await setting.store.get(path)
        assert node is not None
        minimum = "2" if name == "min.insync.replicas" else "1"
        assert ConfigNode.decode(path, node.data)["min.insync.replicas"] == minimum


@pytest.mark.parametrize(("is_default", "is_cluster_altered"), [(False, False), (True, True), (True, False)])
async def test_a_lower_minimum_written_after_the_check_is_applied(
    tmp_path: Path, is_default: bool, is_cluster_altered: bool
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_eligible(is_default=is_default)
        look = brokers.controller.context.apply_stored_min_insync

        async def read_before_the_write(topics: Iterable[str]) -> bool:
            found = await look(topics)
            brokers.controller.context.apply_stored_min_insync = look  # type: ignore[method-assign]
            await brokers.write_minimum(1, is_default=is_default)
            return found

        brokers.controller.context.apply_stored_min_insync = read_before_the_write  # type: ignore[method-assign]
        topic = "" if is_cluster_altered else "t"
        assert await alter_config(setting, MIN_INSYNC, "2", topic=topic) is None
        assert brokers.members == (1, [1], [])


@pytest.mark.parametrize(("before", "after", "eligible"), [(2, 1, []), (1, 2, [2])])
async def test_a_replica_that_leaves_the_isr_is_eligible_by_the_changed_cluster_minimum(
    tmp_path: Path, before: int, after: int, eligible: list[int]
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic(before, is_default=True)
        await brokers.stop(3)
        assert brokers.members == (1, [1, 2], [])
        assert await alter_config(setting, MIN_INSYNC, str(after)) is None
        await brokers.stop(2)
        assert brokers.members == (1, [1], eligible)


@pytest.mark.parametrize("is_node_removed", [False, True])
@pytest.mark.parametrize("is_read_anew", [False, True])
async def test_a_removed_cluster_minimum_is_replaced_by_that_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_anew: bool, is_node_removed: bool
) -> None:
    """Otherwise each leader would commit by the setting in its own file."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)
    path = minimum_path(is_default=True)

    async with started(tmp_path, min_insync_replicas=2) as setting:
        brokers, store = Replicas(setting), setting.store
        assert brokers.controller.image.default_broker_config() == {"min.insync.replicas": "2"}
        await store.transact([Delete(path) if is_node_removed else SetData(path, ConfigNode.encode({}))])
        if is_read_anew:
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await brokers.controller.context.write_operations([])
        await brokers.controller.context.apply_stored_settings(
            {ConfigResource("brokers", DEFAULT_ENTITY): {}}
        )
        node = await store.get(path)
        assert node is not None
        assert ConfigNode.decode(path, node.data) == {"min.insync.replicas": "2"}
        assert setting.deltas[-1].image.default_broker_config() == {"min.insync.replicas": "2"}
