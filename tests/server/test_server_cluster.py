"""Three broker processes on a ZooKeeper server, with real clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, produce, start_cluster, until
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from wire_peer import WirePeer

from tidemill.client import ClientError, ConfigResource, ResourceType
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.model.errors import ErrorCode
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_config_resources import ListConfigResourcesRequest
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers for all tests of this module. Each test leaves them running."""
    with start_cluster(f"{zookeeper_server.address}/test-cluster") as found:
        yield found


def consume(cluster: Brokers, topic: str, count: int, group: str) -> list[int]:
    """The first ``count`` numbers of a topic, read and committed by a member of ``group``."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values: list[int] = []
    try:
        until(lambda: _poll(consumer, values) >= count, f"{count} messages of {topic}")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def _poll(consumer: Consumer, values: list[int]) -> int:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        values.append(int(message.value() or b""))
    return len(values)


def test_a_topic_created_at_any_broker_is_known_to_all_and_replicated(cluster: Brokers) -> None:
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            admin.create_topic(f"asked-{number}", 3, 3)
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            for described in admin.describe_topics([f"asked-{one}" for one in cluster.brokers]).values():
                assert sorted(one.leader for one in described.partitions) == [1, 2, 3]
                assert all(sorted(one.isr) == [1, 2, 3] for one in described.partitions)
    assert produce(cluster, "asked-1", range(100)) == list(range(100))
    assert consume(cluster, "asked-1", 100, "asked") == list(range(100))
    with cluster.admin() as admin:
        admin.delete_topic("asked-2")
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            assert "asked-2" not in {topic.name for topic in admin.list_topics()}


def test_the_controller_creates_topics_automatically(cluster: Brokers) -> None:
    for number, broker in cluster.brokers.items():
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
        producer.produce(f"automatic-{number}", b"1")
        assert producer.flush(30) == 0


def test_a_config_change_at_one_broker_applies_to_all(cluster: Brokers) -> None:
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            admin.create_topic(f"set-{number}", 1, 3)
            admin.alter_configs(
                ConfigResource(ResourceType.TOPIC, f"set-{number}"), {"retention.ms": str(number)}
            )
    for number in cluster.brokers:
        with cluster.admin(number) as admin:
            for topic in cluster.brokers:
                until(
                    lambda topic=topic, admin=admin: (  # type: ignore[misc]
                        admin.topic_configs(f"set-{topic}")["retention.ms"].value == str(topic)
                    ),
                    f"broker {number} knows the settings of set-{topic}",
                )


def test_a_group_config_change_at_one_broker_applies_to_all(cluster: Brokers) -> None:
    key = "consumer.session.timeout.ms"
    groups = {number: ConfigResource(ResourceType.GROUP, f"team {number}/50%") for number in cluster.brokers}
    for number, group in groups.items():
        with cluster.admin(number) as admin:
            admin.alter_configs(group, {key: str(45_000 + number)})
            with pytest.raises(ClientError, match="at least group"):
                admin.alter_configs(group, {key: "1"})

    def group_config(broker: int, group: ConfigResource) -> tuple[str | None, str]:
        with cluster.admin(broker) as admin:
            entry = admin.describe_configs(group, [key], broker=broker)[key]
            return entry.value, entry.source

    for broker in cluster.brokers:
        for number, group in groups.items():
            expected = (str(45_000 + number), "group")
            until(
                lambda broker=broker, group=group, expected=expected: (  # type: ignore[misc]
                    group_config(broker, group) == expected
                ),
                f"broker {broker} knows the settings of group {number}",
            )
    cluster.brokers[2].stop()
    cluster.brokers[2].start()
    assert group_config(2, groups[1]) == ("45001", "group")
    with cluster.admin(2) as admin:
        admin.alter_configs(groups[1], remove=[key])
    # The brokers read the change from ZooKeeper at different times.
    for broker in cluster.brokers:
        until(
            lambda broker=broker: group_config(broker, groups[1]) == ("45000", "default"),  # type: ignore[misc]
            f"broker {broker} knows that the settings of group 1 were reset",
        )
    listed = ListConfigResourcesRequest(resource_types=[ResourceType.GROUP])
    for process in cluster.brokers.values():
        with WirePeer(process.bootstrap) as peer:
            answer = peer.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, listed)
            names = sorted(one.resource_name for one in answer.config_resources)
            assert names == ["team 2/50%", "team 3/50%"]


def test_topics_written_to_zookeeper_are_created_extended_and_deleted(cluster: Brokers) -> None:
    address, _, path = cluster.address.partition("/")
    client = KazooClient(address)
    client.start()
    client.chroot = f"/{path}"
    try:
        node = {"version": 1, "partitions": {"0": [2, 3]}}
        client.create("/config/topics/written", b'{"version":1,"config":{"retention.ms":"77777"}}')
        client.create("/brokers/topics/written", json.dumps(node).encode())
        until(lambda: _partitions(cluster, "written") == [[2, 3]], "the topic is created")
        assert produce(cluster, "written", range(3)) == [0, 1, 2]
        with cluster.admin(1) as admin:
            assert admin.topic_configs("written")["retention.ms"].value == "77777"
        data, _ = client.get("/brokers/topics/written")
        grown = json.loads(data)
        assert grown["topic_id"]
        grown["partitions"]["1"] = [3, 1]
        client.set("/brokers/topics/written", json.dumps(grown).encode())
        until(lambda: _partitions(cluster, "written") == [[2, 3], [3, 1]], "the partition is created")
        assert produce(cluster, "written", range(3), 1) == [0, 1, 2]
        client.create("/admin/delete_topics/written")
        until(lambda: client.exists("/brokers/topics/written") is None, "the topic is deleted")
        client.create("/admin/delete_topics/never-there")
        until(lambda: client.exists("/admin/delete_topics/never-there") is None, "the mark is removed")
    finally:
        client.stop()
        client.close()


def _partitions(cluster: Brokers, topic: str) -> list[list[int]]:
    """The replicas of the partitions with a leader, from any broker."""
    with cluster.admin() as admin:
        if topic not in {one.name for one in admin.list_topics()}:
            return []
        return [one.replicas for one in admin.describe_topic(topic).partitions if one.leader >= 0]


def test_another_broker_leads_after_a_kill_until_the_leader_returns(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("killed", 1, 3)
        victim = admin.describe_topic("killed").partitions[0].leader
    assert produce(cluster, "killed", range(50)) == list(range(50))
    assert consume(cluster, "killed", 10, "killed")[:10] == list(range(10))
    cluster.brokers[victim].kill()
    assert produce(cluster, "killed", range(50, 100)) == list(range(50, 100))
    assert cluster.leaders("killed") != [victim]
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC"), cluster.admin(_other(cluster, victim)) as admin:
        admin.delete_topic("never-there")
    cluster.brokers[victim].start()

    def in_sync() -> bool:
        with cluster.admin(victim) as admin:
            return sorted(admin.describe_topic("killed").partitions[0].isr) == [1, 2, 3]

    until(in_sync, "the killed broker is in sync again")
    assert consume(cluster, "killed", 100, "killed-again") == list(range(100))


def test_a_stopping_broker_returns_committed_offsets_without_error(cluster: Brokers) -> None:
    # A consumer of librdkafka 2.16 does not repeat the request after NOT_COORDINATOR. It does after
    # the end of the connection.
    assert produce(cluster, "asked", range(5)) == list(range(5))
    assert consume(cluster, "asked", 5, "asking") == list(range(5))
    with WirePeer(cluster.bootstrap.split(",")[0]) as peer:
        coordinator = peer.ask(ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="asking")).node_id
    stopped = cluster.brokers[coordinator]
    errors: list[int] = []
    stopping = threading.Thread(target=stopped.stop)

    def ask_until_closed(peer: WirePeer) -> None:
        request = OffsetFetchRequest(group_id="asking", topics=None)
        while True:
            errors.append(peer.ask(ApiKey.OFFSET_FETCH, 5, request).error_code)
            if len(errors) == 1:
                stopping.start()

    with WirePeer(stopped.bootstrap) as peer:
        with pytest.raises(OSError, match=r"closed|reset|Broken pipe"):
            ask_until_closed(peer)
        stopping.join()
    stopped.start()
    assert set(errors) == {ErrorCode.NONE}
    cluster.until_in_sync(OFFSETS_TOPIC, [1, 2, 3])


def _other(cluster: Brokers, number: int) -> int:
    return next(one for one in cluster.brokers if one != number)


def test_a_topic_is_deleted_everywhere_after_a_stopped_broker_returns(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("doomed", 2, 3)
    cluster.brokers[2].kill()
    with cluster.admin(1, 3) as admin:
        admin.delete_topic("doomed")
        assert "doomed" not in {topic.name for topic in admin.list_topics()}
        with pytest.raises(ClientError, match="still being deleted"):
            admin.create_topic("doomed", 1, 3)
    cluster.brokers[2].start()

    def is_created() -> bool:
        try:
            with cluster.admin() as admin:
                admin.create_topic("doomed", 1, 3)
        except ClientError:
            return False
        return True

    until(is_created, "the name is free again")
    assert produce(cluster, "doomed", range(5)) == list(range(5))


def test_other_brokers_lead_the_partitions_of_a_failed_data_directory(
    cluster: Brokers, tmp_path: Path
) -> None:
    with cluster.admin() as admin:
        admin.create_topic("burnt", 6, 3)
        led = [one.partition for one in admin.describe_topic("burnt").partitions if one.leader == 3]
    assert produce(cluster, "burnt", range(10), led[0]) == list(range(10))
    moved = tmp_path / "moved-away"
    directory = Path(cluster.brokers[3].data_dir)
    directory.rename(moved)
    until(lambda: 3 not in cluster.leaders("burnt"), "others lead what broker 3 led")
    assert produce(cluster, "burnt", range(10), led[0]) == list(range(10, 20))
    cluster.brokers[3].kill()
    moved.rename(directory)
    cluster.brokers[3].start()

    def in_sync() -> bool:
        with cluster.admin() as admin:
            return all(len(one.isr) == 3 for one in admin.describe_topic("burnt").partitions)

    until(in_sync, "broker 3 has caught up")
