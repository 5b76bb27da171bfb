"""The clusters of ``tidemill pipeline mirror``, from its options and from files of Kafka's MirrorMaker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from kazoo.client import KazooClient

from tidemill.cli.mirror import _check_reachable, _cluster_of_file, _settings_of, _sources, _target
from tidemill.coordination.nodes import BROKER_IDS, BrokerNode, BrokerRegistration, Endpoint
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.model.errors import ConfigError

OLD_CONSUMER = """
group.id=mirror
zookeeper.connection.timeout.ms=6000
fetch.message.max.bytes=2000000
auto.offset.reset=smallest
"""
OLD_PRODUCER = """
metadata.broker.list=west1:9092,west2:9092
producer.type=async
compression.codec=none
serializer.class=kafka.serializer.DefaultEncoder
queue.buffering.max.ms=100
"""


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        yield bound.getsockname()[1]


def test_sources_have_aliases_and_addresses(tmp_path: Path) -> None:
    file = tmp_path / "north.properties"
    file.write_text("bootstrap.servers=n:1\nsasl.password=secret\n")
    found = _sources(["east=e1:9092,e2:9092", "s:1"], [f"north={file}", str(file)])
    assert [(one.alias, one.client["bootstrap.servers"]) for one in found] == [
        ("east", "e1:9092,e2:9092"),
        ("source2", "s:1"),
        ("north", "n:1"),
        ("source4", "n:1"),
    ]
    assert "secret" not in repr(found)


def test_the_address_of_the_target_overrides_its_file(tmp_path: Path) -> None:
    file = tmp_path / "west.properties"
    file.write_text("bootstrap.servers=w:1\nclient.id=me\n")
    west = _target("west=w:2", str(file))
    assert (west.alias, west.client) == ("west", {"bootstrap.servers": "w:2", "client.id": "me"})
    assert _target(None, f"west={file}").client["bootstrap.servers"] == "w:1"


def test_the_producer_file_of_kafka_0_8_names_the_target(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(OLD_PRODUCER)
    settings = _settings_of(str(file))
    assert settings["bootstrap.servers"] == "west1:9092,west2:9092"
    assert "producer.type" not in settings


def test_the_consumer_file_of_kafka_0_8_names_brokers_in_zookeeper(
    tmp_path: Path, zookeeper: Callable[..., ZooKeeperSettings]
) -> None:
    settings = zookeeper()
    file = tmp_path / "consumer.properties"
    file.write_text(f"zookeeper.connect={settings.hosts}{settings.chroot}\n{OLD_CONSUMER}")
    client = KazooClient(hosts=settings.hosts)
    client.start()
    try:
        client.ensure_path(settings.chroot + BROKER_IDS)
        with pytest.raises(ConfigError, match="has no live broker with PLAINTEXT"):
            _settings_of(str(file))
        for number, protocol in ((1, "PLAINTEXT"), (2, "SASL_SSL"), (3, "PLAINTEXT")):
            endpoint = Endpoint(protocol, protocol, "broker", 9090 + number)
            node = BrokerNode.encode(BrokerRegistration(number, (endpoint,), None, 0))
            client.create(settings.chroot + BrokerNode.path(number), node)
    finally:
        client.stop()
        client.close()
    assert _settings_of(str(file))["bootstrap.servers"] == "broker:9091,broker:9093"


def test_an_address_of_zookeeper_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("zookeeper.connect=zk1:port\n")
    with pytest.raises(ConfigError, match=r"zookeeper\.connect=zk1:port is no address"):
        _settings_of(str(file))


def test_a_cluster_that_cannot_be_reached_is_named_with_its_option() -> None:
    with closed_port() as port, pytest.raises(click.ClickException) as caught:
        _check_reachable("--target", _target(f"west=localhost:{port}", None))
    assert caught.value.message.startswith("the cluster west: no broker can be reached (localhost:")
    assert caught.value.message.endswith("or name another with --target HOST:PORT")
    with pytest.raises(click.UsageError, match=r"^the cluster source1: --source nowhere: "):
        _check_reachable("--source", _sources(["nowhere"], [])[0])


def test_a_file_without_brokers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("group.id=mirror\n")
    with pytest.raises(ConfigError, match=r"has neither bootstrap\.servers nor"):
        _cluster_of_file("--source-config", str(file), "source1")
