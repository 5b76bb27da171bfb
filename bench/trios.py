"""Three brokers that replicate: ours on ZooKeeper, Apache Kafka on KRaft, with the same settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from peers import Kafka, Peer, Tidemill

BROKERS = (1, 2, 3)
SETTINGS = (
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "group.initial.rebalance.delay.ms=0",
    # What is deleted is to be gone from memory before the next turn.
    "log.segment.delete.delay.ms=500",
)
PATIENCE_S = 120.0
REST_S, REST_S_MAX, REST_CPU = 0.5, 20.0, 0.15
"""At rest they use less than so much of a processor for so long; that is waited for at most so long."""


def until(condition: Callable[[], Any], what: str, every_s: float = 0.02) -> None:
    """Returns once it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: it did not come about within {PATIENCE_S:g} s: {what}")
        time.sleep(every_s)


def await_rest(trios: Sequence[Trio]) -> None:
    """Returns once none of them works: what one does after its turn, deleting, say, costs no other."""
    deadline = time.monotonic() + REST_S_MAX
    while time.monotonic() < deadline:
        before = sum(trio.cpu_s() for trio in trios)
        time.sleep(REST_S)
        if sum(trio.cpu_s() for trio in trios) - before < REST_CPU * REST_S:
            return


class Trio:
    """``with`` starts them and takes them away; ``peers[1]`` and so on."""

    name = "?"

    def __init__(self, data: Path, settings: Sequence[str] = ()) -> None:
        self.data = data
        self.peers: dict[int, Peer] = {
            number: self.peer(number, data / str(number), (*SETTINGS, f"broker.rack=r{number}", *settings))
            for number in BROKERS
        }
        self._stack = ExitStack()

    def peer(self, number: int, data: Path, settings: tuple[str, ...]) -> Peer:
        """One of them, not started."""
        raise NotImplementedError

    def prepare(self, stack: ExitStack) -> None:
        """What is done before they start."""

    def controller(self) -> int:
        """Who is the controller; its death is what is measured."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(peer.bootstrap for peer in self.peers.values())

    @property
    def living(self) -> list[int]:
        """Those that run."""
        return [number for number, peer in self.peers.items() if peer.process is not None]

    def cpu_s(self) -> float:
        """Processor seconds that those that run have used."""
        return sum(self.peers[number].cpu_s() for number in self.living)

    def resident_mb(self) -> float:
        """Megabytes of all that are in memory."""
        return sum(self.peers[number].resident_mb() for number in self.living)

    def admin(self, number: int = 0) -> Any:
        """A client that asks this broker, or any that runs."""
        from confluent_kafka.admin import AdminClient

        known = [number] if number else self.living
        addresses = ",".join(self.peers[one].bootstrap for one in known)
        return AdminClient({"bootstrap.servers": addresses, "log_level": 0})

    def partitions(self, topic: str, admin: Any = None) -> list[Any]:
        """The partitions of a topic, as a client is told of them: ``leader``, ``isrs``."""
        told = (admin or self.admin()).list_topics(topic, timeout=30).topics[topic]
        return [told.partitions[index] for index in sorted(told.partitions)]

    def make(self, topics: dict[str, int], **wishes: Any) -> float:
        """Seconds that it takes to make topics of so many partitions, until all of them are led."""
        from confluent_kafka.admin import NewTopic

        admin = self.admin()
        wishes = wishes or {"replication_factor": 3}
        wanted = [NewTopic(name, count, **wishes) for name, count in topics.items()]
        began = time.perf_counter()
        limits = {"operation_timeout": PATIENCE_S, "request_timeout": PATIENCE_S}
        for made in admin.create_topics(wanted, **limits).values():
            made.result()

        def led() -> bool:
            told = admin.list_topics(timeout=30).topics
            return all(
                name in told
                and len(told[name].partitions) == count
                and all(one.leader > 0 for one in told[name].partitions.values())
                for name, count in topics.items()
            )

        until(led, f"{len(topics)} topics are led")
        return time.perf_counter() - began

    def delete(self, *topics: str) -> None:
        """Takes topics away."""
        admin = self.admin()
        limits = {"operation_timeout": PATIENCE_S, "request_timeout": PATIENCE_S}
        for gone in admin.delete_topics(list(topics), **limits).values():
            gone.result()
        until(lambda: not {*topics} & admin.list_topics(timeout=30).topics.keys(), "topics are deleted")

    def await_in_sync(self, topic: str, replicas: int = 3) -> None:
        """Returns once every partition has so many replicas in sync."""
        admin = self.admin()

        def in_sync() -> bool:
            told = self.partitions(topic, admin)
            return all(len(one.isrs) == replicas and one.leader > 0 for one in told)

        until(in_sync, f"{topic} has {replicas} replicas in sync")

    def __enter__(self) -> Trio:
        with ExitStack() as stack:
            self.data.mkdir(parents=True, exist_ok=True)
            self.prepare(stack)
            for peer in self.peers.values():
                stack.callback(peer.remove)
                peer.make_ready()
                peer.launch()
            for peer in self.peers.values():
                peer.wait()
            until(lambda: len(self.admin().list_topics(timeout=30).brokers) == 3, "three brokers")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class TidemillTrio(Trio):
    """Ours, on a ZooKeeper server of their own."""

    name = "tidemill"

    def __init__(self, data: Path, settings: Sequence[str] = ()) -> None:
        self._address = ""
        super().__init__(data, settings)

    def peer(self, number: int, data: Path, settings: tuple[str, ...]) -> Peer:
        return _Member(self, number, data, settings)

    def prepare(self, stack: ExitStack) -> None:
        from tidemill.testing.zookeeper import ZooKeeper

        self._address = stack.enter_context(ZooKeeper()).address

    @property
    def address(self) -> str:
        """Of ZooKeeper."""
        return self._address

    def controller(self) -> int:
        from tidemill.client import Admin

        with Admin(self.peers[self.living[0]].bootstrap) as admin:
            return admin.describe_cluster().controller_id


class _Member(Tidemill):
    def __init__(self, trio: TidemillTrio, number: int, data: Path, settings: tuple[str, ...]) -> None:
        super().__init__(data, (f"node.id={number}", *settings))
        self._trio = trio

    def command(self) -> tuple[list[str], dict[str, str]]:
        command, variables = super().command()
        return [*command, "--set", f"zookeeper.connect={self._trio.address}/bench"], variables


class KafkaTrio(Trio):
    """Apache Kafka's, each both broker and member of the quorum."""

    name = "kafka"

    def __init__(self, data: Path, settings: Sequence[str] = ()) -> None:
        self._members: list[Kafka] = []
        super().__init__(data, settings)
        voters = ",".join(member.voters for member in self._members)
        for member in self._members:
            member.voters = voters

    def peer(self, number: int, data: Path, settings: tuple[str, ...]) -> Peer:
        member = Kafka(data, settings, number)
        self._members.append(member)
        return member

    def controller(self) -> int:
        """The leader of the quorum: what metadata tell is any broker."""
        address = self.peers[self.living[0]].bootstrap
        tool = "org.apache.kafka.tools.MetadataQuorumCommand"
        told = self._members[0].tool(tool, "--bootstrap-server", address, "describe", "--status")
        return int(next(line.split()[1] for line in told.splitlines() if line.startswith("LeaderId:")))
