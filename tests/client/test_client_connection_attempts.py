"""The failed brokers that a client remembers, and when it forgets them."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tidemill.client.background_update import BackgroundUpdate
from tidemill.client.cluster_metadata import Node
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import (
    FORGOTTEN_S,
    BrokerFailures,
    ConnectionAttempts,
    Opener,
)
from tidemill.client.errors import BrokerUnreachable, ConnectionAttemptPending
from tidemill.client.network_client import CONTROL, NetworkClient

CONFIG = ClientConfig(COMMON, {"bootstrap.servers": "unused:1"})


def test_old_failures_of_a_broker_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    failures = BrokerFailures(CONFIG, random.Random(1))
    for _ in range(8):
        failures.record(1, BrokerUnreachable("away"))
    assert failures.delay(1) >= 0.8
    assert failures.repeated(5) == [(1000.0, "away")]
    now_s += FORGOTTEN_S + 2
    failures.record(1, BrokerUnreachable("away again"))
    assert failures.delay(1) <= 0.06
    assert failures.reason(1) == (now_s, "away again")
    assert failures.repeated(5) == []


def test_a_client_with_a_responding_broker_reports_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a later metadata refresh, as for the coordinator of a group."""
    cluster = NetworkClient(CONFIG)
    found = Connection("unused", 1, CONFIG)
    reasons: list[str] = []

    def first(*_: object) -> Connection:
        if not reasons:
            reasons.append("no broker can be reached")
            raise BrokerUnreachable(reasons[0])
        reasons.extend(wait.reason for wait in cluster.waits())
        return found

    monkeypatch.setattr(cluster._attempts, "open_first", first)
    try:
        assert cluster.any_connection(time.monotonic() + 60) is found
        assert reasons == ["no broker can be reached"] * 2
        assert cluster.waits() == []
    finally:
        cluster.close()


@pytest.mark.parametrize(("node_id", "named"), [(1, "broker away:9092 is"), (7, "broker 7 is")])
def test_a_recently_failed_broker_is_named_by_its_address_if_known(
    node_id: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = NetworkClient(CONFIG)
    cluster.nodes[1] = Node(1, "away", 9092, None)
    monkeypatch.setattr(cluster, "connection_delay", lambda node_id: 60.0)
    try:
        with pytest.raises(BrokerUnreachable, match=named) as raised:
            cluster.connection(node_id, CONTROL, time.monotonic() + 1)
        assert raised.value.broker == ("away:9092" if node_id == 1 else None)
        cluster._broker_failures.record(node_id, BrokerUnreachable("its name cannot be resolved"))
        with pytest.raises(BrokerUnreachable, match=f"{named} .*: its name cannot be resolved"):
            cluster.connection(node_id, CONTROL, time.monotonic() + 1)
    finally:
        cluster.close()


def test_the_pause_between_attempts_at_all_brokers_grows_to_the_configured_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also across calls, such as those of a background refresh."""
    now_s = 1000.0
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        if pause_s > 0:
            pauses.append(pause_s)
            now_s += pause_s

    def refused(*_: object) -> Connection:
        raise BrokerUnreachable("refused")

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    cluster = NetworkClient(
        ClientConfig(COMMON, {"bootstrap.servers": "unused:1", "reconnect.backoff.max.ms": 6_000})
    )
    monkeypatch.setattr(cluster._attempts, "open_first", refused)
    try:
        for _ in range(6):
            with pytest.raises(BrokerUnreachable, match="refused"):
                cluster.any_connection(now_s + 5)
        # With a jitter of a fifth. A pause ends at the deadline of its call at the latest.
        assert all(0.8 * base <= pause <= 1.2 * base for base, pause in zip(DOUBLED, pauses, strict=False))
        assert len(pauses) > len(DOUBLED)
        assert all(pause > 4 for pause in pauses[len(DOUBLED) :])
    finally:
        cluster.close()


DOUBLED = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


def test_an_attempt_that_is_in_progress_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = NetworkClient(
        ClientConfig(
            COMMON,
            {
                "bootstrap.servers": "unused:1",
                "reconnect.backoff.ms": 60_000,
                "reconnect.backoff.max.ms": 60_000,
            },
        )
    )
    found = Connection("unused", 1, CONFIG)
    results: list[Connection | BrokerUnreachable] = [ConnectionAttemptPending("not yet"), found]

    def first(*_: object) -> Connection:
        result = results.pop(0)
        if isinstance(result, BrokerUnreachable):
            raise result
        return result

    monkeypatch.setattr(cluster._attempts, "open_first", first)
    began = time.monotonic()
    try:
        with pytest.raises(ConnectionAttemptPending, match="not yet"):
            cluster.any_connection(began)
        assert cluster.any_connection(began + 5) is found
        assert time.monotonic() - began < 4
    finally:
        cluster.close()


def test_a_connection_that_opens_during_a_pause_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = NetworkClient(CONFIG)
    found = Connection("unused", 1, CONFIG)

    def refused(*_: object) -> Connection:
        raise BrokerUnreachable("refused")

    def sleep(_: float) -> None:
        cluster._bootstrap = found

    monkeypatch.setattr(cluster._attempts, "open_first", refused)
    monkeypatch.setattr(time, "sleep", sleep)
    try:
        assert cluster.any_connection(time.monotonic() + 2) is found
    finally:
        cluster.close()


@pytest.fixture
def no_thread_starts_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start of a thread fails, as at the limit of the system."""
    plain = threading.Thread.start
    failures = [RuntimeError("can't start new thread")]

    def start(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("no_thread_starts_at_first")
def test_a_broker_is_tried_again_after_a_failed_start_of_a_thread() -> None:
    attempts, found = ConnectionAttempts(), Connection("unused", 1, CONFIG)
    opener = Opener(1, "unused:1", lambda: found)
    with pytest.raises(RuntimeError, match="can't start"):
        attempts.open_first([opener], time.monotonic())
    assert attempts.open_first([opener], time.monotonic()) is found


@pytest.mark.usefixtures("no_thread_starts_at_first")
def test_the_metadata_is_refreshed_after_a_failed_start_of_a_thread() -> None:
    update, done = BackgroundUpdate(0.0), threading.Event()
    with pytest.raises(RuntimeError, match="can't start"):
        update.start(lambda deadline: None, lambda problem: None, done.set)
    for _ in range(2):
        update.start(lambda deadline: None, lambda problem: None, done.set)
        assert done.wait(5)
        done.clear()


@pytest.mark.usefixtures("no_thread_starts_at_first")
def test_a_connection_is_opened_in_the_background_after_a_failed_start_of_a_thread() -> None:
    cluster, done = NetworkClient(CONFIG), threading.Event()
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            cluster.open_in_background(1, CONTROL, done.set)
        cluster.open_in_background(1, CONTROL, done.set)
        assert done.wait(5)
    finally:
        cluster.close()
