"""The sender thread's updates of metadata and producer id: their errors, and the pauses after these."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON, PRODUCER
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.client.network_client import NetworkClient
from tidemill.client.record_accumulator import Delivery, RecordAccumulator, TopicQueues
from tidemill.client.sender import Sender
from tidemill.model.errors import ConfigError

BACKOFF_MS = 200
WATCHED_S = 1.0
UPDATES_MAX = 1 + int(WATCHED_S * 1000 / BACKOFF_MS)
"""The first update, and one after each pause."""

FAILURES = {
    "login": AuthenticationFailed("refused"),
    "configuration": ConfigError("sasl.oauth.token.provider='gone:token': install it"),
    "broker": BrokerUnreachable("not running"),
}


class FailingUpdates:
    """A cluster whose metadata cannot be read: ``refresh`` raises the error, and counts its calls."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem
        self.count = 0

    def refresh(self, *arguments: Any, **options: Any) -> None:
        self.count += 1
        raise self.problem


Started = tuple[FailingUpdates, Delivery, Sender]


@pytest.fixture
def uncaught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException | None]]:
    """The exceptions that ended threads. Waits for the threads of updates."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda about: found.append(about.exc_value))
    yield found
    for thread in threading.enumerate():
        if thread.name == "tidemill-metadata":
            thread.join(10)


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch, uncaught: list[BaseException | None]
) -> Iterator[Callable[[BaseException], Started]]:
    """Starts the sender of one message, in a cluster whose metadata cannot be read."""
    senders: list[Sender] = []

    def made(problem: BaseException) -> Started:
        cluster = NetworkClient(
            ClientConfig(PRODUCER, {"bootstrap.servers": "unused:1", "retry.backoff.ms": BACKOFF_MS})
        )
        updates = FailingUpdates(problem)
        monkeypatch.setattr(cluster, "refresh", updates.refresh)
        found, topic = (
            RecordAccumulator(1000, 10_000, 5000, 0, None, 3, None, lambda: None),
            TopicQueues("t", 1),
        )
        found.topics["t"] = topic
        delivery = found.append(topic, 0, 1, None, b"v", None, None, 0.0)
        sender = Sender(cluster, found)
        senders.append(sender)
        sender.thread.start()
        return updates, delivery, sender

    yield made
    for sender in senders:
        sender.stopping = True
        sender.results.fail_all(ClientError("the test is over"))
        sender.wake()
        sender.thread.join(10)


@pytest.mark.parametrize("kind", FAILURES)
def test_a_pause_follows_each_failed_update(kind: str, start: Callable[[BaseException], Started]) -> None:
    updates, _, _ = start(FAILURES[kind])
    time.sleep(WATCHED_S)
    assert 2 <= updates.count <= UPDATES_MAX


def test_a_pause_follows_an_update_with_an_unexpected_error(
    start: Callable[[BaseException], Started], uncaught: list[BaseException | None]
) -> None:
    problem = RuntimeError("unexpected")
    updates, delivery, _ = start(problem)
    time.sleep(WATCHED_S)
    assert problem in uncaught
    assert 2 <= updates.count <= UPDATES_MAX
    assert not delivery.done()


@pytest.mark.parametrize("kind", ["login", "configuration"])
def test_an_error_that_a_retry_does_not_fix_fails_the_messages_at_once(
    kind: str, start: Callable[[BaseException], Started]
) -> None:
    _, delivery, _ = start(FAILURES[kind])
    error = delivery.exception(5)
    assert isinstance(error, AuthenticationFailed)
    assert str(error) == str(FAILURES[kind])


def test_messages_wait_while_no_broker_can_be_reached(start: Callable[[BaseException], Started]) -> None:
    _, delivery, _ = start(FAILURES["broker"])
    time.sleep(WATCHED_S)
    assert not delivery.done()


@pytest.mark.parametrize("problem", [RuntimeError("unexpected"), *FAILURES.values()], ids=str)
def test_a_pause_follows_a_failed_refresh_in_the_background(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch, uncaught: list[BaseException | None]
) -> None:
    cluster = NetworkClient(
        ClientConfig(COMMON, {"bootstrap.servers": "unused:1", "retry.backoff.ms": BACKOFF_MS})
    )
    monkeypatch.setattr(cluster, "refresh", FailingUpdates(problem).refresh)
    ended = threading.Event()
    began = time.monotonic()
    cluster.refresh_in_background(ended.set)
    assert ended.wait(10)
    assert time.monotonic() - began >= BACKOFF_MS / 1000
    cluster.close()
