"""The broker is stopped or killed during the work of clients, which continue where they were."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from client_peers import PATIENCE_S
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from group_members import MEMBERS, wait_for_shares, wait_until

from tidemill.testing import Broker

PARTITIONS = 4
TOPIC = "kept"

ENDINGS = ["stopped", "killed"]


@pytest.fixture
def broker(own_broker: Broker) -> Iterator[Broker]:
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    yield own_broker
    gc.collect()  # Sockets that clients did not close are collected here, where the warning is expected.


def restart(broker: Broker, ending: str) -> None:
    if ending == "stopped":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()


class Writer:
    """Writes numbers with an idempotent producer until it is stopped; records the acknowledged numbers."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            for _ in range(20):
                value = b"%d" % number
                self.producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self.delivered)
                number += 1
            self.producer.poll(0.01)

    def delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.failures.append(str(error))

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(PATIENCE_S)
        assert self.producer.flush(PATIENCE_S) == 0
        assert self.failures == []


def read_everything(bootstrap: str) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checks", "log_level": 0})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, one), timeout=20)[1] for one in range(PARTITIONS)
    ]
    consumer.assign([TopicPartition(TOPIC, one, 0) for one in range(PARTITIONS)])
    found: Counter[int] = Counter()
    wait_until(
        lambda: (
            found.update(int(one.value()) for one in consumer.consume(1000, 0.5))
            or found.total() >= sum(ends)
        ),
        "everything read",
    )
    consumer.close()
    return found


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_idempotent_producer_causes_no_loss_and_no_duplicates(broker: Broker, ending: str) -> None:
    writer = Writer(broker.bootstrap)
    for _ in range(2):
        before = len(writer.acknowledged)
        wait_until(lambda before=before: len(writer.acknowledged) > before + 500, "written")  # type: ignore[misc]
        restart(broker, ending)
    before = len(writer.acknowledged)
    wait_until(lambda: len(writer.acknowledged) > before + 500, "written again")
    writer.stop()
    found = read_everything(broker.bootstrap)
    assert set(found) == writer.acknowledged
    assert set(found.values()) == {1}


@pytest.mark.parametrize("client", MEMBERS)
def test_a_group_continues_after_a_restart_of_the_broker(broker: Broker, client: str) -> None:
    kind = MEMBERS[client]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def write(first: int) -> None:
        for number in range(first, first + 100):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0

    with (
        kind(broker.bootstrap, "readers", [TOPIC], "range") as first,
        kind(broker.bootstrap, "readers", [TOPIC], "range") as second,
    ):
        wait_for_shares([first, second], TOPIC, PARTITIONS)
        write(0)
        wait_until(lambda: len(first.read) + len(second.read) >= 100, "read", first, second)
        broker.restart()
        write(100)
        wait_until(lambda: len({*first.read, *second.read}) == 200, "read after the restart", first, second)
        wait_for_shares([first, second], TOPIC, PARTITIONS)
        first.stop()
        second.stop()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    assert admin.describe_consumer_groups(["readers"])["readers"].result(20).state.name == "EMPTY"


def described(bootstrap: str) -> tuple[str, list[str]]:
    """Returns state and members of the group. Uses a new client: librdkafka may hang after it lost its
    broker.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    group = admin.describe_consumer_groups(["members"])["members"].result(20)
    return group.state.name, [one.member_id for one in group.members]


@pytest.mark.parametrize("ending", ENDINGS)
def test_offsets_and_static_members_survive_a_restart(broker: Broker, ending: str) -> None:
    kind = MEMBERS["confluent-kafka"]
    committer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "offsets", "log_level": 0})
    committer.commit(offsets=[TopicPartition(TOPIC, 1, 17, metadata="a note")], asynchronous=False)
    committer.close()
    with kind(broker.bootstrap, "members", [TOPIC], "range", "one") as member:
        wait_for_shares([member], TOPIC, PARTITIONS)
        before = described(broker.bootstrap)
        assert before[0] == "STABLE"
        restart(broker, ending)
        began = time.monotonic()
        wait_until(lambda: described(broker.bootstrap) == before, "the group as it was", member)
        assert time.monotonic() - began < 10
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "offsets", "log_level": 0})
    (found,) = reader.committed([TopicPartition(TOPIC, 1)], timeout=20)
    reader.close()
    assert (found.offset, found.metadata) == (17, "a note")


def test_topics_and_their_settings_survive_a_restart(broker: Broker) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    entry = ConfigEntry("retention.ms", "12345678", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    topic_id = str(admin.list_topics(timeout=20).cluster_id)
    broker.restart()
    again = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    plain = ConfigResource(ResourceType.TOPIC, TOPIC)
    assert again.describe_configs([plain])[plain].result(20)["retention.ms"].value == "12345678"
    assert str(again.list_topics(timeout=20).cluster_id) == topic_id
    assert len(again.list_topics(timeout=20).topics[TOPIC].partitions) == PARTITIONS


@pytest.mark.parametrize("ending", ENDINGS)
def test_deleted_records_stay_deleted(broker: Broker, ending: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(10):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(20) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    place = TopicPartition(TOPIC, 0, 4)
    assert admin.delete_records([place])[place].result(20).low_watermark == 4
    restart(broker, ending)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    assert consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), 20) == (4, 10)
    consumer.assign([TopicPartition(TOPIC, 0, 4)])
    found = consumer.consume(6, PATIENCE_S)
    assert [(one.offset(), one.value()) for one in found] == [(at, b"%d" % at) for at in range(4, 10)]
    consumer.close()
