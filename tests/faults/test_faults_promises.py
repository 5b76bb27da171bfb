"""The promises of a cluster with faults, one per test; and the absent promises."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from fault_checker import check
from fault_disks import no_small_disks
from fault_history import History, Places, read
from fault_load import QUIET, Load, read_all
from fault_network import STORE, unavailable
from fault_stage import PlacedBroker, Stage, stage

from tidemill.model.types import TopicPartition
from tidemill.testing.broker import BrokerFailed

PATIENCE_S = 60.0
TOPIC = "promises"
PARTITIONS = 3
SESSION_S = 6.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three brokers; each test leaves them running."""
    with stage(tmp_path_factory.mktemp("promises"), isolated=False, session_s=SESSION_S) as place:
        yield place
        assert place.complaints() == []


@contextlib.contextmanager
def load(place: Stage, tmp_path: Path, topic: str) -> Iterator[Load]:
    """Clients that write and read during the test; at the end their history must have no anomaly."""
    with place.admin() as admin:
        admin.create_topic(topic, PARTITIONS, 3)
    history = History(tmp_path / "history.jsonl", PARTITIONS)
    places = Places(topic, PARTITIONS)
    clients = Load(history, place, places)
    clients.start()
    try:
        await_in_sync(place, clients)
        # librdkafka does not repeat an OffsetFetch that a stopping coordinator refused.
        until(lambda: all(clients.committed(place) > 0 for place in range(PARTITIONS)))
        yield clients
        await_in_sync(place, clients)
        clients.end_writers()
        clients.end_readers(read_all(place.bootstrap, places, history))
        assert clients.failures() == []
        history.close()
        found, counts = check(read(history.path), clients.known)
        assert found == []
        assert counts["ack"] > 50
        assert counts["fail"] == 0
    finally:
        for one in clients.clients:
            one.ending.set()
        history.close()


def await_in_sync(place: Stage, clients: Load) -> None:
    """Waits until all replicas are in sync, and every partition accepts writes."""
    began = clients.history.now
    assert place.await_in_sync([clients.synced.topic], PATIENCE_S) == ""
    deadline = time.monotonic() + PATIENCE_S
    while not clients.history.acknowledged_since(began):
        assert time.monotonic() < deadline, "a partition acknowledges nothing"
        time.sleep(0.02)


def test_a_broker_with_an_expired_session_registers_again_and_loses_no_record(
    cluster: Stage, tmp_path: Path
) -> None:
    with load(cluster, tmp_path, f"expired-{time.monotonic_ns()}") as clients:
        for number in cluster.brokers:
            before = cluster.registered(number)
            assert cluster.expire_session(number)
            deadline = time.monotonic() + PATIENCE_S
            while cluster.registered(number) in (0, before):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            await_in_sync(cluster, clients)
            assert "the session with the coordination store has expired" in cluster.brokers[number].log


def test_a_broker_stopped_as_its_session_ends_moves_its_leaderships_soon(
    cluster: Stage, tmp_path: Path
) -> None:
    with load(cluster, tmp_path, "stopped"):
        number = cluster.controller()
        assert cluster.expire_session(number)
        began = time.monotonic()
        assert cluster.brokers[number].stop() == 0
        assert time.monotonic() - began < 4
        assert "is no longer the controller" in cluster.brokers[number].log
        cluster.brokers[number].start()


def test_a_broker_returns_after_its_old_session_has_ended(cluster: Stage, tmp_path: Path) -> None:
    with load(cluster, tmp_path, "back"):
        victim = cluster.controller()
        before = cluster.registered(victim)
        cluster.brokers[victim].kill()
        cluster.brokers[victim].start()
        assert cluster.registered(victim) not in (0, before)
        waited = "for its session to expire" in cluster.brokers[victim].log
        assert waited or cluster.brokers[victim].started_in_s > SESSION_S


def test_a_second_broker_with_the_id_of_a_live_broker_is_refused(cluster: Stage, tmp_path: Path) -> None:
    with cluster.admin() as admin:
        admin.create_topic("twin", PARTITIONS, 3)
    before = cluster.registered(2)
    twin = PlacedBroker(
        {**cluster.brokers[2].config}, tmp_path / "twin", tmp_path / "twin.log", [], "127.0.0.1"
    )
    began = time.monotonic()
    with pytest.raises(BrokerFailed, match="another broker has registered with this id"):
        twin.start()
    assert time.monotonic() - began >= SESSION_S
    twin.close()
    assert cluster.registered(2) == before
    assert cluster.await_in_sync(["twin"], PATIENCE_S) == ""


class ProducerWithoutRetries:
    """A producer without retries: receives each error of a broker."""

    def __init__(self, place: Stage, topic: str) -> None:
        self.topic = topic
        self.errors: list[KafkaError] = []
        self.acknowledged = 0
        config: dict[str, Any] = {"acks": "all", "retries": 0, "linger.ms": 0, "message.timeout.ms": 10_000}
        self.producer = Producer({"bootstrap.servers": place.bootstrap, **QUIET, **config})

    def write(self) -> None:
        """Sends one message to each partition."""
        for partition in range(PARTITIONS):
            self.producer.produce(
                self.topic, b"tried once 0", partition=partition, on_delivery=self._on_delivery
            )
        self.producer.poll(0.05)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


RETRIABLE = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
}


def test_a_rolling_restart_fails_no_request_for_good(cluster: Stage, tmp_path: Path) -> None:
    with cluster.admin() as admin:
        admin.create_topic("tried-once", PARTITIONS, 3)
    with load(cluster, tmp_path, "rolling") as clients:
        once = ProducerWithoutRetries(cluster, "tried-once")
        for number, broker in cluster.brokers.items():
            # The wait for the stop must not block the writes.
            broker.signal(signal.SIGTERM)
            while broker.running:
                once.write()
            assert broker.stop() == 0, f"broker {number}"
            broker.start()
            once.write()
            await_in_sync(cluster, clients)
            once.write()
        assert once.producer.flush(20) == 0
    assert [error for error in once.errors if error.code() not in RETRIABLE] == []
    assert once.acknowledged > 10


@pytest.mark.parametrize(("of_controller", "goal_s"), [(False, 1.0), (True, 5.0)])
def test_a_killed_broker_is_detected_long_before_its_session_ends(
    cluster: Stage, tmp_path: Path, of_controller: bool, goal_s: float
) -> None:
    """The goals apply to an otherwise idle machine; here other processes run at the same time."""
    with load(cluster, tmp_path, f"noticed-{of_controller}") as clients:
        controller = cluster.controller()
        others = [number for number in cluster.brokers if number != controller]
        victim = cluster.brokers[controller if of_controller else others[0]]
        history = clients.history
        history.begin_gap()
        victim.kill()
        began = history.now
        while not history.acknowledged_since(began + 0.1):
            assert history.now < began + 2 * SESSION_S
            time.sleep(0.01)
        assert history.gap() < min(goal_s + 3, SESSION_S - 1)
        victim.start()


@pytest.mark.skipif(bool(no_small_disks()), reason=f"disks cannot be filled: {no_small_disks()}")
def test_full_disks_cause_no_epoch_bump_of_a_producer(tmp_path: Path) -> None:
    """librdkafka would send messages of all partitions with new sequences, and some of them twice."""
    with stage(tmp_path / "stage", isolated=True, session_s=SESSION_S) as place:
        with load(place, tmp_path, TOPIC) as clients:
            for number in place.brokers:
                place.machines[number].disk.fill()
                history = clients.history
                failing = history.now
                while history.now < failing + 3:
                    time.sleep(0.05)
                place.machines[number].disk.clear()
                await_in_sync(place, clients)
            assert clients.epoch_changes == 0
        assert any("produce requests to" in broker.log for broker in place.brokers.values())
        for broker in place.brokers.values():
            broker.kill()


# Absent promises


def write(place: Stage, topic: str, values: range, acks: int, patience_ms: int = 10_000) -> list[int]:
    """Writes numbers to partition 0; returns the acknowledged ones."""
    acknowledged: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "acks": acks,
            "linger.ms": 0,
            "message.timeout.ms": patience_ms,
            **QUIET,
        }
    )
    for value in values:

        def on_delivery(error: Any, message: Any, value: int = value) -> None:
            if error is None:
                acknowledged.append(value)

        producer.produce(topic, f"w {value}".encode(), partition=0, on_delivery=on_delivery)
    producer.flush(patience_ms / 1000 + 10)
    return acknowledged


def records(place: Stage, topic: str, tmp_path: Path) -> list[tuple[str, int]]:
    """Returns writer and number of each record of partition 0."""
    history = History(tmp_path / f"{topic}-{time.monotonic_ns()}.jsonl", 1)
    read_all(place.bootstrap, Places(topic, 1), history)
    history.close()
    values = [value.split() for one in read(history.path) for _, value in one["m"]]
    return [(writer, int(number)) for writer, number in values]


def held(place: Stage, topic: str, tmp_path: Path) -> list[int]:
    """Returns the numbers in partition 0."""
    return [number for _, number in records(place, topic, tmp_path)]


def test_with_acks_1_a_failed_leader_loses_unreplicated_records(cluster: Stage, tmp_path: Path) -> None:
    with cluster.admin() as admin:
        admin.create_topic("window-one", 1, 3)
    assert write(cluster, "window-one", range(10), -1) == list(range(10))
    leader = cluster.leaders("window-one")[0]
    followers = [broker for number, broker in cluster.brokers.items() if number != leader]
    for broker in followers:
        broker.signal(signal.SIGSTOP)
    try:
        # The waiting fetches return the first of them, and may arrive later.
        assert write(cluster, "window-one", range(10, 11), 1) == [10]
        assert write(cluster, "window-one", range(11, 20), 1) == list(range(11, 20))
        assert write(cluster, "window-one", range(20, 25), -1, 1000) == []
        cluster.brokers[leader].kill()
    finally:
        for broker in followers:
            broker.signal(signal.SIGCONT)
    # If the broker returned before its session expires, it would stay the leader, and nothing would be lost.
    until(lambda: cluster.leaders("window-one")[:1] not in ([], [-1], [leader]))
    cluster.brokers[leader].start()
    assert cluster.await_in_sync(["window-one"], PATIENCE_S) == ""
    assert held(cluster, "window-one", tmp_path) in (list(range(10)), list(range(11)))


@pytest.mark.parametrize("is_unclean", [True, False])
def test_an_unclean_election_loses_records_that_the_new_leader_lacks(
    cluster: Stage, tmp_path: Path, is_unclean: bool
) -> None:
    """The settings of the topic permit it, with one in-sync replica; otherwise the partition waits."""
    topic = f"window-unclean-{is_unclean}"
    configs = {"unclean.leader.election.enable": str(is_unclean).lower(), "min.insync.replicas": "1"}
    with cluster.admin() as admin:
        admin.create_topic(topic, 1, assignments={0: [1, 2]}, configs=configs)
    assert write(cluster, topic, range(10), -1) == list(range(10))
    cluster.brokers[2].kill()
    assert write(cluster, topic, range(10, 20), -1) == list(range(10, 20))
    cluster.brokers[1].kill()
    cluster.brokers[2].start()
    if is_unclean:
        deadline = time.monotonic() + PATIENCE_S
        while cluster.leaders(topic) != [2]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert held(cluster, topic, tmp_path) == list(range(10))
    else:
        assert cluster.leaders(topic) == [-1]
    cluster.brokers[1].start()
    assert cluster.await_in_sync([topic], PATIENCE_S) == ""
    assert held(cluster, topic, tmp_path) == list(range(10 if is_unclean else 20))


@pytest.mark.skipif(bool(unavailable()), reason=f"networks cannot be cut: {unavailable()}")
def test_an_isolated_leader_accepts_writes_no_longer_than_its_session(
    tmp_path: Path,
) -> None:
    """Clients still reach the leader. Writes with ``acks=1`` in that time are lost, later ones are not."""
    with stage(tmp_path / "stage", isolated=True, session_s=2.0) as place:
        net = place.network
        assert net is not None
        with place.admin() as admin:
            admin.create_topic(TOPIC, 1, 3)
        assert write(place, TOPIC, range(10), -1) == list(range(10))
        leader = place.leaders(TOPIC)[0]
        others = [other for other in (*place.brokers, STORE) if other != leader]
        try:
            for other in others:
                net.cut(leader, other)
            taken = written_until_refused(place, leader)
            # Metadata of the disconnected broker is outdated.
            rest = Stage(place.zookeeper, {n: b for n, b in place.brokers.items() if n != leader}, net, {})
            later = write(rest, TOPIC, range(5000, 5020), 1, 30_000)
            for other in others:
                net.join(leader, other)
            assert later == list(range(5000, 5020))
            assert place.await_in_sync([TOPIC], PATIENCE_S) == ""
            left = held(place, TOPIC, tmp_path)
            assert left[:10] == list(range(10))
            assert [number for number in left if number >= 5000] == later
            assert set(taken) - set(left), "the window of acks=1 was not seen"
        finally:
            for broker in place.brokers.values():
                broker.kill()


class Numbers:
    """A producer in a thread that writes 0, 1, 2 ... to partition 0, and records the acknowledged numbers."""

    def __init__(self, place: Stage, topic: str, acks: int) -> None:
        self.acknowledged: list[int] = []
        self.sent = 0
        self._topic = topic
        self._value = "one %d" if acks == 1 else "all %d"
        self._producer = Producer(
            {"bootstrap.servers": place.bootstrap, "acks": acks, "linger.ms": 0, "request.timeout.ms": 2000}
            | QUIET
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            number = self.sent
            self.sent += 1
            self._producer.produce(
                self._topic,
                self._value.encode() % number,
                partition=0,
                on_delivery=lambda error, message, number=number: self._on_delivery(error, number),
            )
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def _on_delivery(self, error: KafkaError | None, number: int) -> None:
        if error is None:
            self.acknowledged.append(number)

    def until_later_acknowledgement(self) -> None:
        """Returns once a message that is sent from now on is acknowledged."""
        last = self.sent
        deadline = time.monotonic() + PATIENCE_S / 2
        while not any(number > last for number in self.acknowledged[-40:]):
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.02)

    def stop(self) -> None:
        """Waits for the results of all messages."""
        self._stopped.set()
        self._thread.join()


@pytest.mark.skipif(bool(unavailable()), reason=f"networks cannot be cut: {unavailable()}")
def test_a_leader_that_missed_a_reassignment_stops_leading(tmp_path: Path) -> None:
    """The controller that moved the partition did not reach the leader; the next controller does."""
    with stage(tmp_path / "stage", isolated=True, session_s=2.0) as place:
        net = place.network
        assert net is not None
        first = place.controller()
        old, new = (number for number in place.brokers if number != first)
        partition = TopicPartition(TOPIC, 0)
        with place.admin() as admin:
            admin.create_topic(TOPIC, assignments={0: [old, new]}, configs={"min.insync.replicas": "1"})
        with_one, with_all = numbers = [Numbers(place, TOPIC, acks) for acks in (1, -1)]
        try:
            for one in numbers:
                one.until_later_acknowledgement()
            net.cut(first, old)
            with place.admin() as admin:
                assert admin.alter_reassignments({partition: [new]}) == {partition: None}
            knows = Stage(place.zookeeper, {new: place.brokers[new]}, net, {})
            until(lambda: knows.leaders(TOPIC) == [new])
            # An unreachable controller alone changes nothing: the leader continues for clients with outdated
            # metadata.
            until(lambda: place.expire_session(first) and place.controller() not in (0, first))
            net.join(first, old)
            connected = Stage(place.zookeeper, {old: place.brokers[old]}, net, {})
            until(lambda: connected.leaders(TOPIC) == [new])
            time.sleep(0.5)
            begin = with_one.sent
            for one in numbers:
                one.until_later_acknowledgement()
        finally:
            for one in numbers:
                one.stop()
        found = set(records(place, TOPIC, tmp_path))
        assert {("one", number) for number in with_one.acknowledged if number >= begin} <= found
        assert {("all", number) for number in with_all.acknowledged} <= found
        assert len(with_all.acknowledged) == with_all.sent
        assert Path(place.brokers[old].data_dir, f"{TOPIC}-0").is_dir(), "its data was deleted"
        for broker in place.brokers.values():
            broker.kill()


def until(condition: Callable[[], bool]) -> None:
    """Waits until ``condition`` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


def written_until_refused(place: Stage, leader: int) -> list[int]:
    """Writes with ``acks=1`` until the broker no longer leads; returns the acknowledged numbers."""
    acknowledged: list[int] = []
    alone = Stage(place.zookeeper, {leader: place.brokers[leader]}, place.network, {})
    deadline = time.monotonic() + PATIENCE_S
    for number in range(10, 4000):
        if "stopped leading" in place.brokers[leader].log:
            return acknowledged
        assert time.monotonic() < deadline
        acknowledged += write(alone, TOPIC, range(number, number + 1), 1, 1000)
    raise AssertionError("it leads on")
