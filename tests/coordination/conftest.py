"""One ZooKeeper server for all tests of a process; each test gets a part of the tree to itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.testing.zookeeper import ZooKeeper

_numbers = itertools.count()


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeper]:
    """A server that nobody stops."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeper) -> Callable[..., ZooKeeperSettings]:
    """Settings for a chroot of the test's own; keywords replace some of them."""
    chroot = f"/test-{next(_numbers)}"
    settings = ZooKeeperSettings(zookeeper_server.address, chroot)
    return lambda **others: settings._replace(**others)
