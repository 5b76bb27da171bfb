"""Several brokers in processes of their own, on one store, with links that can be cut. No Java is needed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.testing.broker import Broker, BrokerFailed
from tidemill.testing.links import BrokerLinks
from tidemill.testing.network import CLIENTS, STORE, InjectedError, Network
from tidemill.testing.store import StoreServer

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import PartitionDescription

CLUSTER_CONFIG: dict[str, str] = {
    # A broker that stands still, or is cut off, is missed after seconds and not after minutes.
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "6000",
    "controller.socket.timeout.ms": "6000",
    # Who leads is up to the test.
    "auto.leader.rebalance.enable": "false",
}
"""What a test's cluster has other than a real one; ``config`` goes before it."""

REPLICAS_MAX = 3
WAIT_S = 30.0
LOOK_S = 0.05
ASK_S = 3.0
"""How long a broker may take to describe a topic: one that clients are cut off from holds nobody up."""

Found = TypeVar("Found")


class Cluster:
    """``with Cluster(3) as cluster:`` starts brokers 1 to 3, and takes them away afterwards.

    ``config`` holds keys of every broker. The cluster's state is in a :class:`StoreServer`, a process that
    speaks ZooKeeper's protocol; with ``zookeeper="host:port/path"`` it is in that ZooKeeper. Every link leads
    through a process of the test's tools, so that it can be cut: between clients and a broker, two brokers, a
    broker and the store.

    New topics have three replicas where there are three brokers, and take two for ``acks=all``.
    """

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, Any] | None = None,
        *,
        zookeeper: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: a cluster has one broker at least")
        if importlib.util.find_spec("kazoo") is None:
            raise BrokerFailed(
                "brokers of a cluster reach their store by kazoo: pip install 'tidemill[testing]'"
            )
        self._timeout_s = timeout_s
        self._directory = tempfile.mkdtemp(prefix="tidemill-cluster-")
        self._zookeeper = zookeeper
        self._closed = False
        self.network = Network()
        """Its links."""
        self.store: StoreServer | None = None if zookeeper is not None else StoreServer(timeout_s=timeout_s)
        """Its store, which can be killed, paused and started; None with a ZooKeeper of the test's own."""
        self.brokers: dict[int, Broker] = {}
        """Its brokers by their ids, from 1."""
        try:
            self._prepare(brokers, {**_defaults(brokers), **(config or {})})
        except BaseException:
            self.close()
            raise

    def _prepare(self, count: int, config: Mapping[str, Any]) -> None:
        self.network.start()
        host, port, chroot = self._store_address()
        for number in range(1, count + 1):
            links = BrokerLinks(self.network, str(number), with_brokers=True)
            links.join_store(host, port, chroot)
            self.brokers[number] = Broker(
                {**config, "node.id": number},
                data_dir=os.path.join(self._directory, f"broker-{number}"),
                timeout_s=self._timeout_s,
                links=links,
            )

    def _store_address(self) -> tuple[str, int, str]:
        if self.store is not None:
            return "127.0.0.1", self.store.start().port, ""
        place, slash, path = (self._zookeeper or "").partition("/")
        host, colon, port = place.rpartition(":")
        if not colon or not port.isdecimal() or "," in place:
            raise ValueError(
                f"zookeeper={self._zookeeper!r}: one server as host:port, or host:port/path, is needed"
            )
        return host, int(port), f"{slash}{path}"

    # What it is

    @property
    def bootstrap(self) -> str:
        """``host:port,host:port,...``, for a client's ``bootstrap.servers``."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def __getitem__(self, broker_id: int) -> Broker:
        """``cluster[2]`` is broker 2."""
        if broker_id not in self.brokers:
            raise KeyError(f"there is no broker {broker_id}: they are {', '.join(map(str, self.brokers))}")
        return self.brokers[broker_id]

    def __iter__(self) -> Iterator[Broker]:
        return iter(self.brokers.values())

    def __len__(self) -> int:
        return len(self.brokers)

    def __repr__(self) -> str:
        states = ", ".join(
            f"{number} {'runs' if broker.running else 'is down'}" for number, broker in self.brokers.items()
        )
        return f"Cluster({states}; {self.bootstrap})"

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The broker that leads a partition; one that has ended does not. TimeoutError after 30 s."""

        def look() -> Broker | None:
            found = self.brokers.get(self._described(topic, partition).leader)
            return found if found is not None and found.running else None

        return _until(look, f"{topic}-{partition} has a leader")

    def followers(self, topic: str, partition: int = 0) -> list[Broker]:
        """The other brokers that have a replica of a partition."""
        leader = self.leader(topic, partition)
        replicas = [self.brokers[number] for number in self._described(topic, partition).replicas]
        return [broker for broker in replicas if broker is not leader]

    def controller(self) -> Broker:
        """The broker that is the controller. TimeoutError when there is none for 30 s."""
        from tidemill.client import Admin

        def look() -> Broker | None:
            with Admin(self._reachable()) as admin:
                found = self.brokers.get(admin.describe_cluster().controller_id)
            return found if found is not None and found.running else None

        return _until(look, "there is a controller")

    def wait_in_sync(self, topic: str, timeout_s: float = WAIT_S) -> None:
        """Returns once every partition of a topic has a leader, and all of its replicas in sync.

        The newest leader epoch counts: brokers that were paused or cut off may not know the leader yet.
        """

        def look() -> bool:
            found = self._views(topic)
            newest = {number: max(one.leader_epoch for one in views) for number, views in found.items()}
            return all(
                one.leader >= 0 and not one.under_replicated
                for number, views in found.items()
                for one in views
                if one.leader_epoch == newest[number]
            )

        _until(look, f"every replica of {topic} is in sync", timeout_s)

    def _described(self, topic: str, partition: int) -> PartitionDescription:
        views = self._views(topic)
        if partition not in views:
            raise KeyError(f"{topic} has no partition {partition}: it has {len(views)}")
        return max(views[partition], key=lambda one: one.leader_epoch)

    def _views(self, topic: str) -> dict[int, list[PartitionDescription]]:
        """The partitions of a topic by their numbers, each as every broker that can be asked describes it."""
        views: dict[int, list[PartitionDescription]] = {}
        for found in self._ask_each(lambda admin: admin.describe_topic(topic, ASK_S).partitions):
            for one in found:
                views.setdefault(one.partition, []).append(one)
        return views

    def _ask_each(self, ask: Callable[[Admin], Found]) -> list[Found]:
        """The answers of the brokers that run and are not paused; raises when none of them has an answer."""
        from tidemill.client import Admin, ClientError

        def one(broker: Broker) -> Found | ClientError:
            try:
                with Admin(broker.bootstrap) as admin:
                    return ask(admin)
            except ClientError as problem:
                return problem

        brokers = [broker for broker in self if broker.is_answering] or list(self)
        with ThreadPoolExecutor(len(brokers)) as pool:
            outcomes = list(pool.map(one, brokers))
        answers = [one for one in outcomes if not isinstance(one, ClientError)]
        if not answers:
            raise next(one for one in outcomes if isinstance(one, ClientError))
        return answers

    def _reachable(self) -> str:
        living = [broker.bootstrap for broker in self.brokers.values() if broker.is_answering]
        return ",".join(living) or self.bootstrap

    # Its life

    def start(self) -> Cluster:
        """Starts the store, and all brokers at once; those that run are left alone."""
        if self.store is not None:
            self.store.start()
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for one in [pool.submit(broker.start) for broker in self.brokers.values()]:
                one.result()
        return self

    def mend(self, timeout_s: float = WAIT_S) -> Cluster:
        """Ends every fault: heals links, mends disks, resumes and starts what was stopped, and waits.

        It returns once every broker knows that all are registered, and every replica of every topic in sync.
        """
        self.network.heal()
        if self.store is not None:
            self.store.start()
            self.store.resume()
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for one in [pool.submit(broker.mend) for broker in self.brokers.values()]:
                one.result()

        def is_well(admin: Admin) -> bool:
            if {one.broker_id for one in admin.describe_cluster().brokers} != self.brokers.keys():
                return False
            names = [topic.name for topic in admin.list_topics(include_internal=True)]
            topics = admin.describe_topics(names).values() if names else ()
            return all(
                one.leader >= 0 and not one.under_replicated for topic in topics for one in topic.partitions
            )

        def look() -> bool:
            views = self._ask_each(is_well)
            return len(views) == len(self.brokers) and all(views)

        _until(look, "the cluster is well", timeout_s)
        return self

    def close(self) -> None:
        """Ends everything, and removes the data."""
        if self._closed:
            return
        self._closed = True
        try:
            for broker in self.brokers.values():
                broker.kill()
        finally:
            self.network.close()
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Faults. Those of one broker are its own methods: cluster[1].pause(), .kill(), .cut(), .disk.fill(), ...

    def cut(self, one: int | str, other: int | str, how: str = "silent") -> None:
        """Cuts the links between two: broker ids, ``"store"``, or ``"clients"``. As :meth:`Broker.cut`.

        ``cut(1, 2)`` is between two brokers, ``cut(1, "store")`` takes broker 1 away from the store, and
        ``cut("clients", 1)`` from its clients.
        """
        self._check_ends(one, other)
        self.network.cut(one, other, how)

    def isolate(self, broker_id: int, how: str = "silent") -> None:
        """Cuts a broker off from all other brokers and the store. Its clients reach it still."""
        ends: list[int | str] = [STORE, *self.brokers]
        for other in ends:
            if other != broker_id:
                self.cut(broker_id, other, how)

    def heal(self, one: int | str | None = None, other: int | str | None = None) -> None:
        """Ends the cut between two; all cuts when none are named."""
        if one is not None or other is not None:
            if one is None or other is None:
                raise ValueError("heal() ends all cuts, heal(one, other) that between two: name both")
            self._check_ends(one, other)
        self.network.heal(one, other)

    def fail_next(
        self,
        api: str | int,
        error: str | int,
        times: int = 1,
        *,
        client_id: str | None = None,
        carried_out: bool = False,
    ) -> InjectedError:
        """As :meth:`Broker.fail_next`, for the next answers of whichever broker is asked."""
        return self.network.fail_next(None, api, error, times, client_id, carried_out=carried_out)

    def _check_ends(self, one: int | str, other: int | str) -> None:
        for end in (one, other):
            if end not in (STORE, CLIENTS) and end not in self.brokers:
                ids = ", ".join(map(str, self.brokers))
                raise ValueError(f"{end!r} has no links: name a broker ({ids}), 'store' or 'clients'")
        if one == other or {one, other} == {STORE, CLIENTS}:
            raise ValueError(f"there is no link between {one!r} and {other!r}")


def _defaults(count: int) -> dict[str, str]:
    factor = min(REPLICAS_MAX, count)
    return {
        **CLUSTER_CONFIG,
        "default.replication.factor": str(factor),
        "offsets.topic.replication.factor": str(factor),
        "min.insync.replicas": "2" if factor == REPLICAS_MAX else "1",
    }


def _until(look: Callable[[], Found | None], what: str, timeout_s: float = WAIT_S) -> Found:
    """What ``look`` finds, once it is something; TimeoutError with the last trouble when it never does."""
    from tidemill.client import ClientError

    deadline = time.monotonic() + timeout_s
    trouble = ""
    while True:
        try:
            found = look()
        except ClientError as problem:
            found, trouble = None, f" ({problem})"
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"it is not so after {timeout_s:g} s that {what}{trouble}")
        time.sleep(LOOK_S)
