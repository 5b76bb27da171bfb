"""A cluster on ZooKeeper moves from Apache Kafka 3.9 to Tidemill, and from Tidemill to Kafka."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from broker_cluster import zookeeper_client
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from kafka_peer import CODECS, OFFSETS_TOPIC, check_same, fill, free_ports, see, wait_led
from kafka_trio import all_gone, kafka_trio, lagging, states, until
from kazoo.client import KazooClient
from transaction_states import (
    BEFORE,
    STUCK,
    TIMEOUT_S,
    Live,
    begin,
    check_continued,
    create_topic,
    describe,
    finish,
    producer_of,
    wait_prepared,
    write,
    write_states,
)
from transaction_states import TOPIC as STATES

from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "1000",
}


@contextmanager
def ours(
    address: str,
    directories: dict[int, Path],
    settings: Mapping[str, str] | None = None,
    ports: Mapping[int, int] | None = None,
) -> Iterator[dict[int, Broker]]:
    """Three Tidemill brokers with these directories, on free ports unless given."""
    others = settings or {}
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                Broker(
                    {**SETTINGS, **others, "zookeeper.connect": address, "node.id": str(number)},
                    data_dir=data,
                    port=(ports or {}).get(number, 0),
                    timeout_s=120,
                )
            )
            for number, data in directories.items()
        }


def all_addresses(brokers: dict[int, Broker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers.values())


def write_more(bootstrap: str, topic: str, count: int) -> None:
    """Writes with acks=all; fails unless every message is acknowledged."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(
            topic, b"later %d" % number, partition=0, on_delivery=lambda error, message: errors.append(error)
        )
    assert producer.flush(60) == 0
    assert errors == [None] * count


def content(data: Path, partition: str) -> bytes:
    """Returns all batches of a replica."""
    return b"".join(path.read_bytes() for path in sorted((data / partition).glob("*.log")))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_three_tidemill_brokers_serve_the_data_of_three_kafka_brokers(
    zookeeper_server: ZooKeeper, tmp_path: Path, how: signal.Signals
) -> None:
    address = f"{zookeeper_server.address}/taken-{how.name}"
    directories = {number: tmp_path / f"data-{number}" for number in (1, 2, 3)}
    with kafka_trio(address, directories, tmp_path) as trio:
        fill(trio.bootstrap, replicas=3)
        wanted = see(trio.bootstrap)
        trio.end(how)
    with zookeeper_client(address) as client:
        all_gone(client)
        with ours(address, directories) as brokers:
            until(lambda: not lagging(client), lambda: lagging(client))
            check_same(see(all_addresses(brokers)), wanted)
            write_more(all_addresses(brokers), "t-zstd", 100)
            for partition in (f"t-{codec}-{number}" for codec in CODECS for number in (0, 1)):
                assert len({content(data, partition) for data in directories.values()}) == 1, partition
            assert all("Traceback" not in broker.log for broker in brokers.values())


MOVED, SLOW_BYTES_S = "moved", 20_000


def set_rate(bootstrap: str, bytes_a_second: int) -> None:
    """Sets the rate at which each broker may copy throttled partitions."""
    rate = {"follower.replication.throttled.rate": str(bytes_a_second)}
    with Admin(bootstrap) as admin:
        for number in (1, 2, 3):
            admin.alter_configs(ConfigResource(ResourceType.BROKER, str(number)), rate)


def begin_to_move(bootstrap: str) -> None:
    """Starts a reassignment that is so slow that it is still in progress when all brokers stop."""
    with Admin(bootstrap) as admin:
        admin.create_topic(
            MOVED, assignments={0: [1, 2]}, configs={"follower.replication.throttled.replicas": "0:3"}
        )
    set_rate(bootstrap, SLOW_BYTES_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(4000):
        producer.produce(MOVED, b"%d" % number + bytes(1000), partition=0)
    assert producer.flush(60) == 0
    with Admin(bootstrap) as admin:
        admin.alter_reassignments({TopicPartition(MOVED, 0): [3, 2]})


def is_moved(client: KazooClient) -> bool:
    node = json.loads(client.get(f"/brokers/topics/{MOVED}")[0])
    return not node["adding_replicas"] and not node["removing_replicas"]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_three_kafka_brokers_serve_the_data_of_three_tidemill_brokers(
    zookeeper_server: ZooKeeper, tmp_path: Path, how: str
) -> None:
    address = f"{zookeeper_server.address}/given-{how}"
    directories = {number: tmp_path / f"data-{number}" for number in (1, 2, 3)}
    with zookeeper_client(address) as client:
        with ours(address, directories) as brokers:
            fill(all_addresses(brokers), replicas=3)
            begin_to_move(all_addresses(brokers))
            wanted = see(all_addresses(brokers))
            assert not is_moved(client)
            for broker in brokers.values():
                broker.stop() if how == "stopped" else broker.kill()
        all_gone(client)
        assert not is_moved(client)
        with kafka_trio(address, directories, tmp_path) as trio:
            for kafka in trio.kafkas.values():
                wait_led(kafka.bootstrap, wanted.records)
            check_same(see(trio.bootstrap), wanted)
            set_rate(trio.bootstrap, 1_000_000_000)
            until(lambda: is_moved(client), "the move that we began ends")
            until(lambda: not lagging(client), lambda: lagging(client))
            write_more(trio.bootstrap, "t-zstd", 100)
            assert states(client)[f"{MOVED}-0"]["replicas"] == [3, 2]


TRANSACTIONS = {
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "5",
}
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
NO_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
INTERNAL = [(name, number) for name in (TRANSACTION_TOPIC, OFFSETS_TOPIC) for number in range(5)]


def prepare_states(bootstrap: str, kill_second: Callable[[], None]) -> Live:
    """Writes transactions in all states; the end of broker 2 leaves two of them without their last marker."""
    create_topic(bootstrap, NewTopic(STATES, 2, 3))
    producer = producer_of(bootstrap, "expired")
    producer.begin_transaction()
    write(producer, "expired")
    producer.commit_transaction(TIMEOUT_S)
    live = write_states(bootstrap)
    with Admin(bootstrap) as admin:
        admin.create_topic(STUCK, assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"})
    wait_led(bootstrap, [(STUCK, 0)], isr=[1, 2])
    commit, abort = (begin(bootstrap, f"prepared {end}", STUCK) for end in ("commit", "abort"))
    kill_second()
    wait_led(bootstrap, [(STUCK, 0)], isr=[1])
    commit.commit_transaction(TIMEOUT_S)
    abort.abort_transaction(TIMEOUT_S)
    wait_prepared(bootstrap)
    return live


# Of kafka-python: how it reads its own schemas, and the sockets of brokers that stop.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("first", ["kafka", "tidemill"])
def test_transactions_continue_on_the_other_cluster(
    zookeeper_server: ZooKeeper, tmp_path: Path, first: str
) -> None:
    address = f"{zookeeper_server.address}/continued-{first}"
    directories = {number: tmp_path / f"data-{number}" for number in (1, 2, 3)}
    ports = dict(zip(directories, free_ports(3), strict=True))
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports.values())

    @contextmanager
    def theirs(settings: Mapping[str, str]) -> Iterator[Callable[[], None]]:
        text = "".join(f"{key}={value}\n" for key, value in (TRANSACTIONS | dict(settings)).items())
        with kafka_trio(address, directories, tmp_path, text, ports) as trio:
            yield partial(trio.kafkas[2].end, signal.SIGKILL)

    @contextmanager
    def own(settings: Mapping[str, str]) -> Iterator[Callable[[], None]]:
        with ours(address, directories, TRANSACTIONS | dict(settings), ports) as brokers:
            yield brokers[2].kill
            for broker in brokers.values():
                broker.kill()

    one, other = (theirs, own) if first == "kafka" else (own, theirs)
    with zookeeper_client(address) as client:
        with one(NO_TIMEOUTS) as kill_second:
            live = prepare_states(bootstrap, kill_second)
            described = describe(bootstrap)
            assert {name: described[name].state for name in BEFORE} == BEFORE
        all_gone(client)
        try:
            with other(QUICK):
                wait_led(bootstrap, INTERNAL)
                check_continued(bootstrap, described)
                finish(bootstrap, live)
        finally:
            live.close()
