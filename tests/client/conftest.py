"""A broker for the client tests: the one at TIDEMILL_TEST_BOOTSTRAP (such as Apache Kafka), or a Tidemill
broker.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from tidemill.client import Admin
from tidemill.client.connection import Connection
from tidemill.wire.apis import ApiKey


@pytest.fixture(scope="session")
def broker_address() -> Iterator[str]:
    """``host:port`` of a running broker."""
    given = os.environ.get("TIDEMILL_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    from tidemill.testing.broker import Broker

    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def admin(broker_address: str) -> Iterator[Admin]:
    with Admin(broker_address) as found:
        yield found


@pytest.fixture
def new_topic(admin: Admin) -> Iterator[Callable[..., str]]:
    """Creates topics with random names, and deletes them after the test."""
    made: list[str] = []

    def make(partitions: int = 3, **configs: str) -> str:
        name = f"client-{uuid.uuid4().hex[:12]}"
        admin.create_topic(name, partitions, 1, configs={k.replace("_", "."): v for k, v in configs.items()})
        made.append(name)
        return name

    yield make
    admin.delete_topics(made)


@pytest.fixture
def limit_versions(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[ApiKey, int]], None]:
    """Lets clients use no later versions of some APIs: those of an earlier broker."""
    version = Connection.version

    def limit(last: Mapping[ApiKey, int]) -> None:
        def limited(self: Connection, key: ApiKey, at_most: int = 32767) -> int:
            return version(self, key, min(at_most, last.get(key, at_most)))

        monkeypatch.setattr(Connection, "version", limited)

    return limit


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"
