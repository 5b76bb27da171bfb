"""Transactions of the producer: commit, abort, fencing, offsets, and both versions of the protocol."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tidemill.client import Admin, Consumer, Producer, transaction_manager
from tidemill.client.connection import Connection
from tidemill.client.errors import (
    AbortableTransactionError,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
    error_for,
)
from tidemill.client.transaction_manager import ConsumerGroupMetadata, State, TransactionManager
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey

NewTopic = Callable[..., str]
MakeProducer = Callable[..., Producer]


@pytest.fixture(params=["the client adds partitions", "brokers add partitions"], autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the protocol: with a level that no broker has, the client adds partitions itself."""
    if request.param == "the client adds partitions":
        monkeypatch.setattr(transaction_manager, "IMPLICIT_VERSION", 99)
    return str(request.param)


@pytest.fixture
def make(broker_address: str) -> Iterator[MakeProducer]:
    """Creates producers, all with the same transactional id unless it is given."""
    name = f"transactional-{uuid.uuid4().hex[:12]}"
    made: list[Producer] = []

    def make_producer(**config: object) -> Producer:
        made.append(Producer(broker_address, {"transactional.id": name, **config}))
        return made[-1]

    yield make_producer
    for producer in made:
        producer.close(5)


def values(
    address: str, topic: str, isolation_level: str = "read_committed", partitions: int = 3
) -> list[bytes | None]:
    """Returns all values of a topic, sorted; up to the first open transaction for committed ones."""
    with Consumer(address, {"isolation.level": isolation_level, "auto.offset.reset": "earliest"}) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while any(consumer.position(item) < ends[item] for item in assigned):
            found += [message.value for message in consumer.poll(0.1)]
            assert time.monotonic() < deadline, found
    return sorted(found, key=str)


def test_committed_messages_are_read_and_aborted_ones_are_not(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, producer = new_topic(), make()
    with producer.transaction():
        for number in range(9):
            producer.send(topic, b"a%d" % number, partition=number % 3)
    with contextlib.suppress(ZeroDivisionError), producer.transaction():
        producer.send(topic, b"aborted")
        producer.flush()
        raise ZeroDivisionError
    producer.begin()
    producer.send(topic, b"b")
    producer.commit()
    committed = [*(b"a%d" % number for number in range(9)), b"b"]
    assert values(broker_address, topic) == committed
    assert values(broker_address, topic, "read_uncommitted") == sorted([*committed, b"aborted"])


def test_an_open_transaction_delays_readers_of_committed_messages(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, producer = new_topic(1), make()
    producer.begin()
    producer.send(topic, b"open")
    producer.flush()
    with Producer(broker_address) as other:
        other.send(topic, b"later").result(10)
    assert values(broker_address, topic, partitions=1) == []
    producer.commit()
    assert values(broker_address, topic, partitions=1) == [b"later", b"open"]


def wait_until_ended(admin: Admin, partition: TopicPartition) -> None:
    """Waits for the marker of a transaction, which follows the response to its end."""
    deadline = time.monotonic() + 10
    while admin.open_transactions([partition]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_leader_describes_open_transactions_with_their_first_offset(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, producer = new_topic(1), make()
    partition = TopicPartition(topic, 0)
    with Admin(broker_address) as admin:
        with producer.transaction():
            producer.send(topic, b"ended")
        wait_until_ended(admin, partition)
        producer.begin()
        producer.send(topic, b"open").result(10)
        (found,) = admin.open_transactions([partition])
        # Offset 1 has the marker of the first transaction.
        assert (found.partition, found.start_offset) == (partition, 2)
        assert admin.find_hanging_transactions([partition], idle_for_ms=0) == []
        producer.abort()
        wait_until_ended(admin, partition)


def test_transactions_without_messages(broker_address: str, new_topic: NewTopic, make: MakeProducer) -> None:
    topic, producer = new_topic(1), make()
    for end in (producer.commit, producer.abort, producer.commit):
        producer.begin()
        end()
    with producer.transaction():
        producer.send(topic, b"x")
    assert values(broker_address, topic, partitions=1) == [b"x"]


def test_a_second_producer_aborts_the_transaction_of_the_first_and_fences_it(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, first = new_topic(), make()
    first.begin()
    first.send(topic, b"zombie")
    first.flush()
    second = make()
    with second.transaction():
        second.send(topic, b"second")
    first.send(topic, b"late zombie")
    with pytest.raises((ProducerFenced, AbortableTransactionError)):
        first.commit()
    with pytest.raises(ClientError):
        first.send(topic, b"later zombie")
    with pytest.raises(FatalTransactionError):
        first.abort()
    with pytest.raises(ProducerFenced):
        first.begin()
    assert values(broker_address, topic) == [b"second"]


def test_waiting_messages_of_a_fenced_producer_fail_at_once(
    new_topic: NewTopic, group: str, make: MakeProducer
) -> None:
    topic, first = new_topic(), make(**{"linger.ms": 60_000})
    first.begin()
    first.send(topic, b"committed")
    first.commit()
    make().begin()
    first.begin()
    waiting = first.send(topic, b"zombie")
    with pytest.raises(ProducerFenced):
        first.send_offsets({TopicPartition(topic, 0): 1}, group)
    began = time.monotonic()
    with pytest.raises(ProducerFenced):
        waiting.result(10)
    first.flush(10)
    first.close(10)
    assert time.monotonic() - began < 10


def test_the_block_of_a_fenced_producer_raises_its_fencing(new_topic: NewTopic, make: MakeProducer) -> None:
    topic, first = new_topic(), make()
    with first.transaction():
        first.send(topic, b"committed")
    make().begin()
    with pytest.raises(ProducerFenced), first.transaction():
        first.send(topic, b"zombie")


def test_offsets_are_committed_with_the_transaction(
    broker_address: str, new_topic: NewTopic, group: str, make: MakeProducer
) -> None:
    topic, producer = new_topic(1), make()
    item = TopicPartition(topic, 0)
    with Producer(broker_address) as source:
        for number in range(5):
            source.send(topic, b"%d" % number).result(10)
    config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Consumer(broker_address, config) as consumer:
        consumer.subscribe([topic])
        read = 0
        while read < 5:
            read += len(consumer.poll(0.5))
        with producer.transaction():
            producer.send_offsets({item: 5}, consumer.group_metadata())
        assert consumer.committed([item])[item].offset == 5
        producer.begin()
        producer.send_offsets({item: 2}, consumer.group_metadata())
        producer.abort()
        assert consumer.committed([item])[item].offset == 5
        stale = consumer.group_metadata()._replace(generation=99)
        producer.begin()
        with pytest.raises(AbortableTransactionError) as refused:
            producer.send_offsets({item: 3}, stale)
        assert refused.value.code == ErrorCode.ILLEGAL_GENERATION
        producer.abort()
        assert consumer.committed([item])[item].offset == 5
    with producer.transaction():
        producer.send_offsets({item: 4}, ConsumerGroupMetadata(group))
    with Consumer(broker_address, {"group.id": group}) as consumer:
        assert consumer.committed([item])[item].offset == 4


def test_a_message_that_fails_leaves_only_the_abort(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, producer = new_topic(1, max_message_bytes="1000"), make()
    producer.begin()
    producer.send(topic, b"kept")
    producer.flush()
    producer.send(topic, b"x" * 2_000)
    with pytest.raises(AbortableTransactionError):
        producer.commit()
    with pytest.raises(AbortableTransactionError):
        producer.send(topic, b"y")
    producer.abort()
    with producer.transaction():
        producer.send(topic, b"after")
    assert values(broker_address, topic, partitions=1) == [b"after"]


def test_a_message_during_a_commit_is_refused(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, producer = new_topic(1), make()
    flush = Producer.flush

    def flush_and_send(self: Producer, timeout: float | None = None) -> None:
        flush(self, timeout)
        with pytest.raises(ClientError, match="another thread ends the transaction"):
            self.send(topic, b"late")

    with monkeypatch.context() as patched:
        patched.setattr(Producer, "flush", flush_and_send)
        for end in (producer.commit, producer.abort, producer.commit):
            producer.begin()
            producer.send(topic, b"in time")
            end()
    assert values(broker_address, topic, partitions=1) == [b"in time"] * 2


def test_a_message_that_came_after_a_transaction_waits_for_the_next_one(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, producer = new_topic(1), make(**{"linger.ms": 0})
    with producer.transaction():
        producer.send(topic, b"first")
    with monkeypatch.context() as between:
        # As a thread that is interrupted between the check and the append.
        between.setattr(transaction_manager.TransactionManager, "check_open", lambda self: None)
        late = producer.send(topic, b"late")
    with pytest.raises(RequestTimeout):
        late.result(0.5)
    with Admin(broker_address) as admin:
        assert admin.open_transactions([TopicPartition(topic, 0)]) == []
    with producer.transaction():
        late.result(10)
    assert values(broker_address, topic, partitions=1) == [b"first", b"late"]


def test_closing_a_producer_aborts_its_transaction(
    broker_address: str, new_topic: NewTopic, make: MakeProducer
) -> None:
    topic, producer = new_topic(1), make()
    producer.begin()
    producer.send(topic, b"aborted").result(10)
    producer.close()
    with Producer(broker_address) as other:
        other.send(topic, b"read at once").result(10)
    assert values(broker_address, topic, partitions=1) == [b"read at once"]


@pytest.mark.parametrize(
    ("state", "following"),
    [
        (State.READY, State.COMMITTING_TRANSACTION),
        (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION),
        (State.ABORTING_TRANSACTION, State.COMMITTING_TRANSACTION),
        (State.ABORTABLE_ERROR, State.COMMITTING_TRANSACTION),
        (State.ABORTABLE_ERROR, State.READY),
        (State.PREPARED_TRANSACTION, State.IN_TRANSACTION),
        (State.FATAL_ERROR, State.READY),
    ],
)
def test_a_transition_that_is_not_in_the_table_raises(
    make: MakeProducer, state: State, following: State
) -> None:
    transactions = make()._transactional("test")
    transactions._state = state
    with pytest.raises(RuntimeError, match=f"{state.name} cannot handle the change to {following.name}"):
        transactions._change_state(following)
    assert transactions.state is state
    transactions._state = State.UNINITIALIZED


@pytest.mark.parametrize("operation", ["commit", "abort", "send", "send_offsets"])
def test_an_operation_without_begin_is_an_error(
    new_topic: NewTopic, make: MakeProducer, operation: str
) -> None:
    producer = make()
    operations = {
        "commit": producer.commit,
        "abort": producer.abort,
        "send": partial(producer.send, new_topic(), b"x"),
        "send_offsets": partial(producer.send_offsets, {TopicPartition("t", 0): 1}, "g"),
    }
    with pytest.raises(ClientError, match="no transaction is open"):
        operations[operation]()
    producer.begin()
    with pytest.raises(ClientError, match="a transaction is open; commit or abort it first"):
        producer.begin()


@pytest.mark.parametrize(
    ("offset", "group"),
    [("1", "g"), (-1, "g"), (1 << 63, "g"), (1, None), (1, ""), (1, ConsumerGroupMetadata(""))],
)
def test_offsets_that_are_none_are_named(make: MakeProducer, offset: Any, group: Any) -> None:
    producer = make()
    producer.begin()
    wrong = offset if group == "g" else group
    with pytest.raises(ConfigError, match=re.escape(repr(wrong))):
        producer.send_offsets({TopicPartition("t", 0): offset}, group)
    producer.commit()


@pytest.mark.parametrize("offsets", [None, [1]])
def test_offsets_that_are_no_mapping_are_refused(make: MakeProducer, offsets: Any) -> None:
    producer = make()
    producer.begin()
    with pytest.raises(TypeError, match=f"offsets={re.escape(repr(offsets))}: .* mapping of TopicPartition"):
        producer.send_offsets(offsets, "g")
    producer.commit()


def test_a_block_that_fails_in_a_fenced_producer_names_the_fencing(
    new_topic: NewTopic, make: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    first = make()

    def fail_after_fencing() -> None:
        with first.transaction():
            first.send(new_topic(), b"zombie").result(10)
            make().begin()
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        fail_after_fencing()
    assert "another client has fenced this producer, and so aborted the transaction" in caplog.text
    assert "its timeout will end it" not in caplog.text


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_block_may_end_its_transaction_itself(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, is_commit: bool
) -> None:
    topic, producer = new_topic(), make()
    with producer.transaction():
        producer.send(topic, b"first")
        producer.flush()
        producer.commit() if is_commit else producer.abort()
    with producer.transaction():
        producer.send(topic, b"second")
    assert values(broker_address, topic) == ([b"first"] if is_commit else []) + [b"second"]


def test_a_block_that_closes_its_producer_is_not_committed(new_topic: NewTopic, make: MakeProducer) -> None:
    producer = make()

    def close_within() -> None:
        with producer.transaction():
            producer.send(new_topic(), b"value")
            producer.close()

    with pytest.raises(ClientClosed):
        close_within()


def test_a_block_may_end_its_transaction_before_the_first_message(make: MakeProducer) -> None:
    producer = make()
    with producer.transaction():
        producer.abort()
    producer.begin()
    with pytest.raises(ClientError, match="a transaction is open"):
        producer.begin()


def test_a_producer_without_transactional_id_has_no_transactions(broker_address: str) -> None:
    with Producer(broker_address) as producer, pytest.raises(ClientError, match=r"has no transactional\.id"):
        producer.begin()


def test_a_producer_follows_the_level_of_the_transaction_version(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level changes, or the data moves to a broker with another one, such as Apache Kafka 3.9."""
    topic, producer = new_topic(1), make()
    transactions = producer._transactions
    assert transactions is not None
    for number, implicit_version in enumerate((99, 2, 99)):
        monkeypatch.setattr(transaction_manager, "IMPLICIT_VERSION", implicit_version)
        with producer.transaction():
            epoch = transactions.epoch
            producer.send(topic, b"by the former level %d" % number)
        if implicit_version == 2:
            # With the same epoch the next batch could become part of this transaction, before its marker.
            assert transactions.epoch > epoch
        with producer.transaction():
            assert transactions.is_implicit == (implicit_version == 2)
            producer.send(topic, b"by this level %d" % number)
    kinds = (b"by the former level %d", b"by this level %d")
    assert values(broker_address, topic, partitions=1) == [
        kind % number for kind in kinds for number in range(3)
    ]


def test_an_abort_can_be_repeated_after_the_response_with_the_next_epoch_was_lost(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, producer = new_topic(1, max_message_bytes="1000"), make()
    producer.begin()
    producer.send(topic, b"aborted").result(10)
    with pytest.raises(ClientError):
        producer.send(topic, b"x" * 2_000).result(10)
    call = Connection.call

    def lose(self: Connection, key: ApiKey, *more: Any, **named: Any) -> Any:
        response = call(self, key, *more, **named)
        if key is ApiKey.INIT_PRODUCER_ID:
            raise BrokerUnreachable("the response is lost")
        return response

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "call", lose)
        with contextlib.suppress(RequestTimeout):
            producer.abort(0.5)
    if producer._transactions is not None and producer._transactions.is_open:
        producer.abort()
    with producer.transaction():
        producer.send(topic, b"after")
    assert values(broker_address, topic, partitions=1) == [b"after"]


def test_one_of_two_threads_begins_a_transaction(make: MakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = make()
    init = TransactionManager.init

    def slow(self: TransactionManager, deadline: float) -> None:
        init(self, deadline)
        time.sleep(0.2)

    monkeypatch.setattr(TransactionManager, "init", slow)
    with ThreadPoolExecutor(2) as threads:
        errors = [future.exception(10) for future in [threads.submit(producer.begin) for _ in range(2)]]
    assert sorted(map(type, errors), key=str) == [type(None), ClientError]
    producer.commit()


def test_one_of_two_threads_commits_a_transaction(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one would otherwise end the next transaction of the earlier one."""
    topic, producer = new_topic(1), make()
    end = TransactionManager.end

    def slow(self: TransactionManager, is_commit: bool, deadline: float) -> None:
        time.sleep(0.2)
        end(self, is_commit, deadline)

    producer.begin()
    producer.send(topic, b"once")
    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(TransactionManager, "end", slow)
        errors = [future.exception(10) for future in [threads.submit(producer.commit) for _ in range(2)]]
    assert sorted(map(type, errors), key=str) == [type(None), ClientError]
    with producer.transaction():
        producer.send(topic, b"next")
    assert values(broker_address, topic, partitions=1) == [b"next", b"once"]


@pytest.mark.parametrize("is_closed_again", [True, False])
def test_a_producer_that_a_delivery_callback_closes_aborts_its_transaction(
    broker_address: str,
    new_topic: NewTopic,
    make: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    is_closed_again: bool,
) -> None:
    topic, producer = new_topic(1), make(**{"linger.ms": 0})
    took_s: list[float] = []

    def close(_: object, error: Exception | None) -> None:
        began = time.monotonic()
        producer.close()
        took_s.append(time.monotonic() - began)

    end = TransactionManager.end

    def slow(self: TransactionManager, is_commit: bool, deadline: float) -> None:
        time.sleep(0.3)
        end(self, is_commit, deadline)

    monkeypatch.setattr(TransactionManager, "end", slow)
    producer.begin()
    producer.send(topic, b"aborted", on_delivery=close)
    deadline = time.monotonic() + 10
    while not took_s and time.monotonic() < deadline:
        with contextlib.suppress(ClientError):
            producer.send(topic, b"more")
        time.sleep(0.001)
    assert took_s[0] < 1
    if is_closed_again:
        producer.close()
        deadline = time.monotonic()
    with Admin(broker_address) as admin:
        while admin.open_transactions([TopicPartition(topic, 0)]):
            assert time.monotonic() < deadline, "the transaction is open"
            time.sleep(0.05)
    assert values(broker_address, topic, partitions=1) == []


def test_a_producer_goes_on_after_its_id_has_expired() -> None:
    settings = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "transaction.state.log.num.partitions": "1",
    }
    with Broker(settings) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 1, 1)
        with Producer(broker.bootstrap, {"transactional.id": "idle"}) as producer:
            with producer.transaction():
                producer.send("t", b"before")
            deadline = time.monotonic() + 40
            while admin.list_transactions():
                assert time.monotonic() < deadline, "the id has not expired"
                time.sleep(0.1)
            with pytest.raises(AbortableTransactionError), producer.transaction():
                producer.send("t", b"lost")
            with producer.transaction():
                producer.send("t", b"after")
        assert values(broker.bootstrap, "t", partitions=1) == [b"after", b"before"]


@pytest.mark.parametrize("fault", ["killed", "paused"])
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_an_end_without_response_raises_a_timeout_and_can_be_repeated(fault: str, is_commit: bool) -> None:
    with Broker({"transaction.state.log.num.partitions": "1"}) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        with Producer(broker.bootstrap, {"transactional.id": "x", "request.timeout.ms": 1_000}) as producer:
            end = producer.commit if is_commit else producer.abort
            producer.begin()
            producer.send("t", b"x").result(10)
            broker.kill() if fault == "killed" else broker.pause()
            for _ in range(2):
                with pytest.raises(RequestTimeout):
                    end(1.5)
            broker.start() if fault == "killed" else broker.resume()
            end()
            with producer.transaction():
                producer.send("t", b"y")
        assert values(broker.bootstrap, "t", partitions=1) == ([b"x", b"y"] if is_commit else [b"y"])


def test_a_producer_whose_transaction_has_timed_out(version: str) -> None:
    """Brokers that add partitions let it go on after the abort; others have fenced it, as in Apache Kafka."""
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
        "transaction.state.log.num.partitions": "1",
    }
    with Broker(settings) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 1, 1)
        config = {"transactional.id": "slow", "transaction.timeout.ms": 500}
        with Producer(broker.bootstrap, config) as producer:
            producer.begin()
            producer.send("t", b"lost").result(10)
            deadline = time.monotonic() + 20
            while admin.describe_transaction("slow").state != "CompleteAbort":
                assert time.monotonic() < deadline, "the transaction does not time out"
                time.sleep(0.1)
            with pytest.raises(ClientError):
                producer.send("t", b"lost as well").result(10)
            with pytest.raises(AbortableTransactionError, match=r"longer than transaction\.timeout\.ms=500"):
                producer.commit()
            if version == "the client adds partitions":
                with pytest.raises(ProducerFenced):
                    producer.abort()
                return
            producer.abort()
            with producer.transaction():
                producer.send("t", b"kept")
        assert values(broker.bootstrap, "t", partitions=1) == [b"kept"]


def test_a_commit_waits_for_the_offsets_that_another_thread_sends(
    broker_address: str, new_topic: NewTopic, group: str, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, producer = TopicPartition(new_topic(1), 0), make()
    call = Connection.call
    is_sending = threading.Event()

    def slow(self: Connection, key: ApiKey, *more: Any, **named: Any) -> Any:
        if key is ApiKey.TXN_OFFSET_COMMIT:
            is_sending.set()
            time.sleep(0.5)
        return call(self, key, *more, **named)

    producer.begin()
    producer.send(item.topic, b"x").result(10)
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(Connection, "call", slow)
        sending = threads.submit(producer.send_offsets, {item: 4}, group)
        assert is_sending.wait(10)
        with pytest.raises(RequestTimeout):
            producer.commit(0.1)
        producer.commit()
        sending.result(10)
    with Consumer(broker_address, {"group.id": group}) as consumer:
        assert consumer.committed([item])[item].offset == 4
    with producer.transaction():
        producer.send(item.topic, b"y")


@pytest.mark.parametrize("goes_on", ["repeats", "aborts"])
def test_a_transaction_without_its_offsets_is_not_committed(
    broker_address: str,
    new_topic: NewTopic,
    group: str,
    make: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    goes_on: str,
) -> None:
    """An application may treat a timeout of send_offsets as one of commit, which it repeats."""
    item, producer = TopicPartition(new_topic(1), 0), make()
    call = Connection.call

    def lose(self: Connection, key: ApiKey, *more: Any, **named: Any) -> Any:
        if key is ApiKey.TXN_OFFSET_COMMIT:
            raise BrokerUnreachable("the request is lost")
        return call(self, key, *more, **named)

    producer.begin()
    producer.send(item.topic, b"x").result(10)
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "call", lose)
        with pytest.raises(RequestTimeout):
            producer.send_offsets({item: 4}, group, 0.5)
    with pytest.raises(AbortableTransactionError, match=f"offsets of group '{group}'"):
        producer.commit()
    if goes_on == "repeats":
        producer.send_offsets({item: 4}, group)
        producer.commit()
    else:
        producer.abort()
    with Consumer(broker_address, {"group.id": group}) as consumer:
        found = consumer.committed([item]).get(item)
        assert (None if found is None else found.offset) == (4 if goes_on == "repeats" else None)
    with producer.transaction():
        producer.send(item.topic, b"y")
    assert values(broker_address, item.topic, partitions=1) == [b"x", b"y"][goes_on == "aborts" :]


@pytest.mark.parametrize("delay_s", [0.0, 0.5])
def test_an_abort_right_after_the_first_message(
    broker_address: str,
    new_topic: NewTopic,
    make: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    delay_s: float,
) -> None:
    """The partition may be added to the transaction at the same time."""
    topic, producer = new_topic(1), make(**{"linger.ms": 0})
    call = Connection.call

    def slow(self: Connection, key: ApiKey, *more: Any, **named: Any) -> Any:
        if key is ApiKey.ADD_PARTITIONS_TO_TXN:
            time.sleep(delay_s)
        return call(self, key, *more, **named)

    monkeypatch.setattr(Connection, "call", slow)
    producer.begin()
    producer.commit()
    for number in range(10):
        producer.begin()
        producer.send(topic, b"aborted")
        time.sleep(0.02 * number * delay_s)
        producer.abort()
    time.sleep(delay_s)
    with Admin(broker_address) as admin:
        assert producer._transactions is not None
        assert admin.describe_transaction(producer._transactions.transactional_id).state != "Ongoing"
    with producer.transaction():
        producer.send(topic, b"committed")
    assert values(broker_address, topic, partitions=1) == [b"committed"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None), (ErrorCode.PRODUCER_FENCED, ProducerFenced)],
)
def test_an_abort_while_the_first_partition_is_refused(
    new_topic: NewTopic,
    make: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    code: ErrorCode,
    outcome: type[ClientError] | None,
) -> None:
    if version != "the client adds partitions":
        return
    topic, producer = new_topic(1), make(**{"linger.ms": 0})
    is_adding, may_fail = threading.Event(), threading.Event()

    def refuse(self: TransactionManager, wanted: object, deadline: float) -> None:
        is_adding.set()
        assert may_fail.wait(10)
        raise self._failed(error_for(code, "add partitions"))

    producer.begin()
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as threads:
        patched.setattr(TransactionManager, "_add_partitions", refuse)
        producer.send(topic, b"aborted")
        assert is_adding.wait(10)
        aborted = threads.submit(producer.abort)
        assert producer._transactions is not None
        while producer._transactions.state is not State.ABORTING_TRANSACTION:
            time.sleep(0.001)
        may_fail.set()
        problem = aborted.exception(10)
    if outcome is not None:
        assert type(problem) is outcome
        with pytest.raises(outcome):
            producer.begin()
        return
    assert problem is None
    with producer.transaction():
        producer.send(topic, b"committed")


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_a_consumer_waits_for_the_offsets_of_an_open_transaction(
    broker_address: str, new_topic: NewTopic, group: str, make: MakeProducer, isolation_level: str
) -> None:
    """Otherwise it would consume again, and its input may be without transactions."""
    item, producer = TopicPartition(new_topic(1), 0), make()
    with Producer(broker_address) as plain:
        for number in range(3):
            plain.send(item.topic, b"%d" % number).result(10)
    with producer.transaction():
        producer.send_offsets({item: 1}, group)
    producer.begin()
    producer.send_offsets({item: 2}, group)
    config = {"group.id": group, "isolation.level": isolation_level, "auto.offset.reset": "earliest"}
    with Consumer(broker_address, config) as consumer:
        with pytest.raises(ClientError) as waiting:
            consumer.committed([item], 0.5)
        assert waiting.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        consumer.assign([item])
        assert [record.value for record in consumer.poll(0.5)] == []
        producer.commit()
        assert consumer.committed([item])[item].offset == 2
        values_read: list[bytes | None] = []
        deadline = time.monotonic() + 10
        while not values_read and time.monotonic() < deadline:
            values_read += [record.value for record in consumer.poll(0.5)]
    assert values_read == [b"2"]


@pytest.mark.parametrize("operation", ["commit", "abort"])
def test_a_delivery_callback_cannot_end_the_transaction(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, operation: str
) -> None:
    """It would wait for responses that only its own thread handles."""
    topic, producer = new_topic(1), make(**{"linger.ms": 0})
    errors: list[Exception | None] = []

    def end(_: object, error: Exception | None) -> None:
        try:
            getattr(producer, operation)(3)
        except ClientError as problem:
            errors.append(problem)

    producer.begin()
    sent = [producer.send(topic, b"x", on_delivery=end)]
    deadline = time.monotonic() + 2
    while not errors and time.monotonic() < deadline:
        with contextlib.suppress(ClientError):
            sent.append(producer.send(topic, b"x"))
        time.sleep(0.001)
    assert "delivery callback" in str(errors[0])
    producer.commit()
    assert values(broker_address, topic, partitions=1) == [b"x"] * len(sent)


def admin_at(address: str, monkeypatch: pytest.MonkeyPatch) -> Admin:
    """Returns an admin client that ends transactions with the version of the protocol under test."""
    from tidemill.client import admin

    monkeypatch.setattr(admin, "IMPLICIT_VERSION", transaction_manager.IMPLICIT_VERSION)
    return Admin(address)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_prepared_transaction_is_ended_from_elsewhere(
    broker_address: str,
    new_topic: NewTopic,
    make: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    is_commit: bool,
) -> None:
    topic = new_topic()
    with make() as producer:
        producer.begin()
        sent = producer.send_batch(topic, [b"one", b"two"])
        prepared = producer.prepare(may_time_out=True)
        assert sent.sample().topic == topic
    name = str(producer.config["transactional.id"])
    with admin_at(broker_address, monkeypatch) as admin:
        assert admin.describe_transaction(name).state == "Ongoing"
        for _ in range(2):
            admin.end_transaction(name, prepared, is_commit=is_commit)
        with pytest.raises(ClientError) as caught:
            admin.end_transaction(name, prepared, is_commit=not is_commit)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert values(broker_address, topic) == ([b"one", b"two"] if is_commit else [])


def test_a_transaction_of_an_earlier_epoch_is_not_ended(
    broker_address: str, new_topic: NewTopic, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    former, later = make(), make()
    former.begin()
    former.send(topic, b"former")
    prepared = former.prepare(may_time_out=True)
    later.begin()
    later.send(topic, b"later")
    later.flush()
    name = str(later.config["transactional.id"])
    with admin_at(broker_address, monkeypatch) as admin:
        with pytest.raises(ClientError) as caught:
            admin.end_transaction(name, prepared, is_commit=True)
        assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert admin.describe_transaction(name).state == "Ongoing"
    later.commit()
    assert values(broker_address, topic) == [b"later"]


def test_messages_without_a_batch_have_no_sample(make: MakeProducer, new_topic: NewTopic) -> None:
    producer = make()
    producer.begin()
    with pytest.raises(ValueError, match="no message was sent"):
        producer.send_batch(new_topic(), []).sample()
    producer.abort()
