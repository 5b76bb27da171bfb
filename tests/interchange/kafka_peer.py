"""Apache Kafka as a peer, on KRaft or on ZooKeeper: started, filled, read, stopped or killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest
from kazoo.client import KazooClient

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupListing

ROOT = Path(__file__).parents[2]
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
START_TIMEOUT_S = 120
READ_TIMEOUT_S = 90
OFFSETS_TOPIC = "__consumer_offsets"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = """
num.partitions=2
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
log.segment.bytes=1048576
log.index.interval.bytes=1000
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=500
"""


def free_ports(count: int) -> list[int]:
    """Returns ports on which no process listens."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def class_path(version: str) -> str:
    """Downloads Apache Kafka's jars with Maven on first use; returns the class path. Skips the test on
    failure.
    """
    if shutil.which("java") is None:
        pytest.skip("java is not installed (Debian: apt-get install default-jre-headless)")
    if shutil.which("mvn") is None and not (ROOT / "build/kafka" / version / ".complete").exists():
        pytest.skip("mvn is not installed (Debian: apt-get install maven)")
    others = {key: value for key, value in os.environ.items() if key != "TIDEMILL_KAFKA_LIBS"}
    code = f"from peers import kafka_jars; print(kafka_jars({version!r}))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "bench",
        env=others,
        capture_output=True,
        text=True,
        check=True,
    )
    return f"{told.stdout.strip()}/*"


def java(jars: str, *arguments: str, heap: str = "512m") -> list[str]:
    """Returns the command that runs a class of ``jars``."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [
        "java",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Xmx{heap}",
        quiet,
        f"-Dlog4j.configuration=file:{Path(__file__).with_name('log4j.properties')}",
        "-cp",
        jars,
        *arguments,
    ]


class Program:
    """A process with its output in a file, and its port."""

    def __init__(self, command: list[str], log: Path, port: int) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        self.end(signal.SIGKILL)
        raise AssertionError(f"{command[-2:]} did not start:\n{log.read_text()[-4000:]}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process, and waits for its end."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)


class ZooKeeper(Program):
    """A ZooKeeper server."""

    def __init__(self, jars: str, directory: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        settings = directory / "zoo.cfg"
        settings.write_text(
            f"dataDir={directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\ntickTime=1000\nmaxClientCnxns=0\n"
        )
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        super().__init__(java(jars, main, str(settings), heap="128m"), directory / "zookeeper.out", port)


def wait_unregistered(zookeeper: str, node: int) -> None:
    """Waits until no session holds the registration of a broker: Kafka does not start before."""
    address, slash, root = zookeeper.partition("/")
    client = KazooClient(address)
    client.start(START_TIMEOUT_S)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while client.exists(f"{slash}{root}/brokers/ids/{node}"):
            assert time.monotonic() < deadline, f"broker {node} stays registered"
            time.sleep(0.1)
    finally:
        client.stop()
        client.close()


class Kafka:
    """An Apache Kafka broker with the data directory ``data``."""

    def __init__(
        self,
        jars: str,
        directory: Path,
        data: Path,
        *,
        zookeeper: str = "",
        settings: str = "",
        node: int = 1,
        port: int = 0,
        voters: str = "",
    ) -> None:
        """Without ``voters``, a broker on KRaft is its own controller. 0 as ``port`` is any free one."""
        self.jars, self.directory, self.data, self.zookeeper, self.node = (
            jars,
            directory,
            data,
            zookeeper,
            node,
        )
        self.settings = settings
        self.port, self.voters, self._is_controller = port, voters, not voters
        self.program: Program | None = None
        self.bootstrap = ""

    def start(self, *, form: bool = False, features: Iterable[str] = ()) -> None:
        """Starts the broker; formats the data directory of a KRaft broker first with ``form``.

        ``features`` are levels for a new cluster, such as ``transaction.version=1``.
        """
        port, controller = free_ports(2)
        port = self.port or port
        self.bootstrap = f"127.0.0.1:{port}"
        path = self.directory / "server.properties"
        mode = (
            f"broker.id={self.node}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
            f"zookeeper.connect={self.zookeeper}\nzookeeper.session.timeout.ms=2000\n"
            "zookeeper.connection.timeout.ms=60000\n"
        )
        if not self.zookeeper:
            roles, listeners = "broker", f"PLAINTEXT://127.0.0.1:{port}"
            if self._is_controller:
                self.voters = f"{self.node}@127.0.0.1:{controller}"
                roles, listeners = "broker,controller", f"{listeners},CONTROLLER://127.0.0.1:{controller}"
            mode = (
                f"process.roles={roles}\nnode.id={self.node}\ncontroller.quorum.voters={self.voters}\n"
                f"listeners={listeners}\ncontroller.listener.names=CONTROLLER\n"
            )
        path.write_text(f"{mode}log.dirs={self.data}\n{SETTINGS}{self.settings}")
        if form:
            levels = [word for feature in features for word in ("--feature", feature)]
            tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path), *levels)
            command = java(self.jars, *tool)
            subprocess.run(command, check=True, capture_output=True, timeout=100)
        if self.zookeeper:
            wait_unregistered(self.zookeeper, self.node)
        self.program = Program(java(self.jars, "kafka.Kafka", str(path)), self.directory / "kafka.out", port)
        wait_ready(self.bootstrap)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops or kills the broker."""
        if self.program is not None:
            self.program.end(how)
            self.program = None

    @property
    def output(self) -> str:
        """Returns the output of the broker."""
        return (self.directory / "kafka.out").read_text()


def wait_ready(bootstrap: str) -> None:
    """Waits until the broker responds."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=5).brokers:
                return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


Records: TypeAlias = dict[tuple[str, int], list[tuple[Any, ...]]]
"""Offset, time, key, value and headers of each record, by partition."""
Ends: TypeAlias = dict[tuple[str, int], tuple[int, int]]


def wait_led(bootstrap: str, keys: Iterable[tuple[str, int]], isr: list[int] | None = None) -> None:
    """Waits until the broker's metadata has a leader and this ISR for each partition."""
    from confluent_kafka.admin import AdminClient

    deadline = time.monotonic() + START_TIMEOUT_S
    admin = AdminClient({"bootstrap.servers": bootstrap})
    left = set(keys)
    while left:
        assert time.monotonic() < deadline, f"{left} have no leader"
        topics = admin.list_topics(timeout=10).topics
        for name, topic in topics.items():
            left -= {
                (name, number)
                for number, one in topic.partitions.items()
                if one.leader >= 0 and isr in (None, sorted(one.isrs))
            }
        time.sleep(0.1)


class Seen(NamedTuple):
    """The content of a cluster, as clients read it."""

    records: Records
    ends: Ends
    offsets: dict[tuple[str, str, int], int]
    configs: dict[str, dict[str, str]]


def lasting(seen: Seen) -> Seen:
    """Returns the content that stays without writes: of compacted topics, the last record of each key."""
    records = {}
    for (topic, number), found in seen.records.items():
        if seen.configs[topic].get("cleanup.policy") == "compact":
            found = sorted({record[2]: record for record in found}.values(), key=lambda one: one[0])
        records[topic, number] = found
    return seen._replace(records=records)


def check_same(found: Seen, wanted: Seen) -> None:
    """Compares two contents; the error has partition and position of the difference."""
    found, wanted = lasting(found), lasting(wanted)
    assert found.records.keys() == wanted.records.keys()
    for key, records in wanted.records.items():
        differing = [pair for pair in zip(found.records[key], records, strict=False) if pair[0] != pair[1]]
        assert not differing, (key, differing[0])
        assert len(found.records[key]) == len(records), key
    assert found.ends == wanted.ends
    assert found.offsets == wanted.offsets, (found.offsets, wanted.offsets)
    assert found.configs == wanted.configs, (found.configs, wanted.configs)


COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
GROUPS = {"readers": ("t-gzip", 700), "others": ("t-none", 150)}


def fill(bootstrap: str, *, topics: bool = True, replicas: int = 1) -> None:
    """Writes every codec, headers, idempotent batches, transactions, groups, a compacted topic, topic
    settings.
    """
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    began_ms = int(time.time() * 1000) - 3_600_000
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(f"t-{codec}", 2, replicas) for codec in CODECS]
    wanted.append(NewTopic("kept", 1, replicas, config=COMPACTED))
    wanted.append(
        NewTopic(
            "timed.by_broker",
            3,
            replicas,
            config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
        )
    )
    wanted.append(NewTopic("bought", 2, replicas, config={"max.message.bytes": "2000000"}))
    wanted.append(NewTopic("gone", 1, replicas))
    if topics:
        for future in admin.create_topics(wanted).values():
            future.result(30)
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True}
        )
        for number in range(2500):
            producer.produce(
                f"t-{codec}",
                b"value %d " % number + bytes([65 + number % 20]) * 500,
                key=b"k%d" % number if number % 3 else None,
                headers=[("trace", b"%d" % number), ("empty", None)] if number % 2 else None,
                partition=number % 2,
                timestamp=began_ms + number * 1000,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
    keep(bootstrap, 2000)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(300):
        producer.produce("timed.by_broker", b"t%d" % number, partition=number % 3)
    producer.produce("gone", b"never seen again")
    assert producer.flush(60) == 0
    admin.delete_topics(["gone"])["gone"].result(30)
    buy(bootstrap)
    for group, (topic, count) in GROUPS.items():
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        left = count
        while left:
            left -= len(consumer.consume(min(left, 100), timeout=30))
        consumer.commit(asynchronous=False)
        consumer.close()


def commit_otherwise(bootstrap: str) -> None:
    """Commits offsets of a group of Kafka 4's protocol, and offsets of committed and aborted transactions."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(settings | {"group.id": "modern", "group.protocol": "consumer"})
    consumer.subscribe(["t-lz4"])
    assert len(consumer.consume(30, timeout=60)) == 30
    consumer.commit(asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "moves"})
    producer.init_transactions(60)
    consumer = Consumer(settings | {"group.id": "exactly"})
    consumer.subscribe(["t-zstd"])
    assert len(consumer.consume(10, timeout=60)) == 10
    for offset, ending in ((5, producer.commit_transaction), (6, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("bought", b"moved", partition=0)
        moved = [TopicPartition("t-zstd", 0, offset)]
        producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), 60)
        ending(60)
    consumer.close()


def keep(bootstrap: str, first: int) -> None:
    """Writes to the compacted topic: few keys, many values."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + 2000):
        producer.produce("kept", b"v%d" % number + bytes(50), key=b"key-%d" % (number % 7))
        if number % 500 == 0:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def buy(bootstrap: str) -> None:
    """Runs committed and aborted transactions."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    producer = Producer({**settings, "transactional.id": "till"})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        for item in range(40):
            producer.produce("bought", b"sale %d item %d" % (number, item), partition=item % 2)
        producer.flush(30)
        if number % 3 == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def see(bootstrap: str, *, isolation: str = "read_committed") -> Seen:
    """Reads all content."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {name: meta for name, meta in admin.list_topics(timeout=30).topics.items() if name[:2] != "__"}
    keys = [(name, number) for name in sorted(topics) for number in sorted(topics[name].partitions)]
    records, ends = read_all(bootstrap, keys, isolation)
    offsets = {}
    for group in list_groups(bootstrap, admin):
        future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.group_id)])
        for one in future[group.group_id].result(30).topic_partitions:
            offsets[group.group_id, one.topic, one.partition] = one.offset
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
    configs = {}
    for resource, future in admin.describe_configs(resources).items():
        told = future.result(30).values()
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        configs[resource.name] = {one.name: one.value for one in told if one.source == own}
    return Seen(records, ends, offsets, configs)


def list_groups(bootstrap: str, admin: AdminClient) -> list[ConsumerGroupListing]:
    """Returns all groups, once every coordinator has loaded its groups."""
    topics = admin.list_topics(timeout=30).topics
    if OFFSETS_TOPIC in topics:
        wait_led(bootstrap, [(OFFSETS_TOPIC, number) for number in topics[OFFSETS_TOPIC].partitions])
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        listed = admin.list_consumer_groups().result(30)
        if not listed.errors:
            return listed.valid
        assert time.monotonic() < deadline, listed.errors
        time.sleep(0.1)


def read_all(bootstrap: str, keys: list[tuple[str, int]], isolation: str) -> tuple[Records, Ends]:
    """Returns every record of the partitions, with log start and end offsets."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "see",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    ends = {key: consumer.get_watermark_offsets(TopicPartition(*key), 30, cached=False) for key in keys}
    consumer.assign([TopicPartition(*key, OFFSET_BEGINNING) for key in keys])
    records: Records = {key: [] for key in keys}
    left = set(keys)
    deadline = time.monotonic() + READ_TIMEOUT_S
    while left:
        assert time.monotonic() < deadline, f"no end of {left}"
        for message in consumer.consume(1000, timeout=0.1):
            key = (message.topic(), message.partition())
            problem = message.error()
            if problem is not None:
                assert problem.code() == KafkaError._PARTITION_EOF, problem
                left.discard(key)
                continue
            records[key].append(
                (message.offset(), message.timestamp(), message.key(), message.value(), message.headers())
            )
    consumer.close()
    return records, ends
