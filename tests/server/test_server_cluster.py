"""Three brokers on ZooKeeper: real processes, a real server, real clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_stage import Stage, cluster, produce, until
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from wire_peer import WirePeer

from tidemill.client import ClientError, ConfigResource, ResourceType
from tidemill.groups.ports import OFFSETS_TOPIC
from tidemill.model.errors import ErrorCode
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_config_resources import ListConfigResourcesRequest
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest


@pytest.fixture(scope="module")
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers for the tests of this module; each leaves all of them running."""
    with cluster(f"{zookeeper_server.address}/test-cluster") as found:
        yield found


def consume(stage: Stage, topic: str, count: int, group: str) -> list[int]:
    """The first so many numbers of a topic, read as a member of ``group``, and committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
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


def test_what_is_asked_of_any_broker_is_known_to_all_and_replicated(stage: Stage) -> None:
    for number in stage.brokers:
        with stage.admin(number) as admin:
            admin.create_topic(f"asked-{number}", 3, 3)
    for number in stage.brokers:
        with stage.admin(number) as admin:
            for described in admin.describe_topics([f"asked-{one}" for one in stage.brokers]).values():
                assert sorted(one.leader for one in described.partitions) == [1, 2, 3]
                assert all(sorted(one.isr) == [1, 2, 3] for one in described.partitions)
    assert produce(stage, "asked-1", range(100)) == list(range(100))
    assert consume(stage, "asked-1", 100, "asked") == list(range(100))
    with stage.admin() as admin:
        admin.delete_topic("asked-2")
    for number in stage.brokers:
        with stage.admin(number) as admin:
            assert "asked-2" not in {topic.name for topic in admin.list_topics()}


def test_a_topic_that_a_client_asks_for_is_made_by_the_controller(stage: Stage) -> None:
    for number, broker in stage.brokers.items():
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
        producer.produce(f"automatic-{number}", b"1")
        assert producer.flush(30) == 0


def test_settings_that_one_broker_changed_hold_on_all(stage: Stage) -> None:
    for number in stage.brokers:
        with stage.admin(number) as admin:
            admin.create_topic(f"set-{number}", 1, 3)
            admin.alter_configs(
                ConfigResource(ResourceType.TOPIC, f"set-{number}"), {"retention.ms": str(number)}
            )
    for number in stage.brokers:
        with stage.admin(number) as admin:
            for topic in stage.brokers:
                until(
                    lambda topic=topic, admin=admin: (  # type: ignore[misc]
                        admin.topic_configs(f"set-{topic}")["retention.ms"].value == str(topic)
                    ),
                    f"broker {number} knows the settings of set-{topic}",
                )


def test_settings_of_a_group_that_one_broker_changed_hold_on_all(stage: Stage) -> None:
    key = "consumer.session.timeout.ms"
    groups = {number: ConfigResource(ResourceType.GROUP, f"team {number}/50%") for number in stage.brokers}
    for number, group in groups.items():
        with stage.admin(number) as admin:
            admin.alter_configs(group, {key: str(45_000 + number)})
            with pytest.raises(ClientError, match="at least group"):
                admin.alter_configs(group, {key: "1"})

    def told(broker: int, group: ConfigResource) -> tuple[str | None, str]:
        with stage.admin(broker) as admin:
            entry = admin.describe_configs(group, [key], broker=broker)[key]
            return entry.value, entry.source

    for broker in stage.brokers:
        for number, group in groups.items():
            expected = (str(45_000 + number), "group")
            until(
                lambda broker=broker, group=group, expected=expected: (  # type: ignore[misc]
                    told(broker, group) == expected
                ),
                f"broker {broker} knows the settings of group {number}",
            )
    stage.brokers[2].stop()
    stage.brokers[2].start()
    assert told(2, groups[1]) == ("45001", "group")
    with stage.admin(2) as admin:
        admin.alter_configs(groups[1], remove=[key])
    # Each broker receives the change from ZooKeeper at its own time.
    for broker in stage.brokers:
        until(
            lambda broker=broker: told(broker, groups[1]) == ("45000", "default"),  # type: ignore[misc]
            f"broker {broker} knows that the settings of group 1 were reset",
        )
    listed = ListConfigResourcesRequest(resource_types=[ResourceType.GROUP])
    for process in stage.brokers.values():
        with WirePeer(process.bootstrap) as peer:
            answer = peer.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, listed)
            names = sorted(one.resource_name for one in answer.config_resources)
            assert names == ["team 2/50%", "team 3/50%"]


def test_topics_that_are_written_to_the_store_are_made_grown_and_deleted(stage: Stage) -> None:
    address, _, path = stage.address.partition("/")
    client = KazooClient(address)
    client.start()
    client.chroot = f"/{path}"
    try:
        node = {"version": 1, "partitions": {"0": [2, 3]}}
        client.create("/config/topics/written", b'{"version":1,"config":{"retention.ms":"77777"}}')
        client.create("/brokers/topics/written", json.dumps(node).encode())
        until(lambda: _partitions(stage, "written") == [[2, 3]], "the topic is made")
        assert produce(stage, "written", range(3)) == [0, 1, 2]
        with stage.admin(1) as admin:
            assert admin.topic_configs("written")["retention.ms"].value == "77777"
        data, _ = client.get("/brokers/topics/written")
        grown = json.loads(data)
        assert grown["topic_id"]
        grown["partitions"]["1"] = [3, 1]
        client.set("/brokers/topics/written", json.dumps(grown).encode())
        until(lambda: _partitions(stage, "written") == [[2, 3], [3, 1]], "the partition is made")
        assert produce(stage, "written", range(3), 1) == [0, 1, 2]
        client.create("/admin/delete_topics/written")
        until(lambda: client.exists("/brokers/topics/written") is None, "the topic is deleted")
        client.create("/admin/delete_topics/never-there")
        until(lambda: client.exists("/admin/delete_topics/never-there") is None, "the mark is removed")
    finally:
        client.stop()
        client.close()


def _partitions(stage: Stage, topic: str) -> list[list[int]]:
    """The replicas of a topic's partitions that are led, as some broker tells."""
    with stage.admin() as admin:
        if topic not in {one.name for one in admin.list_topics()}:
            return []
        return [one.replicas for one in admin.describe_topic(topic).partitions if one.leader >= 0]


def test_a_killed_leader_is_followed_by_another_and_comes_back(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.create_topic("killed", 1, 3)
        victim = admin.describe_topic("killed").partitions[0].leader
    assert produce(stage, "killed", range(50)) == list(range(50))
    assert consume(stage, "killed", 10, "killed")[:10] == list(range(10))
    stage.brokers[victim].kill()
    assert produce(stage, "killed", range(50, 100)) == list(range(50, 100))
    assert stage.leaders("killed") != [victim]
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC"), stage.admin(_other(stage, victim)) as admin:
        admin.delete_topic("never-there")
    stage.brokers[victim].start()

    def in_sync() -> bool:
        with stage.admin(victim) as admin:
            return sorted(admin.describe_topic("killed").partitions[0].isr) == [1, 2, 3]

    until(in_sync, "the killed broker is in sync again")
    assert consume(stage, "killed", 100, "killed-again") == list(range(100))


def test_positions_asked_of_a_broker_that_stops_come_with_no_error(stage: Stage) -> None:
    # Told that the group has moved, a consumer of librdkafka 2.16 would never ask again: the connection that
    # ends makes it ask.
    assert produce(stage, "asked", range(5)) == list(range(5))
    assert consume(stage, "asked", 5, "asking") == list(range(5))
    with WirePeer(stage.bootstrap.split(",")[0]) as peer:
        coordinator = peer.ask(ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="asking")).node_id
    stopped = stage.brokers[coordinator]
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
    stage.until_in_sync(OFFSETS_TOPIC, [1, 2, 3])


def _other(stage: Stage, number: int) -> int:
    return next(one for one in stage.brokers if one != number)


def test_a_topic_is_deleted_everywhere_once_a_dead_replica_has_come_back(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.create_topic("doomed", 2, 3)
    stage.brokers[2].kill()
    with stage.admin(1, 3) as admin:
        admin.delete_topic("doomed")
        assert "doomed" not in {topic.name for topic in admin.list_topics()}
        with pytest.raises(ClientError, match="still being deleted"):
            admin.create_topic("doomed", 1, 3)
    stage.brokers[2].start()

    def made() -> bool:
        try:
            with stage.admin() as admin:
                admin.create_topic("doomed", 1, 3)
        except ClientError:
            return False
        return True

    until(made, "the name is free again")
    assert produce(stage, "doomed", range(5)) == list(range(5))


def test_what_a_failed_data_directory_held_is_led_by_others(stage: Stage, tmp_path: Path) -> None:
    with stage.admin() as admin:
        admin.create_topic("burnt", 6, 3)
        led = [one.partition for one in admin.describe_topic("burnt").partitions if one.leader == 3]
    assert produce(stage, "burnt", range(10), led[0]) == list(range(10))
    moved = tmp_path / "moved-away"
    directory = Path(stage.brokers[3].data_dir)
    directory.rename(moved)
    until(lambda: 3 not in stage.leaders("burnt"), "others lead what broker 3 led")
    assert produce(stage, "burnt", range(10), led[0]) == list(range(10, 20))
    stage.brokers[3].kill()
    moved.rename(directory)
    stage.brokers[3].start()

    def in_sync() -> bool:
        with stage.admin() as admin:
            return all(len(one.isr) == 3 for one in admin.describe_topic("burnt").partitions)

    until(in_sync, "broker 3 has caught up")
