"""One unreadable node in ZooKeeper: it is reported, and all other nodes are loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, Delete, SetData, ensure_paths
from tidemill.coordination.nodes import (
    BrokerNode,
    BrokerRegistration,
    ConfigNode,
    Endpoint,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore

TOPIC, STATE = "/brokers/topics/bad", "/brokers/topics/bad/partitions/1/state"
TOPIC_CONFIG, BROKER_CONFIG, BROKER = "/config/topics/bad", "/config/brokers/7", "/brokers/ids/7"
DEEP = b"[" * 100_000


def bad(path: str, *data: bytes) -> list[tuple[str, bytes]]:
    return [(path, one) for one in data]


UNREADABLE = [
    *bad(
        TOPIC,
        b"",
        b"{",
        b"[]",
        b"\xff",
        DEEP,
        b'{"version":3}',
        b'{"version":4,"partitions":{"0":[1],"1":[1]}}',
        b'{"version":"new","partitions":{"0":[1],"1":[1]}}',
        b'{"version":3,"partitions":[]}',
        b'{"version":3,"partitions":{"0":[1],"-1":[1]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[-1]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[1,1]}}',
        b'{"version":3,"partitions":{"0":[1],"1":["x"]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[1.5]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[99999999999]}}',
        b'{"version":3,"partitions":{"0":[1],"2":[1]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[1]},"adding_replicas":{"0":[-3]}}',
        b'{"version":3,"partitions":{"0":[1],"1":[1]},"topic_id":"short"}',
    ),
    *bad(
        STATE,
        b"",
        b"{",
        b'{"version":1,"leader":1}',
        b'{"version":2,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":1}',
        b'{"version":1,"leader":-2,"leader_epoch":0,"isr":[1],"controller_epoch":1}',
        b'{"version":1,"leader":1,"leader_epoch":-1,"isr":[1],"controller_epoch":1}',
        b'{"version":1,"leader":1,"leader_epoch":0,"isr":[-1],"controller_epoch":1}',
        b'{"version":1,"leader":1,"leader_epoch":0,"isr":"all","controller_epoch":1}',
        b'{"version":1,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":-7}',
        b'{"version":1,"leader":true,"leader_epoch":0,"isr":[1],"controller_epoch":1}',
    ),
    *(
        (path, data)
        for path in (TOPIC_CONFIG, BROKER_CONFIG)
        for data in (
            b"{",
            b"7",
            b'{"version":2,"config":{}}',
            b'{"version":-1,"config":{}}',
            b'{"version":1,"config":[]}',
            b'{"version":1,"config":{"retention.ms":null}}',
        )
    ),
    *bad(
        BROKER,
        b"",
        b"{",
        b"{}",
        b'{"version":6,"endpoints":["PLAINTEXT://h:9092"]}',
        b'{"version":0,"host":"h","port":9092}',
        b'{"version":5}',
        b'{"version":5,"endpoints":[7]}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:-1"]}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:70000"]}',
        b'{"version":5,"endpoints":["OWN://h:9092"],"listener_security_protocol_map":{"OWN":"ROT13"}}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:9092"],"listener_security_protocol_map":[1]}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:9092"],"rack":[1]}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:9092"],"features":[1]}',
        b'{"version":1,"host":"h","port":"here"}',
    ),
    ("/brokers/ids/-1", BrokerNode.encode(BrokerRegistration(1, ()))),
    ("/brokers/ids/seven", BrokerNode.encode(BrokerRegistration(1, ()))),
    ("/brokers/topics/not legal", b'{"version":3,"partitions":{"0":[1]}}'),
]

STATE_READABLE = PartitionStateNode.encode(LeaderIsrAndControllerEpoch(1, 4, [1], 2))
READABLE = {
    path: data
    for name in ("bad", "good")
    for path, data in {
        TopicNode.path(name): TopicNode.encode(TopicAssignment(name.encode().ljust(16), {0: [1], 1: [1]})),
        PartitionStateNode.path(name, 0): STATE_READABLE,
        PartitionStateNode.path(name, 1): STATE_READABLE,
        ConfigNode.path("topics", name): ConfigNode.encode({"retention.ms": "9"}),
    }.items()
} | {
    path: data
    for number in (1, 7)
    for path, data in {
        BrokerNode.path(number): BrokerNode.encode(
            BrokerRegistration(number, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),))
        ),
        ConfigNode.path("brokers", str(number)): ConfigNode.encode({"message.max.bytes": "9"}),
    }.items()
}


def kind_and_name(path: str) -> tuple[str, str]:
    parts = path.split("/")
    if path.startswith("/config/brokers/"):
        return "config/brokers", parts[3]
    return ("ids" if path.startswith("/brokers/ids/") else "topics"), parts[3]


def check_rest(image: ClusterImage, spoilt: str) -> None:
    """Checks that everything except the unreadable node is loaded."""
    kind, name = kind_and_name(spoilt)
    assert sorted(image.topics) == (["good"] if name == "bad" else ["bad", "good"])
    assert [p.leader_epoch for p in image.topics["good"].partitions] == [4, 4]
    assert image.topics["good"].config == {"retention.ms": "9"}
    assert list(image.brokers) == ([1] if (kind, name) == ("ids", "7") else [1, 7])
    assert image.broker_config(1) == {"message.max.bytes": "9"}
    if kind == "config/brokers":
        assert image.broker_config(7)["log.retention.ms"] == "-1"


async def test_an_unreadable_node_affects_no_other_node(zookeeper: Callable[..., ZooKeeperSettings]) -> None:
    store = await ZooKeeperStore.open(zookeeper())
    for path, data in READABLE.items():
        await ensure_paths(store, [path])
        await store.transact([SetData(path, data)])
    whole = await load_image(store)
    assert not whole.unreadable
    assert (list(whole.topics), list(whole.brokers)) == (["bad", "good"], [1, 7])
    for path, data in UNREADABLE:
        made = not await store.exists(path)
        await store.transact([Create(path, data) if made else SetData(path, data)])
        image = await load_image(store)
        assert list(image.unreadable) == [kind_and_name(path)], (path, data[:99])
        problem = image.unreadable[kind_and_name(path)]
        assert (problem.path, str(problem).startswith(f"{path} holds ")) == (path, True)
        step = "Correct or remove" if path.startswith("/config/") else "Correct"
        assert str(problem).endswith(f". {step} the node.")
        assert len(str(problem)) < 1000
        check_rest(image, path)
        await store.transact([SetData(path, READABLE.get(path, data))])
        if made:
            await remove(store, path)
    assert not (await load_image(store)).unreadable
    await store.close()


async def remove(store: ZooKeeperStore, path: str) -> None:
    await store.transact([Delete(path)])


async def test_a_known_broker_with_an_unreadable_node_stays_while_its_session_is_the_same(
    zookeeper: Callable[..., ZooKeeperSettings],
) -> None:
    store = await ZooKeeperStore.open(zookeeper())
    for path in (BrokerNode.path(1), BrokerNode.path(7)):
        await ensure_paths(store, [path])
        await store.transact([SetData(path, READABLE[path])])
    known = (await load_image(store)).brokers
    await store.transact([SetData(BROKER, b"{")])
    image = await load_image(store, known)
    assert image.brokers[7] is known[7]
    assert list(image.unreadable) == [("ids", "7")]
    await remove(store, BROKER)
    await store.transact([Create(BROKER, b"{")])
    assert list((await load_image(store, known)).brokers) == [1]
    await store.close()


@pytest.mark.parametrize("name", ["bad", "good"])
async def test_a_deletion_mark_does_not_delete_an_unreadable_topic(
    zookeeper: Callable[..., ZooKeeperSettings], name: str
) -> None:
    store = await ZooKeeperStore.open(zookeeper())
    for path, data in READABLE.items():
        await ensure_paths(store, [path])
        await store.transact([SetData(path, data)])
    await store.transact([SetData(STATE, b"{")])
    await ensure_paths(store, [f"/admin/delete_topics/{name}"])
    image = await load_image(store)
    assert list(image.deleting) == ([] if name == "bad" else ["good"])
    assert list(image.unreadable) == [("topics", "bad")]
    await store.close()
