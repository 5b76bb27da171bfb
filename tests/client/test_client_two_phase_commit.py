"""Transactions that commit together with another system: prepared, and ended by this or another producer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill.client import (
    Admin,
    Consumer,
    NewTopic,
    PreparedTransaction,
    Producer,
    TopicPartition,
    transaction_manager,
)
from tidemill.client.connection import Connection
from tidemill.client.errors import (
    AbortableTransactionError,
    BrokerUnreachable,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
)
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.testing.broker import Broker
from tidemill.wire.apis import ApiKey

MakeProducer = Callable[[], Producer]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A broker that allows transactions without a timeout. Apache Kafka 4.3 keeps no prepared ones."""
    with Broker({"transaction.two.phase.commit.enable": True}) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["the client adds partitions", "brokers add partitions"], autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the protocol: with a level that no broker has, the client adds partitions itself."""
    if request.param == "the client adds partitions":
        monkeypatch.setattr(transaction_manager, "IMPLICIT_VERSION", 99)
    return str(request.param)


@pytest.fixture
def topic(address: str) -> str:
    name = f"payments-{uuid.uuid4().hex[:12]}"
    with Admin(address) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


@pytest.fixture
def make(address: str) -> Iterator[MakeProducer]:
    """Creates the processes of one application, one after the other."""
    name = f"application-{uuid.uuid4().hex[:12]}"
    made: list[Producer] = []

    def make_producer() -> Producer:
        config = {"transactional.id": name, "transaction.two.phase.commit.enable": True}
        made.append(Producer(address, config))
        return made[-1]

    yield make_producer
    for producer in made:
        producer.close(5)


def committed(address: str, topic: str) -> list[bytes | None]:
    """Returns what a consumer reads up to the end, or to the first open transaction."""
    with Consumer(address, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        assigned = [TopicPartition(topic, number) for number in range(2)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found: list[bytes | None] = []
        while any(consumer.position(item) < ends[item] for item in assigned):
            found += [message.value for message in consumer.poll(0.1)]
    return sorted(found, key=str)


def prepare(producer: Producer, topic: str, *values: bytes) -> PreparedTransaction:
    producer.begin()
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 2)
    return producer.prepare()


def test_a_prepared_transaction_is_committed_by_its_producer(
    address: str, topic: str, make: MakeProducer
) -> None:
    producer = make()
    prepare(producer, topic, b"a", b"b")
    assert committed(address, topic) == []
    producer.commit()
    assert committed(address, topic) == [b"a", b"b"]
    assert producer.complete(prepare(producer, topic, b"c")) is True
    prepare(producer, topic, b"d")
    assert producer.complete(None) is False
    assert committed(address, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_another_producer_completes_what_a_failed_one_has_prepared(
    address: str, topic: str, make: MakeProducer, is_stored: bool
) -> None:
    failed = make()
    with failed.transaction():
        failed.send(topic, b"before", partition=0)
    prepared = prepare(failed, topic, b"a", b"b")
    successor = make()
    assert successor.complete(prepared if is_stored else None) is is_stored
    with successor.transaction():
        successor.send(topic, b"z", partition=1)
    expected = [b"a", b"b", b"before", b"z"] if is_stored else [b"before", b"z"]
    assert committed(address, topic) == expected
    with pytest.raises(ProducerFenced):
        failed.commit()
    assert committed(address, topic) == expected


def test_the_last_of_several_successors_completes_the_transaction(
    address: str, topic: str, make: MakeProducer
) -> None:
    prepared = prepare(make(), topic, b"a")
    second, third = make(), make()
    transactions = second._transactional("test")
    transactions._initialize(second._deadline(None), keeps_prepared=True)
    assert third.complete(prepared) is True
    with pytest.raises(ProducerFenced):
        second.complete(prepared)
    assert committed(address, topic) == [b"a"]


def test_a_producer_that_begins_aborts_what_another_has_prepared(
    address: str, topic: str, make: MakeProducer
) -> None:
    prepare(make(), topic, b"a")
    producer = make()
    with producer.transaction():
        producer.send(topic, b"b", partition=0)
    assert committed(address, topic) == [b"b"]


def test_the_stored_result_of_prepare_may_be_a_list(address: str, topic: str, make: MakeProducer) -> None:
    stored = json.loads(json.dumps(prepare(make(), topic, b"a")))
    assert make().complete(stored) is True
    assert committed(address, topic) == [b"a"]


@pytest.mark.parametrize("stored", [("3", "1"), "3,1", [3], [3, 1, 2], 3, [3, True]])
def test_a_stored_result_that_is_none_aborts_nothing(
    address: str, topic: str, make: MakeProducer, stored: Any
) -> None:
    prepared = prepare(make(), topic, b"a")
    successor = make()
    with pytest.raises(ConfigError, match="two integers"):
        successor.complete(stored)
    assert successor.complete(prepared) is True
    assert committed(address, topic) == [b"a"]


def test_a_prepared_transaction_that_is_not_the_stored_one_is_aborted(
    address: str, topic: str, make: MakeProducer
) -> None:
    stored = prepare(make(), topic, b"a")
    first = make()
    assert first.complete(stored) is True
    prepare(first, topic, b"b")
    assert make().complete(stored) is False
    assert committed(address, topic) == [b"a"]


def test_without_an_open_transaction_there_is_nothing_to_complete(
    address: str, topic: str, make: MakeProducer
) -> None:
    assert make().complete(PreparedTransaction(1, 2)) is None
    first = make()
    prepared = prepare(first, topic, b"a")
    first.commit()
    second = make()
    assert second.complete(prepared) is None
    with second.transaction():
        second.send(topic, b"b", partition=0)
    assert committed(address, topic) == [b"a", b"b"]


def test_a_closed_producer_leaves_its_prepared_transaction_open(
    address: str, topic: str, make: MakeProducer
) -> None:
    producer = make()
    prepared = prepare(producer, topic, b"a")
    producer.close()
    assert committed(address, topic) == []
    assert make().complete(prepared) is True
    assert committed(address, topic) == [b"a"]


def test_a_prepared_transaction_gets_no_further_messages(topic: str, make: MakeProducer) -> None:
    producer = make()
    with pytest.raises(ClientError, match="cannot prepare: no transaction is open"):
        producer.prepare()
    prepared = prepare(producer, topic, b"a")
    with pytest.raises(ClientError, match="a transaction is prepared; commit or abort it first"):
        producer.send(topic, b"b")
    with pytest.raises(ClientError, match="a transaction is prepared; commit or abort it first"):
        producer.begin()
    assert producer.complete(prepared) is True
    with pytest.raises(ClientError, match="cannot complete a transaction: no transaction is open"):
        producer.complete(prepared)


def test_transactions_with_a_timeout_cannot_be_prepared(address: str, topic: str) -> None:
    with Producer(address, transactional_id=f"{topic}-with-timeout") as producer:
        producer.begin()
        for call in (producer.prepare, lambda: producer.complete(None)):
            with pytest.raises(ClientError, match=r"set transaction\.two\.phase\.commit\.enable"):
                call()


def test_a_broker_that_does_not_allow_it_is_named(topic: str) -> None:
    config = {"transactional.id": topic, "transaction.two.phase.commit.enable": True}
    with Broker() as broker, Producer(broker.bootstrap, config) as producer:
        with pytest.raises(FatalTransactionError) as caught:
            producer.begin()
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_broker_that_does_not_allow_it_any_more_keeps_the_prepared_transaction(topic: str) -> None:
    key = "transaction.two.phase.commit.enable"
    config = {"transactional.id": topic, key: True}
    with Broker({key: True}) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, 2, 1)
        with Producer(broker.bootstrap, config) as producer:
            prepared = prepare(producer, topic, b"a")
        broker.stop()
        broker.config[key] = "false"
        broker.start()
        with Producer(broker.bootstrap, config) as second, pytest.raises(FatalTransactionError) as caught:
            second.complete(prepared)
        text = str(caught.value)
        assert f"cannot complete the prepared transaction of transactional id '{topic}'" in text
        assert f"the brokers do not have {key}=true" in text
        assert "stays open until another producer may complete it" in text
        broker.stop()
        broker.config[key] = "true"
        broker.start()
        with Producer(broker.bootstrap, config) as third:
            assert third.complete(prepared) is True
        assert committed(broker.bootstrap, topic) == [b"a"]


def test_a_transaction_without_its_offsets_cannot_be_prepared(
    topic: str, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prepared transaction can be committed, whatever happens to its producer."""
    producer = make()
    producer.begin()
    call = Connection.call

    def lose(self: Connection, key: ApiKey, *more: Any, **named: Any) -> Any:
        if key is ApiKey.TXN_OFFSET_COMMIT:
            raise BrokerUnreachable("the request is lost")
        return call(self, key, *more, **named)

    offsets = {TopicPartition(topic, 0): 4}
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "call", lose)
        with pytest.raises(RequestTimeout):
            producer.send_offsets(offsets, "group", 0.5)
    with pytest.raises(AbortableTransactionError, match="offsets of group 'group'"):
        producer.prepare()
    producer.send_offsets(offsets, "group")
    producer.prepare()
    producer.commit()
    with pytest.raises(ClientError):
        producer.prepare()
