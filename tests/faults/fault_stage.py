"""The cluster for the faults: three brokers and a ZooKeeper, each in a separate process.

If possible, every broker has a separate network and disk.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fault_disks import Disk, disk, no_devices, no_small_disks
from fault_network import CLIENTS, STORE, Network, network, unavailable
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tidemill.client import Admin, ClientError
from tidemill.coordination.nodes import ControllerNode, LeaderIsrAndControllerEpoch, PartitionStateNode
from tidemill.log.system_files import BOOT_ID_PATH
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

BROKERS = 3
SESSION_S = 3.0
CHROOT = "/faults"
QUIET = logging.Logger("kazoo", logging.CRITICAL)
"""A store that is away is no news here."""


ON_ITS_MACHINE = f"""
boot_id=$0 own=$1; shift
mount --bind "$boot_id" {BOOT_ID_PATH} || exit
while read -r device point rest; do
    case "$device" in /dev/loop*|tidemill) [ "$point" = "$own" ] || umount --lazy "$point" ;; esac
done </proc/self/mounts
exec "$@"
"""
"""Runs a command that takes the boot id from a file, and has no disk but its own: a disk that is used nowhere
can be ended."""


class PlacedBroker(Broker):
    """A broker on a host of a :class:`Network`."""

    def __init__(
        self, config: dict[str, Any], directory: Path, log_path: Path, inside: list[str], host: str
    ) -> None:
        super().__init__(config, data_dir=directory, timeout_s=60)
        self.host = host
        self._inside = inside
        self._log_path = str(log_path)

    def _command(self, ready_descriptor: int) -> list[str]:
        return [*self._inside, *super()._command(ready_descriptor)]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process; no-op if another fault has just ended it."""
        if self.running:
            os.kill(self.pid, number)


States = dict[TopicPartition, LeaderIsrAndControllerEpoch]


def read_states(client: KazooClient, topics: Iterable[str]) -> States:
    """Returns the states of the partitions of topics."""
    found = {}
    for topic in topics:
        for name in client.get_children(PartitionStateNode.parents(topic)):
            data, _ = client.get(PartitionStateNode.path(topic, int(name)))
            found[TopicPartition(topic, int(name))] = PartitionStateNode.decode(topic, int(name), data)
    return found


class Machine(NamedTuple):
    """The disk of a broker, and the file with the boot id that its processes read."""

    disk: Disk
    boot_path: Path

    def boot(self) -> None:
        """Sets another boot id for processes that start from now on."""
        self.boot_path.write_text(str(uuid.uuid4()))


class Stage:
    """``brokers[1]`` and so on, and the operations on them."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        brokers: dict[int, PlacedBroker],
        net: Network | None,
        machines: dict[int, Machine],
    ) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.network = net
        self.machines = machines
        self.store_address = f"{net.address(CLIENTS) if net else '127.0.0.1'}:{zookeeper.port}"

    @property
    def bootstrap(self) -> str:
        """Returns the addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self) -> Admin:
        """Returns an admin client."""
        return Admin(self.bootstrap)

    def _looking(self) -> Admin:
        """Returns an admin client with a short timeout."""
        return Admin(self.bootstrap, {"default.api.timeout.ms": 5000, "request.timeout.ms": 3000})

    def asked(self, question: Callable[[KazooClient], Any]) -> Any:
        """Returns the response of the store; None if it does not respond."""
        client = KazooClient(f"{self.store_address}{CHROOT}", timeout=5, logger=QUIET)
        try:
            client.start(timeout=10)
            return question(client)
        except (KazooException, KazooTimeoutError):
            return None
        finally:
            client.stop()
            client.close()

    def controller(self) -> int:
        """Returns the id of the controller; 0 if none is known."""
        found = self.asked(lambda client: client.get("/controller")[0])
        return ControllerNode.decode(found) if found else 0

    def cut_power(self, numbers: Iterable[int]) -> None:
        """Kills brokers and discards their unsynced data."""
        for number in numbers:
            self.brokers[number].kill()
        for number in numbers:
            self.machines[number].disk.cut_power()
            self.machines[number].boot()

    def replace_disk(self, number: int) -> None:
        """Ends a broker, and replaces its disk by an empty one."""
        self.brokers[number].kill()
        self.machines[number].disk.replace()

    def leaders(self, topic: str) -> list[int]:
        """Returns the leader of each partition; empty if it is unknown."""
        try:
            with self._looking() as admin:
                return [one.leader for one in admin.describe_topic(topic).partitions]
        except ClientError:
            return []

    def states(self, topics: Iterable[str]) -> States:
        """Returns the partition states in the store; empty if it does not respond."""
        return self.asked(lambda client: read_states(client, topics)) or {}

    def expire_session(self, number: int) -> bool:
        """Expires the session of a broker in ZooKeeper. Returns False if it has no session."""
        found = self.asked(lambda client: client.get(f"/brokers/ids/{number}")[1])
        if found is None:
            return False
        session_id = found.ephemeralOwner
        password = session_password(session_id)
        connect = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0"
        close = struct.pack(">ii", 1, -11)
        host, _, port = self.store_address.rpartition(":")
        # Both at the same time: the broker resumes its session as soon as it can.
        with socket.create_connection((host, int(port)), 10) as one:
            one.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close)))
            while one.recv(4096):
                pass
        return True

    def registered(self, number: int) -> int:
        """Returns the session of a broker's registration; 0 if it is not registered or the store does not
        respond.
        """
        found = self.asked(lambda client: client.exists(f"/brokers/ids/{number}"))
        return 0 if found is None else int(found.ephemeralOwner)

    def unsettled(self, topics: list[str]) -> str:
        """Returns the deviations: a broker that does not run, a replica that is not in sync."""
        stopped = [number for number, broker in self.brokers.items() if not broker.running]
        if stopped:
            return f"brokers {stopped} do not run"
        try:
            with self._looking() as admin:
                found = admin.describe_topics(topics)
        except ClientError as problem:
            return str(problem)
        for topic in found.values():
            for one in topic.partitions:
                if one.leader < 0 or len(one.isr) < len(one.replicas):
                    return f"{topic.name}-{one.partition}: leader {one.leader}, in-sync set {one.isr}"
        # A disconnected broker may return outdated metadata.
        states = self.states(topics)
        for key, state in states.items():
            if len(state.isr) < len(found[key.topic].partitions[key.partition].replicas):
                return f"{key}: leader {state.leader}, in-sync set {state.isr} in the store"
        return "" if states else "the store does not answer"

    def await_in_sync(self, topics: list[str], patience_s: float) -> str:
        """Waits until all replicas are in sync; returns the deviations at the timeout."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            left = self.unsettled(topics)
            if not left:
                return ""
            time.sleep(0.1)
        return left

    def complaints(self) -> list[str]:
        """Returns tracebacks in the logs of brokers, with surrounding lines."""
        found = []
        for number, broker in self.brokers.items():
            lines = broker.log.splitlines()
            for place, line in enumerate(lines):
                if line.startswith("Traceback") or " CRITICAL " in line or "never retrieved" in line:
                    text = "\n".join(lines[max(0, place - 3) : place + 25])
                    found.append(f"broker {number}:\n{text}")
        return found


def session_password(session_id: int) -> bytes:
    """The password of a session: ZooKeeper's server draws it from Java's random numbers, seeded by the id.

    ``SessionTrackerImpl``'s neighbour ``ZooKeeperServer.generatePasswd``: the secret is a constant there.
    """
    seed = ((session_id ^ 0xB3415C00) ^ 0x5DEECE66D) & ((1 << 48) - 1)
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        password += struct.pack("<I", seed >> 16 & 0xFFFFFFFF)
    return password


class OpenZooKeeper(ZooKeeper):
    """A server that other namespaces reach as well."""

    def __init__(self) -> None:
        super().__init__({"clientPortAddress": "0.0.0.0"})


@contextmanager
def stage(base: Path, *, isolated: bool, session_s: float = SESSION_S, **settings: str) -> Iterator[Stage]:
    """Three brokers; ``isolated``: with separate networks and disks, as far as this machine supports them.
    ``settings`` are broker keys, with ``__`` for dots.
    """
    config = {
        "zookeeper.session.timeout.ms": str(int(session_s * 1000)),
        "default.replication.factor": str(BROKERS),
        "offsets.topic.replication.factor": str(BROKERS),
        "min.insync.replicas": "2",
        "replica.lag.time.max.ms": "4000",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    with ExitStack() as stack:
        net = stack.enter_context(network(BROKERS)) if isolated and not unavailable() else None
        zookeeper = stack.enter_context(OpenZooKeeper())
        store = f"{net.address(STORE) if net else '127.0.0.1'}:{zookeeper.port}{CHROOT}"
        brokers: dict[int, PlacedBroker] = {}
        machines: dict[int, Machine] = {}
        for number in range(1, BROKERS + 1):
            home = base / str(number)
            home.mkdir(parents=True)
            inside = net.inside(number) if net else []
            if isolated and not no_small_disks():
                machines[number] = Machine(stack.enter_context(disk(home / "disk")), home / "boot_id")
                machines[number].boot()
                if not no_devices():
                    inside += ["unshare", "--mount", "sh", "-c", ON_ITS_MACHINE]
                    inside += [str(machines[number].boot_path), str(home / "disk")]
            broker = PlacedBroker(
                {**config, "zookeeper.connect": store, "node.id": str(number)},
                home / "disk",
                home / "broker.log",
                inside,
                net.address(number) if net else "127.0.0.1",
            )
            brokers[number] = stack.enter_context(broker)
        yield Stage(zookeeper, brokers, net, machines)
