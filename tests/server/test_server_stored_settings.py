"""Brokers with invalid settings in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidemill.broker.dynamic_broker_config import effective_config, warn_overridden
from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import SetData
from tidemill.coordination.embedded_store import FILE_NAME, EmbeddedStore
from tidemill.coordination.nodes import ConfigNode
from tidemill.model.configs import BrokerConfig
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper


def write_settings(data: Path, kind: str, name: str, settings: dict[str, str]) -> None:
    """Writes settings of a topic or broker without validation."""

    async def scenario() -> None:
        store = EmbeddedStore.open(str(data / FILE_NAME))
        await store.transact([SetData(ConfigNode.path(kind, name), ConfigNode.encode(settings))])
        await store.close()

    asyncio.run(scenario())


def test_an_invalid_topic_setting_is_logged_and_can_be_corrected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 2, configs={"retention.ms": "70000", "segment.bytes": "1048576"})
    write_settings(data, "topics", "t", {"retention.ms": "a week", "segment.bytes": "1048576"})
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        lines = [line for line in broker.log.splitlines() if "a week" in line]
        shown = admin.topic_configs("t")
        assert (shown["retention.ms"].value, shown["segment.bytes"].value) == ("-1", "1048576")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "t"), {"retention.ms": "80000"})
        assert admin.topic_configs("t")["retention.ms"].value == "80000"
    assert lines
    assert all(
        "topic t: invalid setting retention.ms=a week: allowed is a whole number" in line
        and "-1 is used until it is corrected" in line
        for line in lines
    )


def test_an_invalid_cluster_default_is_logged_and_can_be_corrected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    everybody = ConfigResource(ResourceType.BROKER, "")
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        admin.alter_configs(everybody, {"log.retention.ms": "70000"})
    settings = {"log.retention.ms": "soon", "message.max.bytes": "2000000"}
    write_settings(data, "brokers", "<default>", settings)
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        lines = [line for line in broker.log.splitlines() if "soon" in line]
        admin.create_topic("t", 1)
        shown = admin.topic_configs("t")
        assert (shown["retention.ms"].value, shown["max.message.bytes"].value) == ("-1", "2000000")
        admin.alter_configs(everybody, {"log.retention.ms": "80000"})
        assert admin.topic_configs("t")["retention.ms"].value == "80000"
    assert lines
    text = "an invalid setting of all brokers in the coordination store is ignored: log.retention.ms=soon"
    assert text in lines[0]


def test_inconsistent_cluster_defaults_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"group.min.session.timeout.ms": "9000", "group.max.session.timeout.ms": "8000"}
    image = ClusterImage("c", 0, 1, {}, {}, {"<default>": settings})
    config = effective_config(BrokerConfig.of({"num.partitions": "3"}), image, 1)
    assert config.int("num.partitions") == 3
    assert config.int("group.min.session.timeout.ms") == 6000
    assert "they contradict each other: group.min.session.timeout.ms=9000 is above" in caplog.text


def test_a_cluster_has_one_min_insync_replicas_for_all_brokers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = {"<default>": {"min.insync.replicas": "2"}, "1": {"min.insync.replicas": "3"}}
    image = ClusterImage("c", 0, 1, {}, {}, shared)
    in_cluster = BrokerConfig.of({"zookeeper.connect": "zk:2181", "min.insync.replicas": "1"})
    assert effective_config(in_cluster, image, 1).int("min.insync.replicas") == 2
    warn_overridden(in_cluster, image, 1)
    lines = [one.getMessage() for one in caplog.records]
    assert [text.partition(": change")[0] for text in lines] == [
        "min.insync.replicas=1 in its file is overridden by the value of the cluster, 2",
        "min.insync.replicas=3 in the store, for broker 1 alone is overridden by the value of the cluster, 2",
    ]
    caplog.clear()
    # No warning for unset or equal values, nor for a standalone broker, which has its own settings.
    warn_overridden(BrokerConfig.of({"zookeeper.connect": "zk:2181"}), image, 2)
    alone = BrokerConfig.of({"min.insync.replicas": "1"})
    warn_overridden(alone, image, 1)
    assert caplog.records == []
    assert effective_config(alone, image, 1).int("min.insync.replicas") == 3


@pytest.mark.slow
def test_a_joining_broker_warns_of_an_overridden_min_insync_replicas(
    zookeeper_server: ZooKeeper,
) -> None:
    """The controller has written its own value to the store."""
    store = {"zookeeper.connect": f"{zookeeper_server.address}/test-stored-minimum"}
    with (
        Broker({**store, "node.id": "1", "min.insync.replicas": "1"}) as first,
        Broker({**store, "node.id": "2", "min.insync.replicas": "2"}) as second,
        Admin(second.bootstrap) as admin,
    ):
        lines = [line for line in second.log.splitlines() if "min.insync.replicas" in line]
        assert len(lines) == 1
        assert " WARNING " in lines[0]
        text = "min.insync.replicas=2 in its file is overridden by the value of the cluster, 1: change it"
        assert text in lines[0]
        assert "min.insync.replicas" not in first.log
        admin.create_topic("t", assignments={0: [2]})
        assert admin.topic_configs("t")["min.insync.replicas"].value == "1"
