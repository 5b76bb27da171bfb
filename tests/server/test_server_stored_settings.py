"""A broker over settings in its store that make no sense."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidemill.broker.metadata import effective_config, warn_overridden
from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.coordination.embedded import FILE_NAME, EmbeddedStore
from tidemill.coordination.image import ClusterImage
from tidemill.coordination.nodes import ConfigNode
from tidemill.coordination.port import SetData
from tidemill.model.configs import BrokerConfig
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper


def write_settings(data: Path, kind: str, name: str, settings: dict[str, str]) -> None:
    """Writes settings of a topic or broker as no broker would let anybody do it."""

    async def story() -> None:
        store = EmbeddedStore.open(str(data / FILE_NAME))
        await store.transact([SetData(ConfigNode.path(kind, name), ConfigNode.encode(settings))])
        await store.close()

    asyncio.run(story())


def test_a_topic_setting_that_makes_no_sense_is_named_and_can_be_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 2, configs={"retention.ms": "70000", "segment.bytes": "1048576"})
    write_settings(data, "topics", "t", {"retention.ms": "a week", "segment.bytes": "1048576"})
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        told = [line for line in broker.log.splitlines() if "a week" in line]
        shown = admin.topic_configs("t")
        assert (shown["retention.ms"].value, shown["segment.bytes"].value) == ("-1", "1048576")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "t"), {"retention.ms": "80000"})
        assert admin.topic_configs("t")["retention.ms"].value == "80000"
    assert told
    assert all(
        "topic t: its setting retention.ms=a week: allowed is a whole number" in line
        and "-1 holds until it is set again" in line
        for line in told
    )


def test_a_setting_of_all_brokers_that_makes_no_sense_is_named_and_can_be_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    everybody = ConfigResource(ResourceType.BROKER, "")
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        admin.alter_configs(everybody, {"log.retention.ms": "70000"})
    settings = {"log.retention.ms": "soon", "message.max.bytes": "2000000"}
    write_settings(data, "brokers", "<default>", settings)
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        told = [line for line in broker.log.splitlines() if "soon" in line]
        admin.create_topic("t", 1)
        shown = admin.topic_configs("t")
        assert (shown["retention.ms"].value, shown["max.message.bytes"].value) == ("-1", "2000000")
        admin.alter_configs(everybody, {"log.retention.ms": "80000"})
        assert admin.topic_configs("t")["retention.ms"].value == "80000"
    assert told
    assert "A setting of all brokers in the cluster's store does not count: log.retention.ms=soon" in told[0]


def test_settings_of_all_brokers_that_contradict_each_other_do_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"group.min.session.timeout.ms": "9000", "group.max.session.timeout.ms": "8000"}
    image = ClusterImage("c", 0, 1, {}, {}, {"<default>": settings})
    config = effective_config(BrokerConfig.of({"num.partitions": "3"}), image, 1)
    assert config.int("num.partitions") == 3
    assert config.int("group.min.session.timeout.ms") == 6000
    assert "it contradicts itself: group.min.session.timeout.ms=9000 is above" in caplog.text


def test_a_cluster_has_one_minimum_of_replicas_in_sync_whatever_files_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = {"<default>": {"min.insync.replicas": "2"}, "1": {"min.insync.replicas": "3"}}
    image = ClusterImage("c", 0, 1, {}, {}, shared)
    in_cluster = BrokerConfig.of({"zookeeper.connect": "zk:2181", "min.insync.replicas": "1"})
    assert effective_config(in_cluster, image, 1).int("min.insync.replicas") == 2
    warn_overridden(in_cluster, image, 1)
    told = [one.getMessage() for one in caplog.records]
    assert [text.partition(": change")[0] for text in told] == [
        "min.insync.replicas=1 in its file is overridden by the cluster's, 2",
        "min.insync.replicas=3 in the store, for broker 1 alone is overridden by the cluster's, 2",
    ]
    caplog.clear()
    # What is not set, or set alike, is no surprise; and a broker on its own store has its own settings.
    warn_overridden(BrokerConfig.of({"zookeeper.connect": "zk:2181"}), image, 2)
    alone = BrokerConfig.of({"min.insync.replicas": "1"})
    warn_overridden(alone, image, 1)
    assert caplog.records == []
    assert effective_config(alone, image, 1).int("min.insync.replicas") == 3


@pytest.mark.slow
def test_a_broker_that_joins_warns_of_a_minimum_in_its_file_that_the_clusters_overrides(
    zookeeper_server: ZooKeeper,
) -> None:
    """The controller has written its own to the store."""
    store = {"zookeeper.connect": f"{zookeeper_server.address}/test-stored-minimum"}
    with (
        Broker({**store, "node.id": "1", "min.insync.replicas": "1"}) as first,
        Broker({**store, "node.id": "2", "min.insync.replicas": "2"}) as second,
        Admin(second.bootstrap) as admin,
    ):
        told = [line for line in second.log.splitlines() if "min.insync.replicas" in line]
        assert len(told) == 1
        assert " WARNING " in told[0]
        assert "min.insync.replicas=2 in its file is overridden by the cluster's, 1: change that" in told[0]
        assert "min.insync.replicas" not in first.log
        admin.create_topic("t", assignments={0: [2]})
        assert admin.topic_configs("t")["min.insync.replicas"].value == "1"
