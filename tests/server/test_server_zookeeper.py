"""Broker processes on a ZooKeeper server: nodes, registration, sessions, errors of the start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_cluster import zookeeper_client
from kazoo.client import KazooClient

from tidemill.client import Admin, Producer
from tidemill.client.errors import ClientError
from tidemill.controller.topics import NewTopic
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.model.configs import BrokerConfig
from tidemill.server.broker_server import running
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

WAIT_S = 30


@pytest.fixture
def address(zookeeper: Callable[..., ZooKeeperSettings]) -> str:
    """An unused path of ZooKeeper."""
    return zookeeper().shown


@pytest.fixture
def kazoo(address: str) -> Iterator[Any]:
    """A ZooKeeper client with the chroot of the cluster."""
    with zookeeper_client(address) as client:
        yield client


def settings(address: str, **others: str) -> dict[str, str]:
    return {"zookeeper.connect": address, "zookeeper.session.timeout.ms": "2000", "broker.id": "3", **others}


def refused(address: str, directory: Path, *sets: str) -> str:
    """The error line of a broker that cannot start."""
    arguments = [argument for one in (f"zookeeper.connect={address}", *sets) for argument in ("--set", one)]
    outcome = subprocess.run(
        [sys.executable, "-m", "tidemill", "serve", "--port", "0", "-d", str(directory), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert outcome.returncode == 1
    lines = [line for line in outcome.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert len(lines) == 1, outcome.stderr
    return lines[0]


async def until(condition: Callable[[], bool]) -> None:
    """Waits until ``condition`` is true."""
    for _ in range(WAIT_S * 50):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not true in time")


def test_topics_are_in_the_nodes_of_kafka(address: str, kazoo: Any) -> None:
    with Broker(settings(address)) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", 2, configs={"retention.ms": "1000"})
        registered = json.loads(kazoo.get("/brokers/ids/3")[0])
        assert registered["port"] == broker.port
        assert json.loads(kazoo.get("/controller")[0])["brokerid"] == 3
        topic = json.loads(kazoo.get("/brokers/topics/orders")[0])
        assert topic["partitions"] == {"0": [3], "1": [3]}
        state = json.loads(kazoo.get("/brokers/topics/orders/partitions/1/state")[0])
        assert (state["leader"], state["isr"]) == (3, [3])
        assert json.loads(kazoo.get("/config/topics/orders")[0])["config"] == {"retention.ms": "1000"}
        admin.delete_topics(["orders"])
        assert kazoo.exists("/brokers/topics/orders") is None
        broker.stop()
        assert kazoo.exists("/brokers/ids/3") is None
        assert kazoo.exists("/controller") is None


def test_rejects_topic_names_that_no_node_can_have(address: str) -> None:
    with Broker(settings(address)) as broker, Admin(broker.bootstrap) as admin:
        for name in ("", ".", "..", "/", "a/../b"):
            with pytest.raises(ClientError, match="INVALID_TOPIC_EXCEPTION"):
                admin.create_topic(name, 1)


def test_generates_a_broker_id_like_kafka(address: str, kazoo: Any, tmp_path: Path) -> None:
    keys = settings(address)
    del keys["broker.id"]
    with Broker(keys, data_dir=tmp_path / "data") as broker:
        assert kazoo.get_children("/brokers/ids") == ["1001"]
        broker.restart()
        assert kazoo.get_children("/brokers/ids") == ["1001"]


def test_a_killed_broker_registers_when_its_former_session_has_expired(address: str) -> None:
    # The session must exist until the new process registers, which takes some time on a busy machine.
    with Broker(settings(address, **{"zookeeper.session.timeout.ms": "8000"})) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("kept", 3)
        broker.kill()
        broker.start()
        assert "/brokers/ids/3 exists" in broker.log
        with Admin(broker.bootstrap) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["kept"]


async def test_a_broker_registers_again_when_its_session_has_expired(
    address: str, kazoo: Any, tmp_path: Path, expire: Callable[[ZooKeeperStore], None]
) -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")}
    async with running(BrokerConfig.of(settings(address, **listeners))) as server:
        _, before = kazoo.get("/brokers/ids/3")
        epoch = int(kazoo.get("/controller_epoch")[0])
        await asyncio.to_thread(expire, server.broker.store)
        await until(lambda: int(kazoo.get("/controller_epoch")[0]) > epoch)
        _, after = kazoo.get("/brokers/ids/3")
        assert after.czxid > before.czxid
        assert after.ephemeralOwner == server.broker.store.session_id
        (outcome,) = await server.broker.controller.admin_manager.create_topics([NewTopic("still", 1)])
        assert outcome.error is None
        assert kazoo.exists("/brokers/topics/still") is not None


def test_a_broker_registers_again_after_a_long_pause(address: str, kazoo: Any) -> None:
    with Broker(settings(address, **{"zookeeper.session.timeout.ms": "1000"})) as broker:
        _, before = kazoo.get("/brokers/ids/3")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            asyncio.run(until(lambda: kazoo.exists("/brokers/ids/3") is None))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        asyncio.run(until(lambda: "registered again" in broker.log))
        _, after = kazoo.get("/brokers/ids/3")
        assert after.czxid > before.czxid
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("afterwards", 1)
        assert kazoo.exists("/brokers/topics/afterwards") is not None


def test_serves_records_without_zookeeper() -> None:
    with ZooKeeper() as server, Broker(settings(server.address)) as broker:
        producer = Producer(broker.bootstrap)
        with Admin(broker.bootstrap) as admin, producer:
            admin.create_topic("t", 1)
            producer.send("t", b"before").result(WAIT_S)
            server.kill()
            producer.send("t", b"during").result(WAIT_S)
            with pytest.raises(ClientError, match="KAFKA_STORAGE_ERROR"):
                admin.create_topic("no", 1)
            server.start()
            asyncio.run(until(lambda: "the coordination store responds again" in broker.log))
            admin.create_topic("yes", 1)
            assert sorted(topic.name for topic in admin.list_topics()) == ["t", "yes"]
            producer.send("t", b"after").result(WAIT_S)


def test_new_producers_receive_ids_without_zookeeper() -> None:
    with ZooKeeper() as server, Broker(settings(server.address)) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1)
        client = KazooClient(server.address)
        client.start()
        asyncio.run(until(lambda: b"block_end" in client.get("/latest_producer_id_block")[0]))
        client.stop()
        client.close()
        server.kill()
        with Producer(broker.bootstrap, enable_idempotence=True) as producer:
            assert producer.send("t", b"first").result(WAIT_S).offset == 0


def test_rejects_a_second_broker_with_an_id_and_names_the_next_step(address: str, tmp_path: Path) -> None:
    with Broker({**settings(address), "broker.id": 4}):
        line = refused(address, tmp_path, "zookeeper.session.timeout.ms=800", "broker.id=4")
    assert "/brokers/ids/4 exists" in line
    assert "its own broker.id" in line


def test_an_unreachable_zookeeper_is_reported_in_one_line(tmp_path: Path) -> None:
    began = time.monotonic()
    line = refused("127.0.0.1:1", tmp_path, "zookeeper.connection.timeout.ms=500")
    assert "127.0.0.1:1 does not respond" in line
    assert "refused" in line
    assert "correct zookeeper.connect" in line
    assert time.monotonic() - began < WAIT_S


@pytest.mark.parametrize("connect", ["host:port", "a b:2181", "h:2181//x", ":2181", "h:99999"])
def test_an_invalid_address_is_reported_in_one_line(connect: str, tmp_path: Path) -> None:
    line = refused(connect, tmp_path)
    assert f"zookeeper.connect={connect}" in line
    assert "host:port" in line
