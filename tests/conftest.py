"""One ZooKeeper server for all tests of a process; each test gets a part of the tree to itself."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from second_tries import pytest_collection_modifyitems, pytest_unconfigure  # noqa: F401
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.testing.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from tidemill.coordination.zookeeper import ZooKeeperStore

_numbers = itertools.count()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background so, and the commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


def end_session(store: ZooKeeperStore) -> None:
    """Ends a session behind the back of the store that has it: for ZooKeeper, and for it, it has expired."""
    client = store._link._client
    session_id, password = client.client_id
    host, port = client.hosts[0]
    connect = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, -11)
    with socket.create_connection((host, port), 10) as one:
        one.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close)))
        while one.recv(4096):
            pass


@pytest.fixture
def expire() -> Callable[[ZooKeeperStore], None]:
    """Ends a store's session as a server would that heard nothing of it; blocks for a moment."""
    return end_session
