"""One tree in ZooKeeper for Apache Kafka 3.9.2 and Tidemill: each reads the nodes of the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType
from kafka_peer import Kafka, class_path, wait_led

from tidemill.client import Admin
from tidemill.coordination.cluster_image import GROUP_SETTINGS
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import NO_OWNER, subtree
from tidemill.coordination.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    PERSISTENT_PATHS,
    BrokerNode,
    ControllerEpochNode,
    ControllerNode,
    TopicNode,
)
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.testing import Broker

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka-directories"),
]


def test_the_nodes_of_a_running_kafka_are_read(
    zookeeper: Callable[..., ZooKeeperSettings], tmp_path: Path
) -> None:
    settings = zookeeper()
    kafka = Kafka(class_path("3.9.2"), tmp_path, tmp_path / "data", zookeeper=settings.shown, node=7)
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topic = NewTopic("orders", 3, 1, config={"retention.ms": "5000"})
        admin.create_topics([topic])["orders"].result(30)

        async def look() -> None:
            store = await ZooKeeperStore.open(settings)
            image = await load_image(store)
            assert (image.controller_id, image.controller_epoch) == (7, 1)
            assert list(image.brokers) == [7]
            port = int(kafka.bootstrap.rpartition(":")[2])
            assert [(e.host, e.port) for e in image.brokers[7].endpoints.values()] == [("127.0.0.1", port)]
            orders = image.topics["orders"]
            assert [(p.leader, p.replicas, p.isr) for p in orders.partitions] == [(7, [7], [7])] * 3
            assert orders.config == {"retention.ms": "5000"}
            # The rewritten nodes are equal as well, except those that the recording lacks.
            registered, controller, epoch, topic = await store.get_many(
                [BrokerNode.path(7), CONTROLLER, CONTROLLER_EPOCH, TopicNode.path("orders")]
            )
            assert registered is not None
            assert controller is not None
            assert epoch is not None
            assert topic is not None
            assert registered.owner != NO_OWNER
            assert image.brokers[7].epoch == registered.creation_id
            again = json.loads(BrokerNode.encode(BrokerNode.decode(7, registered.data)))
            assert again == json.loads(registered.data)
            taken = json.loads(controller.data)
            assert ControllerNode.decode(controller.data) == 7
            assert json.loads(ControllerNode.encode(7, int(taken["timestamp"]))) == taken
            assert ControllerEpochNode.encode(ControllerEpochNode.decode(epoch.data)) == epoch.data
            assert json.loads(TopicNode.encode(TopicNode.decode("orders", topic.data))) == json.loads(
                topic.data
            )
            # Tidemill creates the nodes that Kafka creates at its start, and the parent of group settings,
            # which 3.9 lacks.
            assert set(await subtree(store, "/")) >= set(PERSISTENT_PATHS) - {f"/{GROUP_SETTINGS}"}
            await store.close()

        asyncio.run(look())
    finally:
        kafka.end()


def test_kafka_continues_with_the_nodes_of_tidemill(
    zookeeper: Callable[..., ZooKeeperSettings], tmp_path: Path
) -> None:
    settings = zookeeper()
    keys = {
        "zookeeper.connect": settings.shown,
        "zookeeper.session.timeout.ms": "2000",
        "broker.id": "7",
    }
    with Broker(keys) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", 3, configs={"retention.ms": "5000", "cleanup.policy": "compact"})
        admin.create_topic("other", 1)
        admin.delete_topics(["other"])
    kafka = Kafka(class_path("3.9.2"), tmp_path, tmp_path / "data", zookeeper=settings.shown, node=7)
    kafka.start()
    try:
        wait_led(kafka.bootstrap, [("orders", number) for number in range(3)])
        client = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topics = client.list_topics(timeout=30).topics
        assert [name for name in topics if not name.startswith("__")] == ["orders"]
        assert [p.leader for p in topics["orders"].partitions.values()] == [7, 7, 7]
        (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")]).values()
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        told = {one.name: one.value for one in future.result(30).values() if one.source == own}
        assert told == {"retention.ms": "5000", "cleanup.policy": "compact"}
        client.create_topics([NewTopic("new", 1, 1)])["new"].result(30)

        async def look() -> None:
            store = await ZooKeeperStore.open(settings)
            image = await load_image(store)
            await store.close()
            assert set(image.topics) >= {"orders", "new"}
            assert [p.leader for p in image.topics["orders"].partitions] == [7, 7, 7]
            assert image.controller_epoch == 2

        asyncio.run(look())
    finally:
        kafka.end()
