"""The settings by which a server's controller elects, and its leaders commit, as they are in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidemill.controller.configs import Alteration, AlterOperation, ResourceType
from tidemill.controller.shell import ConfigCommand
from tidemill.controller.topics import NewTopic
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    ConfigNode,
    PartitionState,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, SetData
from tidemill.model.configs import BrokerConfig
from tidemill.server.app import running


def test_the_first_elections_of_a_controller_go_by_the_stored_settings(tmp_path: Path) -> None:
    async def run() -> None:
        sets = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            controller, own = server.broker.controller, server.broker.node_id
            await controller.create_topics([NewTopic("t")])
            eligible = PartitionState(own, 1, [own, 8, 9], 1)
            assignment = TopicAssignment(None, {0: [own, 8, 9]})
            settings = ConfigNode.encode({"min.insync.replicas": "2"})
            await server.broker.store.transact(
                [
                    SetData(TopicNode.path("t"), TopicNode.encode(assignment)),
                    SetData(PartitionStateNode.path("t", 0), PartitionStateNode.encode(eligible)),
                    Create(ConfigNode.path("brokers", DEFAULT_ENTITY), settings),
                ]
            )
            controller.resign()
            assert await controller.activate()
            found = controller.image.topics["t"].partitions[0]
            assert (found.leader, found.isr, list(found.elr)) == (own, [own], [8, 9])
            assert server.broker.config.int("min.insync.replicas") == 2

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_leader_takes_writes_by_the_clusters_minimum_as_a_client_has_changed_it(
    tmp_path: Path, before: int, after: int
) -> None:
    async def run() -> None:
        sets = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"]
        sets += [f"min.insync.replicas={before}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            controller, own = server.broker.controller, server.broker.node_id
            await controller.create_topics([NewTopic("t", assignments={0: [own]})])
            assignment = TopicNode.encode(TopicAssignment(None, {0: [own, 8]}))
            await server.broker.store.transact([SetData(TopicNode.path("t"), assignment)])
            controller.resign()
            assert await controller.activate()
            partition = server.broker.partitions.find("t", 0)
            assert partition is not None
            assert partition.is_under_min_isr == (before > 1)
            alteration = Alteration("min.insync.replicas", AlterOperation.SET, str(after))
            command = ConfigCommand(ResourceType.BROKER, "", [alteration])
            assert await controller.alter_configs([command]) == [None]
            assert partition.is_under_min_isr == (after > 1)

    asyncio.run(asyncio.wait_for(run(), 60))
