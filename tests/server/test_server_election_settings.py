"""Stored settings of leader elections and of min.insync.replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidemill.controller.admin_manager import ConfigCommand
from tidemill.controller.configuration_control import Alteration, AlterOperation, ResourceType
from tidemill.controller.topics import NewTopic
from tidemill.coordination.coordination_store import Create, SetData
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    ConfigNode,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.configs import BrokerConfig
from tidemill.server.broker_server import running


def test_the_first_elections_of_a_controller_use_the_stored_settings(tmp_path: Path) -> None:
    async def run() -> None:
        sets = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            controller, own = server.broker.controller, server.broker.node_id
            await controller.admin_manager.create_topics([NewTopic("t")])
            eligible = LeaderIsrAndControllerEpoch(own, 1, [own, 8, 9], 1)
            assignment = TopicAssignment(None, {0: [own, 8, 9]})
            settings = ConfigNode.encode({"min.insync.replicas": "2"})
            await server.broker.store.transact(
                [
                    SetData(TopicNode.path("t"), TopicNode.encode(assignment)),
                    SetData(PartitionStateNode.path("t", 0), PartitionStateNode.encode(eligible)),
                    Create(ConfigNode.path("brokers", DEFAULT_ENTITY), settings),
                ]
            )
            controller.election.resign()
            assert await controller.context.activate()
            found = controller.image.topics["t"].partitions[0]
            assert (found.leader, found.isr, list(found.elr)) == (own, [own], [8, 9])
            assert server.broker.config.int("min.insync.replicas") == 2

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_leader_applies_the_changed_min_insync_replicas_of_the_cluster(
    tmp_path: Path, before: int, after: int
) -> None:
    async def run() -> None:
        sets = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"]
        sets += [f"min.insync.replicas={before}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            controller, own = server.broker.controller, server.broker.node_id
            await controller.admin_manager.create_topics([NewTopic("t", assignments={0: [own]})])
            assignment = TopicNode.encode(TopicAssignment(None, {0: [own, 8]}))
            await server.broker.store.transact([SetData(TopicNode.path("t"), assignment)])
            controller.election.resign()
            assert await controller.context.activate()
            partition = server.broker.replica_manager.find("t", 0)
            assert partition is not None
            assert partition.is_under_min_isr == (before > 1)
            alteration = Alteration("min.insync.replicas", AlterOperation.SET, str(after))
            command = ConfigCommand(ResourceType.BROKER, "", [alteration])
            assert await controller.admin_manager.alter_configs([command]) == [None]
            assert partition.is_under_min_isr == (after > 1)

    asyncio.run(asyncio.wait_for(run(), 60))
