"""A ZooKeeper server for all tests of a process. Each test uses its own chroot."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from async_tests import pytest_pyfunc_call  # noqa: F401
from second_tries import pytest_collection_modifyitems, pytest_unconfigure  # noqa: F401
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.testing.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from tidemill.coordination.zookeeper_store import ZooKeeperStore

# Tests of all layers use the file system of the simulator.
sys.path.append(str(Path(__file__).parent / "simulation"))

_numbers = itertools.count()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background processes with SIGINT ignored, which the tested commands would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeper]:
    """A server that no test stops."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeper) -> Callable[..., ZooKeeperSettings]:
    """Creates settings with a new chroot; keyword arguments override settings."""
    chroot = f"/test-{next(_numbers)}"
    settings = ZooKeeperSettings(zookeeper_server.address, chroot)
    return lambda **others: settings._replace(**others)


def end_session(store: ZooKeeperStore) -> None:
    """Expires the session of a store, by closing it from a second connection."""
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
    """A function that expires the session of a store. It blocks for a moment."""
    return end_session
