"""The faults of a single broker, and their effects on real clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic
from one_message import outcome_of, stored
from prometheus_client.parser import text_string_to_metric_families

from tidemill.client import Admin, Consumer, Producer, TopicPartition
from tidemill.client.errors import AbortableTransactionError, ClientError
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.testing import Broker, BrokerFailed
from tidemill.testing.child import ChildFailed
from tidemill.testing.network_process import Network

WAIT_S = 30.0
KAFKA_PYTHON = """
import json, sys
from kafka import KafkaProducer

producer = KafkaProducer(bootstrap_servers=sys.argv[1], acks="all", retries=0, client_id="picked")
try:
    producer.send("topic", b"x").get(20)
    print(json.dumps("stored"))
except Exception as problem:
    print(json.dumps(type(problem).__name__))
"""


FETCHING = """
import sys, time
from kafka import KafkaConsumer, TopicPartition

consumer = KafkaConsumer(bootstrap_servers=sys.argv[1], auto_offset_reset="earliest", fetch_max_wait_ms=100)
consumer.assign([TopicPartition(sys.argv[2], 0)])
deadline = time.time() + 3
while time.time() < deadline:
    consumer.poll(200)
print("waits")
deadline = time.time() + 60
while time.time() < deadline:
    for records in consumer.poll(200).values():
        print(records[0].value.decode())
        sys.exit(0)
sys.exit(1)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """A broker with a metrics port. Each test starts without faults."""
    with Broker({"tidemill.metrics.port": 0}, faults=True) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.mend()


_numbers = iter(range(10_000))


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{next(_numbers)}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name)
    return name


def librdkafka(broker: Broker, **more: Any) -> LibrdkafkaProducer:
    keys = {key.replace("__", "."): value for key, value in more.items()}
    return LibrdkafkaProducer(
        {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **keys}
    )


def health(broker: Broker) -> tuple[int, dict[str, Any]]:
    try:
        url = f"http://127.0.0.1:{broker.metrics_port}/healthz"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def until_healthy(broker: Broker) -> None:
    """Waits until /healthz returns 200: a directory counts as full for 20 s after a rejected write."""
    deadline = time.monotonic() + WAIT_S
    while health(broker)[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert health(broker)[0] == 200


def metric(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    (value,) = [one.value for family in families for one in family.samples if one.name == name]
    return value


# Pauses


def test_clients_of_a_paused_broker_time_out_and_continue_after_it_resumes(
    broker: Broker, topic: str
) -> None:
    producer = librdkafka(broker, delivery__timeout__ms=1500, request__timeout__ms=1000)
    assert outcome_of(producer, topic, b"before") == "stored"
    broker.pause()
    assert outcome_of(producer, topic, b"paused") == "_MSG_TIMED_OUT"
    broker.resume()
    assert outcome_of(librdkafka(broker), topic, b"after") == "stored"
    # A request that timed out was sent, and is executed later.
    assert stored(broker.bootstrap, topic)[-1] == b"after"


def test_a_paused_broker_can_be_stopped_and_killed() -> None:
    with Broker() as plain:
        plain.pause()
        assert plain.stop() == 0
        plain.start()
        plain.pause()
        plain.kill()
        plain.start()
        plain.resume()
        assert plain.running


# Links


@pytest.mark.parametrize("how", ["silent", "reset"])
def test_clients_stop_at_a_cut_link_and_continue_after_it_is_healed(
    broker: Broker, topic: str, how: str
) -> None:
    quick = librdkafka(broker, delivery__timeout__ms=1500, request__timeout__ms=1000)
    patient = librdkafka(broker)
    assert outcome_of(quick, topic) == "stored"
    assert outcome_of(patient, topic) == "stored"
    broker.cut(how)
    assert outcome_of(quick, topic, b"lost") == "_MSG_TIMED_OUT"
    with pytest.raises(ClientError), Admin(broker.bootstrap, request_timeout_ms=500) as admin:
        admin.describe_cluster(timeout=1.0)
    details: list[Any] = []
    patient.produce(topic, b"late", on_delivery=lambda error, _: details.append(error))
    assert patient.flush(0.5) == 1
    broker.heal()
    assert patient.flush(WAIT_S) == 0
    assert details == [None]
    assert b"late" in stored(broker.bootstrap, topic)


def test_a_silent_cut_causes_a_timeout_and_a_reset_an_immediate_error(broker: Broker) -> None:
    for how, least_s, most_s in (("silent", 0.9, 60.0), ("reset", 0.0, 0.8)):
        with Admin(broker.bootstrap, request_timeout_ms=1000, retry_backoff_ms=50) as admin:
            admin.describe_cluster()
            broker.cut(how)
            began = time.monotonic()
            with pytest.raises(ClientError):
                admin.describe_cluster(timeout=0.5)
            took_s = time.monotonic() - began
            broker.heal()
        assert least_s <= took_s <= most_s, (how, took_s)


def test_a_killed_broker_refuses_connections_and_returns_at_its_address(broker: Broker, topic: str) -> None:
    address = broker.bootstrap
    assert outcome_of(librdkafka(broker), topic, b"1") == "stored"
    broker.kill()
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError):
        _connect(host, int(port))
    broker.start()
    assert broker.bootstrap == address
    _connect(host, int(port))
    assert outcome_of(librdkafka(broker), topic, b"2") == "stored"
    assert stored(broker.bootstrap, topic) == [b"1", b"2"]


def _connect(host: str, port: int) -> None:
    import socket

    socket.create_connection((host, port), 5).close()


# Errors in responses


def test_librdkafka_retries_rejected_batches_without_duplicates(broker: Broker, topic: str) -> None:
    with broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", 3) as injected:
        producer = librdkafka(broker, enable__idempotence=True)
        details: list[Any] = []
        for number in range(20):
            producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: details.append(error))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert details == [None] * 20
        assert injected.left == 0
    assert stored(broker.bootstrap, topic) == [b"%d" % number for number in range(20)]


def test_a_fatal_error_reaches_the_caller_once(broker: Broker, topic: str) -> None:
    broker.fail_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    # A new producer each time, because librdkafka caches the error of the topic.
    assert outcome_of(librdkafka(broker), topic, b"refused") == "TOPIC_AUTHORIZATION_FAILED"
    assert outcome_of(librdkafka(broker), topic, b"taken") == "stored"
    assert stored(broker.bootstrap, topic) == [b"taken"]


def test_an_executed_produce_is_stored_although_its_response_has_an_error(broker: Broker, topic: str) -> None:
    broker.fail_next("Produce", ErrorCode.REQUEST_TIMED_OUT, carried_out=True)
    assert outcome_of(librdkafka(broker, enable__idempotence=False), topic, b"twice") == "stored"
    # The producer retried after the error, and is not idempotent.
    assert stored(broker.bootstrap, topic) == [b"twice", b"twice"]
    broker.fail_next("Produce", ErrorCode.REQUEST_TIMED_OUT, carried_out=True)
    assert outcome_of(librdkafka(broker, enable__idempotence=True), topic, b"once") == "stored"
    assert stored(broker.bootstrap, topic) == [b"twice", b"twice", b"once"]


def test_errors_apply_only_to_the_given_client_id(broker: Broker) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("topic")
    injected = broker.fail_next("Produce", "INVALID_REQUIRED_ACKS", 100, client_id="picked")
    assert outcome_of(librdkafka(broker, client__id="other"), "topic") == "stored"
    command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, broker.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "InvalidRequiredAcksError"
    assert injected.left < 100
    injected.cancel()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "stored"


def test_a_consumer_sees_errors_in_fetches(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number)
    consumer = LibrdkafkaConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen = [message.value() for message in consumer.consume(3, WAIT_S)]
    assert seen == [b"0", b"1", b"2"]
    broker.fail_next("Fetch", "TOPIC_AUTHORIZATION_FAILED")
    problem = _next_error(consumer)
    assert problem.name() == "TOPIC_AUTHORIZATION_FAILED"
    consumer.close()


def test_a_consumer_with_a_fetch_session_sees_errors_without_new_records(broker: Broker, topic: str) -> None:
    """With kafka-python: responses of its fetch session contain no partitions without new records."""
    command = [sys.executable, "-W", "ignore", "-u", "-c", FETCHING, broker.bootstrap, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "waits\n"
        broker.fail_next("Fetch", "UNKNOWN_TOPIC_OR_PARTITION", 2).wait(WAIT_S)
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, b"after").result(10)
        assert consumer.stdout.readline() == "after\n"
        assert consumer.wait(WAIT_S) == 0


def _next_error(consumer: LibrdkafkaConsumer) -> KafkaError:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        problem = message.error() if message is not None else None
        if problem is not None:
            return problem
    raise AssertionError("no error came")


def test_an_admin_client_sees_errors_and_no_topic_is_created(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    broker.fail_next("CreateTopics", "POLICY_VIOLATION")
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        admin.create_topics([NewTopic("refused", 1, 1)])["refused"].result(WAIT_S)
    assert "refused" not in admin.list_topics(timeout=10).topics
    broker.fail_next("CreateTopics", "REQUEST_TIMED_OUT", carried_out=True)
    with pytest.raises(KafkaException, match="TIMED_OUT"):
        admin.create_topics([NewTopic("made", 1, 1)])["made"].result(WAIT_S)
    assert "made" in admin.list_topics(timeout=10).topics
    with Admin(broker.bootstrap) as own:
        broker.fail_next("DescribeCluster", "CLUSTER_AUTHORIZATION_FAILED")
        with pytest.raises(ClientError, match="CLUSTER_AUTHORIZATION_FAILED"):
            own.describe_cluster()


def test_a_transaction_whose_end_is_refused_stays_open(broker: Broker, topic: str) -> None:
    with (
        Admin(broker.bootstrap) as admin,
        Producer(broker.bootstrap, {"transactional.id": topic}) as producer,
    ):
        for ends in (producer.commit, producer.abort):
            producer.begin()
            producer.send(topic, b"x").result(WAIT_S)
            broker.fail_next("EndTxn", "TRANSACTION_ABORTABLE")
            with pytest.raises(AbortableTransactionError):
                ends()
            assert admin.describe_transaction(topic).state == "Ongoing"
            producer.abort()


def test_a_group_continues_after_coordinator_not_available(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"x")
    with (
        broker.fail_next("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", 2) as found,
        broker.fail_next("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS") as joined,
        broker.fail_next("OffsetCommit", "NOT_COORDINATOR") as committed,
    ):
        with Consumer(broker.bootstrap, group_id="group", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + WAIT_S
            read: list[Any] = []
            while not read and time.monotonic() < deadline:
                read += list(consumer.poll(1.0))
            assert [record.value for record in read] == [b"x"]
            consumer.commit()
        assert (found.left, joined.left, committed.left) == (0, 0, 0)
    with Admin(broker.bootstrap) as admin:
        assert admin.group_offsets("group")[TopicPartition(topic, 0)].offset == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ("Produse", "NOT_LEADER_OR_FOLLOWER"),
            "'Produse' is not an API of the protocol; did you mean Produce",
        ),
        (("Produce", "NOT_LEADER_OR_FOLOWER"), "did you mean NOT_LEADER_OR_FOLLOWER"),
        (("Produce", 0), "is not an error"),
        (("Produce", 6, 0), "times=0"),
    ],
)
def test_rejects_invalid_faults_with_the_next_step(broker: Broker, given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        broker.fail_next(*given)


def test_rejects_an_unknown_cut_with_the_known_ones(broker: Broker) -> None:
    with pytest.raises(ValueError, match="silent, reset"):
        broker.cut("cable")


# Disks


def test_a_full_disk_rejects_produce_requests_and_recovers_by_itself(broker: Broker, topic: str) -> None:
    assert outcome_of(librdkafka(broker), topic, b"before") == "stored"
    until_healthy(broker)
    broker.disk.fill()
    refused = librdkafka(broker, delivery__timeout__ms=2000, request__timeout__ms=1000)
    assert outcome_of(refused, topic, b"no room") == "_MSG_TIMED_OUT"
    status, details = health(broker)
    assert (status, details["full_directories"]) == (503, [broker.data_dir])
    assert "reject Produce requests" in details["reason"]
    assert metric(broker, "tidemill_full_log_directories") == 1
    # Stored records can be read.
    assert stored(broker.bootstrap, topic) == [b"before"]
    broker.disk.free()
    assert outcome_of(librdkafka(broker), topic, b"after") == "stored"
    assert stored(broker.bootstrap, topic) == [b"before", b"after"]


@pytest.mark.slow
def test_a_disk_that_stays_full_is_reported_without_producers(broker: Broker, topic: str) -> None:
    broker.disk.fill()
    refused = librdkafka(broker, delivery__timeout__ms=1500, request__timeout__ms=1000)
    assert outcome_of(refused, topic) == "_MSG_TIMED_OUT"
    del refused
    time.sleep(22)  # After 20 s without a rejected write the broker checks the free space.
    assert health(broker)[0] == 503
    broker.disk.free()
    until_healthy(broker)


def test_a_disk_with_some_space_accepts_small_batches(broker: Broker, topic: str) -> None:
    assert outcome_of(librdkafka(broker), topic, b"before") == "stored"
    broker.disk.fill(free_bytes=20_000)
    quick = librdkafka(broker, delivery__timeout__ms=1500, request__timeout__ms=1000)
    assert outcome_of(quick, topic, bytes(1000)) == "stored"
    assert outcome_of(quick, topic, bytes(50_000)) == "_MSG_TIMED_OUT"


def test_no_topic_can_be_created_on_a_full_disk(broker: Broker) -> None:
    broker.disk.fill()
    with Admin(broker.bootstrap) as admin:
        with pytest.raises(ClientError, match="_ERROR"):
            admin.create_topic("no-room", timeout=5.0)
        broker.disk.free()
        admin.create_topic("no-room")


def test_slow_syncs_delay_only_requests_that_sync(broker: Broker) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("synced", configs={"flush.messages": "1"})
        admin.create_topic("plain")
    producer = librdkafka(broker)
    assert outcome_of(producer, "synced") == outcome_of(producer, "plain") == "stored"
    broker.disk.slow_down(sync_s=1.0)
    began = time.monotonic()
    assert outcome_of(producer, "plain") == "stored"
    plain_s = time.monotonic() - began
    began = time.monotonic()
    assert outcome_of(producer, "synced") == "stored"
    assert time.monotonic() - began >= 1.0 > plain_s
    broker.disk.speed_up()
    began = time.monotonic()
    assert outcome_of(producer, "synced") == "stored"
    assert time.monotonic() - began < 1.0


def test_slow_writes_delay_all_clients_and_slow_reads_only_the_reader(broker: Broker, topic: str) -> None:
    producer = librdkafka(broker)
    assert outcome_of(producer, topic) == "stored"
    broker.disk.slow_down(write_s=0.7)
    began = time.monotonic()
    assert outcome_of(producer, topic) == "stored"
    assert time.monotonic() - began >= 0.7
    broker.disk.slow_down(read_s=0.7)
    began = time.monotonic()
    assert len(stored(broker.bootstrap, topic)) == 2
    assert time.monotonic() - began >= 0.7


def test_a_full_disk_stays_full_after_a_restart(broker: Broker, topic: str) -> None:
    broker.disk.fill()
    broker.kill()
    with pytest.raises(BrokerFailed, match=r"coordination\.db could not be written: the disk is full"):
        broker.start()
    broker.disk.free()
    broker.start()
    assert outcome_of(librdkafka(broker), topic) == "stored"


# The tools themselves


def test_a_broker_without_faults_rejects_them_with_the_next_step() -> None:
    with Broker() as plain:
        for do in (plain.cut, plain.heal, lambda: plain.fail_next("Fetch", 1), lambda: plain.disk):
            with pytest.raises(BrokerFailed, match=r"needs Broker\(faults=True\)"):
                do()


def test_a_broker_with_faults_rejects_configured_listeners() -> None:
    with pytest.raises(
        ConfigError, match=r"listeners: a broker with faults listens on the ports of its links"
    ):
        Broker({"listeners": "PLAINTEXT://127.0.0.1:0"}, faults=True)
    with pytest.raises(ConfigError, match="port=9092"):
        Broker(port=9092, faults=True)


def test_close_ends_all_processes_of_the_tools() -> None:
    with Broker(faults=True) as broker:
        network = broker._links.network  # type: ignore[union-attr]
        pid = network._child.pid
        directory = Path(broker.data_dir).parent
        assert directory.is_dir()
    assert not directory.exists()
    assert not Path(network._directory).exists()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ChildFailed, match="is not running"):
        broker.cut()


def test_the_tools_end_with_their_parent_process() -> None:
    code = (
        "import os\nfrom tidemill.testing import Broker\nbroker = Broker(faults=True).start()\n"
        "print(broker.pid, broker._links.network._child.pid, flush=True)\nos._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pids = [int(word) for word in done.stdout.split()]
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_links_forward_large_messages_of_many_clients_unchanged(broker: Broker, topic: str) -> None:
    values = [bytes([65 + number]) * 700_000 for number in range(8)]

    def write(part: list[bytes]) -> None:
        with Producer(broker.bootstrap) as producer:
            for value in part:
                producer.send(topic, value)

    threads = [threading.Thread(target=write, args=(values[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value or b"" for value in stored(broker.bootstrap, topic)) == values


@pytest.mark.parametrize("first", ["client", "server"])
async def test_a_link_closes_the_descriptors_of_ended_connections(first: str) -> None:
    """Otherwise each connection would leave two descriptors."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        if first == "server":
            writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    network = Network()
    number = network.do({"do": "open", "kind": "store", "target": "1", "source": "2"})["port"]
    port = network.ports[number]
    port.upstream = server.sockets[0].getsockname()
    port.listen()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        if first == "client":
            writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    for _ in range(500):
        if not port.pairs:
            break
        await asyncio.sleep(0.01)
    assert not port.pairs
    port._stop_listening()
    port._socket.close()
    server.close()
    await server.wait_closed()
