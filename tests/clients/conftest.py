"""A broker that all tests of clients share, and new topics on it.

``TIDEMILL_TEST_BOOTSTRAP=host:port`` runs the tests that need only an address against a cluster that is
there, for instance Apache Kafka.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing import Broker

CONFIG = {
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    "message.max.bytes": "2000000",
    "group.min.session.timeout.ms": "1000",
}
"""What the tests rely on beside the defaults."""

HERE = Path(__file__).parent

LOG_LINES_SHOWN = 40

_brokers: list[Broker] = []
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings are errors, except those of the clients themselves."""
    for item in items:
        if HERE in item.path.parents:
            # How kafka-python reads its own schemas; sockets that clients do not close when a broker stops.
            for known in ("(read|open)_text is deprecated:DeprecationWarning", "unclosed:ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{known}"))


@pytest.fixture(autouse=True, scope="session")
def quiet_clients() -> None:
    """Captured log records would keep the clients' objects, including sockets, until after their test."""
    for name in ("kafka", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the log of the broker with a failed test."""
    report = yield
    if report.failed and HERE in item.path.parents:
        for broker in _brokers:
            lines = broker.log.splitlines()[-LOG_LINES_SHOWN:]
            report.sections.append((f"log of {broker}", "\n".join(lines)))
    return report


@pytest.fixture(scope="session")
def client_broker() -> Iterator[Broker]:
    """The broker that the tests of this folder share."""
    with Broker(CONFIG) as broker:
        _brokers.append(broker)
        yield broker
        _brokers.remove(broker)
        running, log = broker.running, broker.log
        broker.kill()  # Its hundreds of logs need no sync.
    assert running, f"the broker ended by itself:\n{log}"
    assert "Traceback" not in log, log


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker that the test may stop and kill."""
    with Broker() as broker:
        _brokers.append(broker)
        yield broker
        _brokers.remove(broker)
        log = broker.log
    assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the shared broker."""
    given = os.environ.get("TIDEMILL_TEST_BOOTSTRAP")
    if given:
        return given
    broker: Broker = request.getfixturevalue("client_broker")
    return broker.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """librdkafka's admin client of the shared broker."""
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Creates unique names: ``new_name("group")``."""

    def make(kind: str = "topic") -> str:
        return f"{kind}-{os.getpid()}-{next(_numbers)}"

    return make


@pytest.fixture
def new_topic(admin: AdminClient, new_name: Callable[[str], str]) -> Callable[..., str]:
    """Creates topics on the shared broker: ``new_topic(partitions=3, **{"cleanup.policy": "compact"})``."""

    def make(partitions: int = 1, **config: Any) -> str:
        name = new_name("topic")
        wanted = NewTopic(name, partitions, 1, config={key: str(value) for key, value in config.items()})
        admin.create_topics([wanted], operation_timeout=20)[name].result(20)
        return name

    return make
