"""The producer with faults: broken connections, lost responses, silent brokers, a full buffer, forks.

A proxy between the producer and a real broker closes connections at random, after it has forwarded requests
and before it returns their responses: the batch is in the log, and the producer does not know.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill.client import Consumer, Producer, RangeReader, TopicPartition, fetch_requests
from tidemill.client import connection as requests
from tidemill.client.batch_results import BatchResults
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import PRODUCER, parse_address
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import (
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    ClientError,
    DeliveryTimeout,
    RequestTimeout,
    error_for,
)
from tidemill.client.network_client import NetworkClient
from tidemill.client.producer import BulkDelivery
from tidemill.client.record_accumulator import Delivery, ProducerBatch, RecordAccumulator, TopicQueues
from tidemill.client.sender import Sender
from tidemill.client.transaction_manager import State
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import parse_batch
from tidemill.wire.apis import ApiKey, ResponseT
from tidemill.wire.messages.init_producer_id import InitProducerIdResponse
from tidemill.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.schema import Struct


class Proxy:
    """Forwards bytes, and closes a connection when ``cut`` returns True for a response."""

    def __init__(self, target: tuple[str, int], cut: Callable[[int], bool]) -> None:
        self._target = target
        self._cut = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.deaf = threading.Event()
        """While it is set, answers are not passed on."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        self._open += [client, server]
        answers = 0
        with client, server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    try:
                        data = source.recv(1 << 20)
                        if not data:
                            return
                        if source is server:
                            answers += 1
                            if self._cut(answers):
                                self.cuts += 1
                                return
                            if self.deaf.is_set():
                                continue
                        (server if source is client else client).sendall(data)
                    except OSError:
                        return

    def close(self) -> None:
        self._listener.close()
        for found in self._open:
            found.close()


@pytest.fixture
def through_proxy(
    broker_address: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[int], bool]], Proxy]]:
    """Directs every new connection of the client through a proxy."""
    made: list[Proxy] = []
    plain = Connection.__init__

    def start(cut: Callable[[int], bool]) -> Proxy:
        proxy = Proxy(parse_address(broker_address), cut)
        made.append(proxy)

        def through(self: Connection, host: str, port: int, *more: Any, **named: Any) -> None:
            plain(self, "127.0.0.1", proxy.port, *more, **named)

        monkeypatch.setattr(Connection, "__init__", through)
        return proxy

    yield start
    monkeypatch.setattr(Connection, "__init__", plain)
    for proxy in made:
        proxy.close()


def read(address: str, topic: str, count: int) -> dict[int, list[bytes]]:
    values: dict[int, list[bytes]] = {}
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for(topic))
        left, quiet = count, time.monotonic() + 10
        while left > 0 and time.monotonic() < quiet:
            for record in consumer.poll(0.5, max_records=10_000):
                values.setdefault(record.partition, []).append(record.value or b"")
                left -= 1
        for record in consumer.poll(0.3):
            values.setdefault(record.partition, []).append(record.value or b"")
    return values


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lost_responses_cause_no_loss_duplicate_or_reordering(
    broker_address: str,
    new_topic: Callable[..., str],
    through_proxy: Callable[..., Proxy],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    topic = new_topic(3)
    chance = random.Random(seed)
    proxy = through_proxy(lambda answers: answers > 1 and chance.random() < 0.15)
    count = 6000
    with Producer(
        broker_address, batch_size=600, linger_ms=0, reconnect_backoff_ms=1, retry_backoff_ms=5
    ) as producer:
        sent = [producer.send(topic, b"%d" % i, partition=i % 3) for i in range(count)]
        for delivery in sent:
            delivery.result(60)
    assert proxy.cuts > 0
    monkeypatch.undo()
    values = read(broker_address, topic, count)
    for partition in range(3):
        assert values[partition] == [b"%d" % i for i in range(partition, count, 3)]


def test_a_message_with_a_lost_response_is_stored_once_after_an_expired_message(
    broker_address: str, new_topic: Callable[..., str], through_proxy: Callable[..., Proxy]
) -> None:
    topic = new_topic(1)
    proxy = through_proxy(lambda answers: False)
    with Producer(
        broker_address,
        linger_ms=0,
        request_timeout_ms=1000,
        delivery_timeout_ms=1050,
        retry_backoff_ms=20,
        reconnect_backoff_ms=200,
    ) as producer:
        producer.send(topic, b"0").result(10)
        proxy.deaf.set()
        given_up = producer.send(topic, b"1", on_delivery=lambda place, error: proxy.deaf.clear())
        time.sleep(0.8)
        kept = producer.send(topic, b"2")
        while not given_up.done():
            with contextlib.suppress(RequestTimeout):
                producer.flush(0.01)  # the sender checks the time
        assert isinstance(given_up.exception(0), DeliveryTimeout)
        kept.result(10)
        producer.send(topic, b"3").result(10)
    assert read(broker_address, topic, 4) == {0: [b"0", b"1", b"2", b"3"]}


def test_without_idempotence_nothing_is_lost_but_duplicates_are_possible(
    broker_address: str,
    new_topic: Callable[..., str],
    through_proxy: Callable[..., Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1)
    chance = random.Random(5)
    through_proxy(lambda answers: answers > 1 and chance.random() < 0.1)
    with Producer(
        broker_address, acks=1, batch_size=600, linger_ms=0, reconnect_backoff_ms=1, retry_backoff_ms=5
    ) as producer:
        for delivery in [producer.send(topic, b"%d" % i) for i in range(2000)]:
            delivery.result(60)
    monkeypatch.undo()
    seen = Counter(read(broker_address, topic, 2000)[0])
    assert {int(value) for value in seen} == set(range(2000))


def test_a_sequence_unknown_to_the_broker_restarts(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send(topic, b"0").result(10)
        queue = producer._topics[topic].queues[0]
        queue.next_sequence += 5  # as if the broker had lost five records
        assert producer.send(topic, b"1").result(10).offset == 1
        assert queue.producer_epoch == 1
        assert producer.send(topic, b"2").result(10).offset == 2
    assert read(broker_address, topic, 3) == {0: [b"0", b"1", b"2"]}


def test_unacknowledged_messages_fail_after_the_delivery_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with (
        Producer(address, max_block_ms=300) as producer,
        pytest.raises(ClientError, match=r"no broker can be reached"),
    ):
        producer.send("topic", b"v")


def test_messages_for_a_stopped_broker_fail_after_the_delivery_timeout(
    broker_address: str, new_topic: Callable[..., str], through_proxy: Callable[..., Proxy]
) -> None:
    topic = new_topic(1)
    dead = threading.Event()
    through_proxy(lambda answers: dead.is_set())
    with Producer(broker_address, delivery_timeout_ms=3000, request_timeout_ms=1000, linger_ms=0) as producer:
        producer.send(topic, b"there").result(10)
        dead.set()
        began = time.monotonic()
        heard: list[Any] = []
        delivery = producer.send(topic, b"lost", on_delivery=lambda m, e: heard.append(e))
        with pytest.raises(RequestTimeout, match=r"not completed after"):
            delivery.result(0.01)
        with pytest.raises(DeliveryTimeout, match=r"delivery.timeout.ms"):
            delivery.result(20)
        assert time.monotonic() - began < 10
        producer.flush(5)
        assert [type(error) for error in heard] == [DeliveryTimeout]


def test_the_error_without_a_producer_id_names_the_alternative(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = NetworkClient.call_any

    def refused(
        self: NetworkClient, key: ApiKey, message: Struct, response_type: type[ResponseT], deadline: float
    ) -> Struct:
        if key is ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_id=-1)
        return asked(self, key, message, response_type, deadline)

    monkeypatch.setattr(NetworkClient, "call_any", refused)
    topic = new_topic(1)
    with (
        Producer(broker_address, delivery_timeout_ms=3000, request_timeout_ms=1000, linger_ms=0) as producer,
        pytest.raises(DeliveryTimeout, match=r"producer id .*enable.idempotence=false.*COORDINATOR_NOT"),
    ):
        producer.send(topic, b"held back").result(20)


def accumulator(buffer_bytes: int = 10_000, batch_bytes: int = 1000) -> RecordAccumulator:
    return RecordAccumulator(batch_bytes, buffer_bytes, 5000, 0, None, 3, None, lambda: None)


def test_a_response_for_failed_messages_changes_nothing() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})), found)
    delivery = found.append(topic, 0, 1, None, b"x", None, None, 0.0)
    queue = topic.queues[0]
    batch = queue.waiting.popleft()
    queue.in_flight.append(batch)
    outcomes.fail_all(ClientClosed("given up"))
    outcomes.succeeded(batch, 7, -1)
    outcomes.failed(batch, ErrorCode.NETWORK_EXCEPTION, ClientError("cut"))
    assert isinstance(delivery.exception(0), ClientClosed)
    assert (found.used_bytes, len(queue.waiting)) == (0, 0)


def test_an_invalid_response_is_retried(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = requests.decode_response
    cut: list[bytes] = []

    def decode(key: ApiKey, version: int, frame: bytes) -> Any:
        if key == ApiKey.PRODUCE and not cut:
            cut.append(frame)
            frame = frame[:-3]
        return plain(key, version, frame)

    monkeypatch.setattr(requests, "decode_response", decode)
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send(topic, b"once").result(20)
        assert producer.send(topic, b"then").result(20).offset == 1
    assert cut
    assert read(broker_address, topic, 2) == {0: [b"once", b"then"]}


def test_an_invalid_fetch_response_is_reported_and_fetched_again(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send(topic, b"v").result(10)
    plain = fetch_requests.parse_response
    cut: list[bytes] = []

    def parse(frame: bytes, version: int) -> Any:
        if not cut:
            cut.append(frame)
            frame = frame[:-3]
        return plain(frame, version)

    monkeypatch.setattr(fetch_requests, "parse_response", parse)
    with Consumer(broker_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(BrokerUnreachable, match=r"sent an invalid response"):
            consumer.poll(10)
        assert [record.value for record in consumer.poll(10)] == [b"v"]
    cut.clear()
    with RangeReader(broker_address) as reader:
        assert sum(batch.num_rows for batch in reader.read(topic, 0, 0, 1)) == 1
    assert cut


def test_a_closed_producer_closes_its_descriptors(broker_address: str, new_topic: Callable[..., str]) -> None:
    producer = Producer(broker_address)
    descriptor = producer._sender._pipe.fileno()
    before = os.fstat(descriptor).st_ino
    producer.send(new_topic(1), b"v").result(10)
    producer.close()
    producer._sender.wake()
    with contextlib.suppress(OSError):
        assert os.fstat(descriptor).st_ino != before


def test_a_full_buffer_blocks_and_then_raises() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    while found.used_bytes + 600 <= 10_000:
        found.append(topic, 0, 1, None, b"x" * 500, None, None, 0.05)
    with pytest.raises(BufferFull, match=r"buffer.memory=10000 within max.block.ms"):
        found.append(topic, 0, 1, None, b"x" * 900, None, None, 0.05)
    batch = topic.queues[0].waiting[0]

    def free() -> None:
        time.sleep(0.05)
        topic.queues[0].waiting.popleft()
        found.complete(batch, None)

    thread = threading.Thread(target=free)
    thread.start()
    found.append(topic, 0, 1, None, b"x" * 500, None, None, 10.0)
    thread.join()


def test_keyless_messages_stick_to_a_partition_until_its_batch_is_full() -> None:
    found, topic = accumulator(1_000_000, 2000), TopicQueues("t", 8)
    found.topics["t"] = topic
    for _ in range(400):
        found.append(topic, -1, 1, None, b"x" * 100, None, None, 0.0)
    batches = [batch for queue in topic.queues for batch in queue.waiting]
    assert sum(int(batch.builder.count) for batch in batches) == 400
    assert all(int(batch.builder.count) > 10 for batch in batches if batch.full)
    assert sum(1 for queue in topic.queues if queue.waiting) > 3


@pytest.mark.parametrize("wrong", [[("\ud800", b"v")], [("name", "text")]])
def test_an_unwritable_message_does_not_affect_others(
    broker_address: str, new_topic: Callable[..., str], wrong: Any
) -> None:
    topic = new_topic(1)
    with Producer(broker_address, linger_ms=50) as producer:
        for number in range(2):
            with pytest.raises((TypeError, UnicodeEncodeError)):
                producer.send(topic, b"wrong", headers=wrong)
            time.sleep(0.1 * (1 - number))  # the first has a batch for itself, the second one with others
            producer.send(topic, b"%d" % number)
            with pytest.raises((TypeError, UnicodeEncodeError)):
                producer.send(topic, b"wrong", headers=wrong)
        producer.send(topic, b"2").result(10)
        assert producer._accumulator.used_bytes == 0
    assert read(broker_address, topic, 3) == {0: [b"0", b"1", b"2"]}


def test_a_message_over_the_request_size_is_refused_at_once() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    with pytest.raises(ClientError, match=r"max.request.size=5000") as caught:
        found.append(topic, 0, 1, None, b"x" * 6000, None, None, 0.0)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("partitions", [[-1], [0, -5, 0], (-5,)])
def test_a_negative_partition_is_refused(partitions: list[int]) -> None:
    with Producer("unused:1", delivery_timeout_ms=1000, request_timeout_ms=500) as producer:
        producer._topics["t"] = TopicQueues("t", 1)
        with pytest.raises(ValueError, match=f"partition {min(partitions)} of 't': partitions count from 0"):
            producer.send_batch("t", [b"v"] * len(partitions), partitions=partitions)
        with pytest.raises(ValueError, match=f"partition {min(partitions)} of 't': partitions count from 0"):
            producer.send("t", b"v", partition=min(partitions))
        assert producer.counts().sent == 0


def test_a_closed_producer_raises(broker_address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    producer = Producer(broker_address)
    delivery = producer.send(topic, b"v")
    producer.close()
    assert delivery.result(0).offset == 0
    with pytest.raises(ClientClosed, match=r"create a new one"):
        producer.send(topic, b"v")
    producer.close()


def test_a_close_runs_the_callbacks_of_the_messages_that_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender thread sees that no message is left before the closing thread continues."""
    producer = Producer("unused:1")
    producer._topics["t"] = TopicQueues("t", 1)
    errors: list[Exception | None] = []
    plain, sender = producer._accumulator, producer._sender

    class Slow:
        """The accumulator, whose ``complete`` returns after the end of the sender thread."""

        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def complete(self, batch: ProducerBatch, error: Exception | None) -> None:
            plain.complete(batch, error)
            sender.thread.join(10)
            assert not sender.thread.is_alive()

    monkeypatch.setattr(sender.results, "_accumulator", Slow())
    delivery = producer.send("t", b"v", on_delivery=lambda metadata, error: errors.append(error))
    producer.close(0)
    assert errors == [delivery.exception(0)]
    assert isinstance(errors[0], ClientClosed)


def test_a_producer_that_a_callback_closes_sends_its_messages_first(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    producer = Producer(broker_address, linger_ms=60_000)
    urgent = producer.send(topic, b"v", partition=0, on_delivery=lambda *_: producer.close())
    waiting = producer.send(topic, b"w", partition=1)
    assert urgent.result(10).offset == 0
    assert waiting.result(10).offset == 0
    producer._sender.thread.join(10)
    assert not producer._sender.thread.is_alive()
    assert producer._network_client.closed
    with pytest.raises(ClientClosed):
        producer.send(topic, b"x")


def error_in_child(use: Callable[[], object]) -> str:
    """Calls ``use`` in a forked child; returns the text of its error, or nothing after 10 s."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(10)
            use()
            os.write(write_end, b"no error")
        except ClientClosed as problem:
            os.write(write_end, str(problem).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    text = os.read(read_end, 1000).decode()
    os.close(read_end)
    return text


def test_a_forked_child_needs_its_own_producer(broker_address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send(topic, b"v").result(10)
        assert "create one after the fork" in error_in_child(lambda: producer.send(topic, b"from the child"))
        assert producer.send(topic, b"w").result(10).offset == 1


FORKED_USES: dict[str, Callable[[Producer, Delivery], object]] = {
    "send": lambda producer, waiting: producer.send("t", b"v"),
    "send_batch": lambda producer, waiting: producer.send_batch("t", [b"v"]),
    "to a new partition": lambda producer, waiting: producer.send("t", b"v", partition=1),
    "to a new topic": lambda producer, waiting: producer.send("u", b"v"),
    "flush": lambda producer, waiting: producer.flush(),
    "result": lambda producer, waiting: waiting.result(),
    "begin": lambda producer, waiting: producer.begin(),
    "commit": lambda producer, waiting: producer.commit(),
    "abort": lambda producer, waiting: producer.abort(),
    "send_offsets": lambda producer, waiting: producer.send_offsets({TopicPartition("t", 0): 1}, "group"),
    "result of many": lambda producer, waiting: BulkDelivery(1, [waiting]).result(),
}


@pytest.mark.parametrize("use", FORKED_USES)
def test_every_use_of_the_parents_producer_in_a_forked_child_raises(use: str) -> None:
    producer = Producer("unused:1", {"linger.ms": 60_000, "transactional.id": "x"})
    assert producer._transactions is not None
    producer._transactions._state = State.IN_TRANSACTION
    try:
        producer._topics["t"] = TopicQueues("t", 1)
        waiting = producer.send("t", b"v")
        assert "create one after the fork" in error_in_child(lambda: FORKED_USES[use](producer, waiting))
        assert not waiting.done()
    finally:
        producer._transactions._state = State.READY
        producer.close(0)


def test_expired_messages_have_the_last_error_of_the_broker() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})), found)
    delivery = found.append(topic, 0, 1, None, b"x", None, None, time.monotonic())
    queue = topic.queues[0]
    batch = queue.waiting.popleft()
    batch.attempts = 1
    queue.in_flight.append(batch)
    refused = error_for(ErrorCode.KAFKA_STORAGE_ERROR, "produce to t-0", broker="b:1")
    outcomes.failed(batch, ErrorCode.KAFKA_STORAGE_ERROR, refused)
    assert list(queue.waiting) == [batch]
    outcomes.expire_batches(time.monotonic() + 1000)
    assert str(delivery.exception(0)) == (
        "1 message for t-0 not acknowledged within delivery.timeout.ms, after 1 try; the last: cannot "
        "produce to t-0: KAFKA_STORAGE_ERROR, broker b:1; check the broker's log: its disk or "
        "ZooKeeper fails"
    )


@pytest.mark.parametrize("code", [None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
@pytest.mark.parametrize(("count", "noun"), [(1, "1 message"), (2, "2 messages")])
def test_unsent_messages_have_the_error_of_their_topic(code: ErrorCode | None, count: int, noun: str) -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    cluster = NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"}))
    if code is not None:
        cluster.topic_errors["t"] = int(code)
    outcomes = BatchResults(cluster, found)
    deliveries = [found.append(topic, 0, 1, None, b"x", None, None, time.monotonic()) for _ in range(count)]
    assert outcomes.pending_error() is None
    outcomes.expire_batches(time.monotonic() + 1000)
    more = f" (the topic: {code.name})" if code is not None else ""
    assert {str(one.exception(0)) for one in deliveries} == {
        f"{noun} for t-0 waited longer than delivery.timeout.ms{more}; is its leader running, and reachable "
        "from here?"
    }


def test_expired_messages_have_the_error_of_the_producer_id() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})), found)
    outcomes.producer_id_error = error_for(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, "get a producer id", step="wait"
    )
    delivery = found.append(topic, 0, 1, None, b"x", None, None, time.monotonic())
    assert outcomes.pending_error() is outcomes.producer_id_error
    outcomes.expire_batches(time.monotonic() + 1000)
    assert str(delivery.exception(0)) == (
        "1 message for t-0 waited longer than delivery.timeout.ms: cannot get a producer id: "
        "COORDINATOR_NOT_AVAILABLE; wait"
    )


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_batch_is_retried_exactly_retries_times(retries: int) -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    settings = {"bootstrap.servers": "unused:1", "retries": retries, "enable.idempotence": False}
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, settings)), found)
    delivery = found.append(topic, 0, 1, None, b"x", None, None, time.monotonic())
    queue = topic.queues[0]
    refused = error_for(ErrorCode.KAFKA_STORAGE_ERROR, "produce to t-0")
    sent = 0
    while queue.waiting:
        batch = queue.waiting.popleft()
        batch.attempts += 1
        sent += 1
        queue.in_flight.append(batch)
        outcomes.failed(batch, ErrorCode.KAFKA_STORAGE_ERROR, refused)
    assert (sent, delivery.exception(0)) == (retries + 1, refused)


@pytest.mark.parametrize(("sequence", "bumps"), [(-1, False), (0, True), (5, True)])
def test_the_sequence_restarts_after_a_failed_batch(sequence: int, bumps: bool) -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})), found)
    delivery = found.append(topic, 0, 1, None, b"x", None, None, time.monotonic())
    queue = topic.queues[0]
    batch = queue.waiting.popleft()
    batch.sequence, batch.attempts = sequence, 1
    queue.in_flight.append(batch)
    refused = error_for(ErrorCode.INVALID_RECORD, "produce to t-0")
    outcomes.failed(batch, ErrorCode.INVALID_RECORD, refused)
    assert (delivery.exception(0), queue.epoch_bump_required) == (refused, bumps)


@pytest.mark.parametrize(("sequence", "bumps"), [(-1, False), (0, True), (5, True)])
def test_the_sequence_restarts_after_an_expired_batch(sequence: int, bumps: bool) -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    settings = {"bootstrap.servers": "unused:1", "delivery.timeout.ms": 5000, "request.timeout.ms": 1000}
    outcomes = BatchResults(NetworkClient(ClientConfig(PRODUCER, settings)), found)
    delivery = found.append(topic, 0, 1, None, b"x", None, None, 0.0)
    queue = topic.queues[0]
    (batch,) = queue.waiting
    batch.sequence = sequence
    outcomes.expire_batches(batch.created + 4.999)
    assert not delivery.done()
    outcomes.expire_batches(batch.created + 5.0)
    assert (isinstance(delivery.exception(0), DeliveryTimeout), queue.epoch_bump_required) == (True, bumps)


class Sent:
    """A request without a response."""

    def __init__(self) -> None:
        self.done = False

    def response(self, response_type: type[ResponseT]) -> ResponseT:
        raise BrokerUnreachable("the connection broke")


class Broker:
    """The sender's view of a broker: records the sequences of the batches that it receives."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.closed = False
        self.sequences: list[int] = []

    def version(self, key: ApiKey) -> int:
        return 9

    def expire(self, now: float) -> bool:
        return False

    def fileno(self) -> int:
        return -1

    def send(self, key: ApiKey, message: ProduceRequest, **options: Any) -> Sent:
        for topic in message.topic_data:
            for partition in topic.partition_data:
                records = partition.records or b""
                self.sequences.append(parse_batch(records, 0, len(records)).base_sequence)
        return Sent()

    def oldest_unanswered(self) -> None:
        return None


def test_a_new_leader_receives_no_batch_before_the_former_leader_responds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former leader may have replicated batches without acknowledging them; later batches would precede
    them.
    """
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    cluster = NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"}))
    brokers = {1: Broker(1), 2: Broker(2)}
    leader = 1
    monkeypatch.setattr(cluster, "leader", lambda name, partition: leader)
    monkeypatch.setattr(cluster, "ready_connection", lambda node_id, purpose: brokers[node_id])
    sender = Sender(cluster, found)
    sender._producer_id, sender._producer_epoch = 7, 0

    def send(value: bytes) -> None:
        found.append(topic, 0, 1, None, value, None, None, 0.0)
        sender._send_ready(time.monotonic() + 1)

    send(b"first")
    leader = 2
    send(b"second")
    assert (brokers[1].sequences, brokers[2].sequences) == ([0], [])
    queue = topic.queues[0]
    moved = error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "produce to t-0")
    sender.results.failed(queue.in_flight[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, moved)
    sender._send_ready(time.monotonic() + 60)
    assert brokers[2].sequences == [0]
    sender.results.succeeded(queue.in_flight[0], 0, -1)
    sender._send_ready(time.monotonic() + 60)
    assert brokers[2].sequences == [0, 1]
    sender._pipe.close()


def sender_to_one_broker(
    monkeypatch: pytest.MonkeyPatch, partitions: int = 1, **settings: Any
) -> tuple[Sender, RecordAccumulator, TopicQueues, Broker]:
    """A sender with a producer id, and the broker that leads the partitions of its topic."""
    found, topic = accumulator(), TopicQueues("t", partitions)
    found.topics["t"] = topic
    cluster = NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"}, **settings))
    broker = Broker(1)
    monkeypatch.setattr(cluster, "leader", lambda name, partition: 1)
    monkeypatch.setattr(cluster, "ready_connection", lambda node_id, purpose: broker)
    sender = Sender(cluster, found)
    sender._producer_id, sender._producer_epoch = 7, 0
    return sender, found, topic, broker


def test_a_batch_is_retried_if_another_thread_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the thread of a refused login: the connection is closed first, then its requests end."""
    sender, found, topic, broker = sender_to_one_broker(monkeypatch)
    found.append(topic, 0, 1, None, b"v", None, None, 0.0)
    sender._send_ready(time.monotonic() + 1)
    queue = topic.queues[0]
    ((request, _),) = sender._in_flight[broker]
    sender._polled_connections[10_000] = broker
    broker.closed = True
    sender._poll_responses(0.0)
    request.done = True
    sender._poll_responses(0.0)
    assert (len(queue.in_flight), len(queue.waiting)) == (0, 1)
    assert not sender._polled_connections
    sender._pipe.close()


@pytest.mark.parametrize(
    ("first", "sequences"),
    [(2**31 - 4, [2**31 - 4, 2**31 - 1]), (2**31 - 3, [2**31 - 3, 0]), (2**31 - 2, [2**31 - 2, 1])],
)
def test_sequences_continue_with_0_after_the_largest(
    monkeypatch: pytest.MonkeyPatch, first: int, sequences: list[int]
) -> None:
    sender, found, topic, broker = sender_to_one_broker(monkeypatch)
    queue = topic.queues[0]
    queue.producer_id, queue.producer_epoch, queue.next_sequence = 7, 0, first
    for _ in range(2):
        for _ in range(3):
            found.append(topic, 0, 1, None, b"v", None, None, 0.0)
        sender._send_ready(time.monotonic() + 1)
    assert broker.sequences == sequences
    sender._pipe.close()


def test_a_batch_without_idempotence_has_no_producer_id() -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    found.append(topic, 0, 1, None, b"v", None, None, 0.0)
    (waiting,) = topic.queues[0].waiting
    assert (topic.queues[0].producer_id, topic.queues[0].producer_epoch) == (-1, -1)
    data = waiting.builder.build(waiting.producer_id, waiting.producer_epoch, waiting.sequence)
    batch = parse_batch(data, 0, len(data))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize(("epoch", "after"), [(0, (7, 1)), (32766, (7, 32767)), (32767, (-1, 32767))])
def test_a_producer_gets_another_id_after_the_largest_epoch(epoch: int, after: tuple[int, int]) -> None:
    found, topic = accumulator(), TopicQueues("t", 1)
    found.topics["t"] = topic
    sender = Sender(NetworkClient(ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"})), found)
    sender._producer_id, sender._producer_epoch = 7, 0
    found.append(topic, 0, 1, None, b"v", None, None, 0.0)
    queue = topic.queues[0]
    (waiting,) = queue.waiting
    waiting.sequence, queue.next_sequence, queue.epoch_bump_required = 8, 9, True
    queue.producer_id, queue.producer_epoch = 7, epoch
    sender._bump_epoch(queue)
    assert (queue.producer_id, queue.producer_epoch) == after
    assert sender._producer_id == after[0]
    assert (queue.epoch_bump_required, queue.next_sequence, waiting.sequence) == (False, 0, -1)
    sender._pipe.close()


@pytest.mark.parametrize(
    ("epoch", "sequences", "left"),
    [(0, [0, 0], 0), (32766, [0, 0], 0), (32767, [0], 1)],  # The last batch waits for another producer id.
)
def test_the_message_after_a_failed_message_is_sent_at_once_unless_the_epochs_are_exhausted(
    monkeypatch: pytest.MonkeyPatch, epoch: int, sequences: list[int], left: int
) -> None:
    sender, found, topic, broker = sender_to_one_broker(monkeypatch)
    sender._producer_epoch = epoch
    queue = topic.queues[0]
    found.append(topic, 0, 1, None, b"refused", None, None, 0.0)
    sender._send_ready(time.monotonic() + 1)
    refused = error_for(ErrorCode.INVALID_RECORD, "produce to t-0")
    sender.results.failed(queue.in_flight[0], ErrorCode.INVALID_RECORD, refused)
    found.append(topic, 0, 1, None, b"good", None, None, 0.0)
    sender._send_ready(time.monotonic() + 1)
    assert (broker.sequences, len(queue.waiting)) == (sequences, left)
    sender._pipe.close()


@pytest.mark.parametrize(
    ("values", "waited_s", "sent"),
    [
        ([b"v"], 0.0, 0),
        ([b"v"], 59.0, 0),
        ([b"v"], 61.0, 1),
        ([b"v" * 1100], 0.0, 1),  # larger than batch.size The second message begins another batch.
        ([b"v" * 600, b"w" * 600], 0.0, 1),  # The second message begins another batch.
    ],
)
def test_a_batch_waits_for_more_messages_until_it_is_full_or_linger_is_over(
    monkeypatch: pytest.MonkeyPatch, values: list[bytes], waited_s: float, sent: int
) -> None:
    sender, found, topic, broker = sender_to_one_broker(monkeypatch, linger_ms=60_000)
    for value in values:
        found.append(topic, 0, 1, None, value, None, None, 0.0)
    sender._send_ready(topic.queues[0].waiting[0].created + waited_s)
    assert len(broker.sequences) == sent
    sender._pipe.close()


def test_a_flush_ends_the_lingering_of_every_partition_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, found, topic, broker = sender_to_one_broker(monkeypatch, 3, linger_ms=60_000)
    for partition in range(3):
        found.append(topic, partition, 1, None, b"v", None, None, 0.0)
    now = topic.queues[0].waiting[0].created
    sender._send_ready(now)
    assert broker.sequences == []
    assert len(found.mark_all_urgent()) == 3
    sender._send_ready(now)
    assert broker.sequences == [0, 0, 0]
    sender._pipe.close()


@pytest.mark.parametrize(
    ("message", "of_record", "text"),
    [
        (None, None, "INVALID_RECORD, broker"),
        ("no key", None, "no key"),
        (None, "no key", "record 4: no key"),
        ("compacted", "no key", "compacted record 4: no key"),
        ("bad record 4: no key", "no key", "bad record 4: no key"),
    ],
)
def test_a_refusal_names_the_refused_record_once(
    monkeypatch: pytest.MonkeyPatch, message: str | None, of_record: str | None, text: str
) -> None:
    sender, found, topic, _ = sender_to_one_broker(monkeypatch)
    delivery = found.append(topic, 0, 1, None, b"v", None, None, 0.0)
    sender._send_ready(time.monotonic() + 1)
    entry = PartitionProduceResponse(index=0, error_code=ErrorCode.INVALID_RECORD, error_message=message)
    if of_record is not None:
        entry.record_errors = [BatchIndexAndErrorMessage(batch_index=4, batch_index_error_message=of_record)]
    answer = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[entry])])
    connection = Connection("there", 9, ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1"}))
    request = InFlightRequest(connection, ApiKey.PRODUCE, 9, 1, 0.0)
    monkeypatch.setattr(InFlightRequest, "response", lambda _, response_type: answer)
    sender._handle_response(request, list(topic.queues[0].in_flight))
    error = str(delivery.exception(0))
    assert text in error
    assert error.count("no key") == text.count("no key")
    sender._pipe.close()


def test_a_long_wait_reports_the_last_refusal_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, found, topic, _ = sender_to_one_broker(monkeypatch)
    queue = topic.queues[0]
    found.append(topic, 0, 1, None, b"v", None, None, 0.0)
    (batch,) = queue.waiting
    assert sender.waits() == []
    batch.created -= 60
    (wait,) = sender.waits()
    assert (wait.subject, wait.messages) == ("t-0", 1)
    assert wait.reason == "the brokers acknowledge more slowly than messages are sent"
    sender._send_ready(time.monotonic())
    refused = error_for(ErrorCode.NOT_ENOUGH_REPLICAS, "produce to t-0")
    sender.results.failed(batch, ErrorCode.NOT_ENOUGH_REPLICAS, refused)
    assert [wait.reason for wait in sender.waits()] == [str(refused)]
    sender._pipe.close()


def test_a_partition_with_failed_messages_is_reported_until_an_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender, found, topic, _ = sender_to_one_broker(monkeypatch)
    told: list[list[str]] = []
    for error in (None, ClientError("refused"), None):
        found.append(topic, 0, 1, None, b"v", None, None, 0.0)
        found.complete(topic.queues[0].waiting.pop(), error)
        topic.queues[0].open_batch = None
        told.append([wait.reason for wait in sender.waits()])
    assert told == [[], ["messages have failed"], []]
    sender._pipe.close()


@pytest.mark.parametrize(
    ("name", "number"), [("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_batches_have_the_configured_codec(name: str, number: int) -> None:
    """The numbers are the lowest three bits of the attributes of a record batch."""
    with Producer("unused:1", compression_type=name, linger_ms=60_000) as producer:
        made, topic = producer._accumulator, TopicQueues("t", 1)
        made.append(topic, 0, 1, None, b"v" * 100, None, None, 0.0)
        (batch,) = topic.queues[0].waiting
        data = batch.builder.build(-1, -1, -1)
        made.complete(batch, None)
    assert parse_batch(data, 0, len(data)).attributes & 7 == number
