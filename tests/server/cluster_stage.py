"""Several brokers on one real ZooKeeper, each a process of its own, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kazoo.client import KazooClient

from tidemill.client import Admin
from tidemill.testing import Broker

WAIT_S = 30.0


class Stage:
    """``brokers[1]`` and so on: processes that can be killed and started again."""

    def __init__(self, address: str, brokers: dict[int, Broker]) -> None:
        self.address = address
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self, *numbers: int) -> Admin:
        """An administration client that knows these brokers, or all."""
        known = [self.brokers[number] for number in numbers or self.brokers]
        return Admin(",".join(broker.bootstrap for broker in known))

    def leaders(self, topic: str) -> list[int]:
        """Who leads each partition, as the brokers that live say."""
        living = [number for number, broker in self.brokers.items() if broker.running]
        with self.admin(*living) as admin:
            return [partition.leader for partition in admin.describe_topic(topic).partitions]


def until(condition: Callable[[], Any], what: str) -> None:
    """Returns once it holds."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"it never came about: {what}")


@contextmanager
def nodes(address: str) -> Iterator[KazooClient]:
    """A client of ZooKeeper at a chroot."""
    server, _, path = address.partition("/")
    client = KazooClient(server)
    client.start()
    client.chroot = f"/{path}"
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def cluster(address: str, count: int = 3, **settings: str) -> Iterator[Stage]:
    """Brokers 1 to ``count`` on that path of ZooKeeper. Keys have ``__`` for their dots."""
    common = {
        "zookeeper.connect": address,
        "zookeeper.session.timeout.ms": "6000",
        "default.replication.factor": str(count),
        "offsets.topic.replication.factor": str(count),
        "min.insync.replicas": "2",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(Broker({**common, "node.id": str(number)}))
            for number in range(1, count + 1)
        }
        yield Stage(address, brokers)
