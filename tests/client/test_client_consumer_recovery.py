"""A consumer after errors of its listener, of the cluster, and after interrupted calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidemill.client import Admin, Consumer, Producer, TopicPartition
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import Connection
from tidemill.client.errors import BrokerUnreachable, ClientClosed, RequestTimeout
from tidemill.client.group_offsets import fetch_offsets
from tidemill.client.network_client import NetworkClient
from tidemill.testing.broker import Broker
from tidemill.wire.messages.offset_fetch import OffsetFetchResponse

QUICK = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000, "auto.offset.reset": "earliest"}


def fill(address: str, topic: str, count: int) -> None:
    with Producer(address) as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(count)], partitions=[0] * count).result(10)


def read(consumer: Consumer, count: int, seconds: float = 15) -> int:
    """Polls until ``count`` records were returned; returns their number."""
    deadline = time.monotonic() + seconds
    found = 0
    while found < count and time.monotonic() < deadline:
        found += len(consumer.poll(0.2))
    return found


def test_a_topic_that_was_listed_before_it_was_assigned_is_refreshed(
    broker_address: str, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    with Consumer(broker_address, {**QUICK, "metadata.max.age.ms": 200}) as consumer:
        assert topic in consumer.topics()
        consumer.assign([(topic, 0)])
        assert read(consumer, 5) == 5
        admin.delete_topics([topic])
        deadline = time.monotonic() + 10
        while topic in admin.list_topics() and time.monotonic() < deadline:
            time.sleep(0.05)
        admin.create_topic(topic, 1, 1)
        fill(broker_address, topic, 20)
        consumer.seek(TopicPartition(topic, 0), 0)
        assert read(consumer, 20) == 20


class Listener:
    """Records its calls; raises the exceptions that it has for them, once each."""

    def __init__(self, **failures: BaseException) -> None:
        self.failures = failures
        self.calls: list[str] = []

    def _record(self, name: str) -> None:
        self.calls.append(name)
        failure = self.failures.pop(name, None)
        if failure is not None:
            raise failure

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("assigned")

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("revoked")

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._record("lost")


def test_a_client_error_of_the_listener_is_raised(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    listener = Listener(assigned=RequestTimeout("of on_assigned"), revoked=RequestTimeout("of on_revoked"))
    with Consumer(broker_address, QUICK, group_id=group) as consumer:
        consumer.subscribe([topic], listener=listener)
        with pytest.raises(RequestTimeout, match="of on_assigned"):
            consumer.poll(10)
        assert read(consumer, 5) == 5
        assert consumer._coordinator is not None
        consumer._coordinator.request_rejoin("a test")
        with pytest.raises(RequestTimeout, match="of on_revoked"):
            consumer.poll(10)
        deadline = time.monotonic() + 10
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert listener.calls == ["assigned", "revoked", "assigned"]


def test_unsubscribe_drops_the_subscription_although_the_listener_fails(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    with Consumer(broker_address, QUICK, group_id=group) as consumer:
        consumer.subscribe([topic], listener=Listener(revoked=ZeroDivisionError("of the user")))
        assert read(consumer, 5) == 5
        with pytest.raises(ZeroDivisionError, match="of the user"):
            consumer.unsubscribe()
        assert not consumer.subscription()
        consumer.assign([(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert read(consumer, 5) == 5


@pytest.mark.parametrize("end", [Consumer.close, Consumer.unsubscribe])
def test_the_partitions_of_a_removed_member_are_lost_when_it_leaves(
    broker_address: str, new_topic: Callable[..., str], group: str, end: Callable[[Consumer], None]
) -> None:
    topic = new_topic(1)
    listener = Listener()
    with Consumer(broker_address, QUICK, group_id=group) as consumer:
        consumer.subscribe([topic], listener=listener)
        deadline = time.monotonic() + 10
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert consumer._coordinator is not None
        consumer._coordinator.membership_lost()
        end(consumer)
    assert listener.calls == ["assigned", "lost"]


def woken_poll_s(consumer: Consumer, after_s: float = 0.5) -> float:
    """Wakes a poll(20); returns the seconds that it took."""
    timer = threading.Timer(after_s, consumer.wakeup)
    timer.start()
    began = time.monotonic()
    assert not consumer.poll(20)
    timer.join()
    return time.monotonic() - began


def test_a_wakeup_ends_the_commit_before_a_rebalance() -> None:
    listener = Listener()
    with Broker() as broker, Consumer(broker.bootstrap, QUICK, group_id="g") as consumer:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        fill(broker.bootstrap, "t", 5)
        consumer.subscribe(["t"], listener=listener)
        assert read(consumer, 5) == 5
        assert consumer._coordinator is not None
        consumer._coordinator.request_rejoin("a test")
        broker.pause()
        try:
            assert woken_poll_s(consumer) < 8
        finally:
            broker.resume()
        deadline = time.monotonic() + 10
        while listener.calls != ["assigned", "revoked", "assigned"] and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert listener.calls == ["assigned", "revoked", "assigned"]
        place = TopicPartition("t", 0)
        assert consumer.committed([place])[place].offset == 5


def test_an_interrupted_commit_before_a_rebalance_does_not_prevent_the_revocation(
    broker_address: str, new_topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    listener = Listener()
    with Consumer(broker_address, QUICK, group_id=group) as consumer:
        consumer.subscribe([topic], listener=listener)
        assert read(consumer, 5) == 5
        assert consumer._coordinator is not None
        commits = consumer._coordinator.commits
        plain = commits.send
        interrupts = [KeyboardInterrupt()]

        def send(*given: Any) -> Any:
            if interrupts:
                raise interrupts.pop()
            return plain(*given)

        monkeypatch.setattr(commits, "send", send)
        consumer._coordinator.request_rejoin("a test")
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10)
        deadline = time.monotonic() + 10
        while len(listener.calls) < 3 and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert listener.calls == ["assigned", "revoked", "assigned"]
        assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 5


def test_a_wakeup_ends_an_automatic_commit_that_looks_up_the_coordinator(
    broker_address: str, new_topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    released = threading.Event()
    with Consumer(broker_address, QUICK, group_id=group, auto_commit_interval_ms=50) as consumer:
        plain = consumer._network_client.find_coordinator

        def find_coordinator(*given: Any) -> int:
            released.wait(15)
            return plain(*given)

        monkeypatch.setattr(consumer._network_client, "find_coordinator", find_coordinator)
        consumer.assign([(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert woken_poll_s(consumer) < 8
        released.set()
        fill(broker_address, topic, 5)
        assert read(consumer, 5) == 5


def test_a_poll_without_records_commits_rarely_with_an_interval_of_zero(
    broker_address: str, new_topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    with Consumer(broker_address, QUICK, group_id=group, auto_commit_interval_ms=0) as consumer:
        consumer.subscribe([topic])
        assert read(consumer, 5) == 5
        assert consumer._coordinator is not None
        commits = consumer._coordinator.commits
        plain = commits.send
        sent: list[object] = []

        def send(*given: Any) -> Any:
            sent.append(given)
            return plain(*given)

        monkeypatch.setattr(commits, "send", send)
        assert not consumer.poll(1)
        assert 1 <= len(sent) < 12


def test_a_dropped_call_ends_early() -> None:
    """Its lock delays no other call, and the following polls raise their own errors."""
    with Consumer("127.0.0.1:1", QUICK, group_id="g") as consumer:
        consumer.subscribe(["t"])
        assert woken_poll_s(consumer) < 5
        began = time.monotonic()
        with pytest.raises((BrokerUnreachable, RequestTimeout)):
            consumer.topics(timeout=1)
        assert time.monotonic() - began < 5
        with pytest.raises(BrokerUnreachable, match="no broker can be reached"):
            consumer.poll(3)


def test_a_refresh_waits_for_another_until_its_deadline() -> None:
    with Consumer("127.0.0.1:1") as consumer, consumer._network_client._refresh_lock:
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match="another call reads the metadata"):
            consumer.topics(timeout=0.2)
        assert time.monotonic() - began < 5


def test_a_poll_starts_a_thread_again_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = threading.Thread.start
    failures = [RuntimeError("can't start new thread")]

    def start(thread: threading.Thread) -> None:
        if thread.name == "tidemill-poll" and failures:
            raise failures.pop()
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with Consumer("127.0.0.1:1", QUICK, group_id="g") as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(RuntimeError, match="can't start"):
            consumer.poll(0.1)
        with pytest.raises(BrokerUnreachable, match="no broker can be reached"):
            consumer.poll(0.1)


def test_a_call_of_the_coordinator_ends_when_the_client_is_closed() -> None:
    network_client = NetworkClient(ClientConfig(COMMON, {"bootstrap.servers": "127.0.0.1:1"}))
    network_client.close()
    began = time.monotonic()
    with pytest.raises(ClientClosed):
        fetch_offsets(network_client, "g", [TopicPartition("t", 0)], began + 10)
    assert time.monotonic() - began < 5


def test_a_response_without_the_requested_group_is_an_error_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network_client = NetworkClient(ClientConfig(COMMON, {"bootstrap.servers": "unused:1"}))
    connection = Connection("unused", 1, network_client.config)
    monkeypatch.setattr(connection, "version", lambda *given: 9)
    monkeypatch.setattr(connection, "call", lambda *given, **options: OffsetFetchResponse())
    monkeypatch.setattr(network_client, "find_coordinator", lambda *given: 1)
    monkeypatch.setattr(network_client, "connection", lambda *given: connection)
    with pytest.raises(BrokerUnreachable, match="invalid response"):
        fetch_offsets(network_client, "g", [TopicPartition("t", 0)], time.monotonic())
    network_client.close()
