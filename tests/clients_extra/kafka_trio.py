"""Three brokers of Apache Kafka 3.9 on ZooKeeper, and the state of a cluster by clients and by the store."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka_peer import Kafka, class_path
from kazoo.client import KazooClient

VERSION = "3.9.2"
REPLICATED = """
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
min.insync.replicas=2
default.replication.factor=3
zookeeper.session.timeout.ms=12000
"""
WAIT_S = 120


class Trio:
    """``kafkas[1]`` to ``kafkas[3]``; broker 2 has its data in ``directories[2]``."""

    def __init__(
        self,
        address: str,
        directories: dict[int, Path],
        place: Path,
        settings: str,
        ports: Mapping[int, int],
    ) -> None:
        self.kafkas: dict[int, Kafka] = {}
        for number, data in directories.items():
            home = place / f"kafka-{number}"
            home.mkdir()
            self.kafkas[number] = Kafka(
                class_path(VERSION),
                home,
                data,
                zookeeper=address,
                settings=REPLICATED + settings,
                node=number,
                port=ports.get(number, 0),
            )

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(kafka.bootstrap for kafka in self.kafkas.values())

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops all brokers, or kills them at the same time."""
        living = [one for one in self.kafkas.values() if one.program is not None]
        for kafka in living:
            assert kafka.program is not None
            kafka.program.process.send_signal(how)
        for kafka in living:
            kafka.end(how)


@contextmanager
def kafka_trio(
    address: str,
    directories: dict[int, Path],
    place: Path,
    settings: str = "",
    ports: Mapping[int, int] | None = None,
) -> Iterator[Trio]:
    """Starts the three brokers, on free ports unless given; kills those that still run at the end."""
    trio = Trio(address, directories, place, settings, ports or {})
    try:
        for kafka in trio.kafkas.values():
            kafka.start()
        yield trio
    finally:
        trio.end(signal.SIGKILL)


def until(condition: Callable[[], Any], what: Callable[[], Any] | str) -> None:
    """Waits until ``condition`` holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        told = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"it never came about: {told}"
        time.sleep(0.1)


def all_gone(client: KazooClient) -> None:
    """Waits until no broker is registered."""
    until(lambda: not client.get_children("/brokers/ids"), "no broker is registered")


def states(client: KazooClient) -> dict[str, dict[str, Any]]:
    """Returns the state node and the replicas of each partition, by ``topic-number``."""
    found = {}
    for topic in client.get_children("/brokers/topics"):
        replicas = json.loads(client.get(f"/brokers/topics/{topic}")[0])["partitions"]
        for number in client.get_children(f"/brokers/topics/{topic}/partitions"):
            state = json.loads(client.get(f"/brokers/topics/{topic}/partitions/{number}/state")[0])
            found[f"{topic}-{number}"] = {**state, "replicas": replicas[number]}
    return found


def lagging(client: KazooClient) -> dict[str, Any]:
    """Returns the partitions without a leader or with replicas out of sync."""
    return {
        name: one
        for name, one in states(client).items()
        if one["leader"] < 0 or sorted(one["isr"]) != sorted(one["replicas"])
    }
