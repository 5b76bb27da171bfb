"""Brokers in their own processes, on one store, with links that can be cut. No Java is needed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tidemill.testing.broker import Broker, BrokerFailed
from tidemill.testing.links import BrokerLinks
from tidemill.testing.network import CLIENTS, STORE, InjectedError, Network
from tidemill.testing.started import Started
from tidemill.testing.store import StoreServer

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import PartitionDescription

CLUSTER_CONFIG: dict[str, str] = {
    # A broker that hangs, or is cut off, is detected after seconds instead of minutes.
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "6000",
    "controller.socket.timeout.ms": "6000",
    # The test decides which broker leads.
    "auto.leader.rebalance.enable": "false",
}
"""Settings of a test's cluster that differ from the defaults; ``config`` overrides them."""

REPLICAS_MAX = 3
WAIT_S = 30.0
POLL_S = 0.05
DESCRIBE_TIMEOUT_S = 3.0
"""Timeout for the description of a topic: a broker that is cut off from clients must not block for long."""

Found = TypeVar("Found")


class Cluster(Started):
    """``with Cluster(3) as cluster:`` starts brokers 1 to 3, and removes them afterwards.

    ``config`` holds keys of every broker. The state of the cluster is in a :class:`StoreServer`, a process
    that implements ZooKeeper's protocol; with ``zookeeper="host:port/path"`` it is in that ZooKeeper. Every
    link passes through a process of the test tools, which can cut it: between clients and a broker, between
    two brokers, and between a broker and the store.

    New topics have three replicas where there are three brokers, and need two in sync for ``acks=all``.
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
            raise ValueError(f"brokers={brokers}: a cluster needs at least one broker")
        if importlib.util.find_spec("kazoo") is None:
            raise BrokerFailed(
                "brokers of a cluster need kazoo to reach their store: pip install 'tidemill[testing]'"
            )
        self._timeout_s = timeout_s
        self._directory = tempfile.mkdtemp(prefix="tidemill-cluster-")
        self._zookeeper = zookeeper
        self._closed = False
        self.network = Network()
        """The links of the cluster."""
        self.store: StoreServer | None = None if zookeeper is not None else StoreServer(timeout_s=timeout_s)
        """The store of the cluster, which can be killed, paused and started; None with ``zookeeper``."""
        self.brokers: dict[int, Broker] = {}
        """The brokers by broker id, from 1."""
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
                f"zookeeper={self._zookeeper!r}: it must name one server as host:port, or host:port/path"
            )
        return host, int(port), f"{slash}{path}"

    # State

    @property
    def bootstrap(self) -> str:
        """``host:port,host:port,...``, for a client's ``bootstrap.servers``."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def __getitem__(self, broker_id: int) -> Broker:
        """Returns a broker: ``cluster[2]`` is broker 2."""
        if broker_id not in self.brokers:
            raise KeyError(f"there is no broker {broker_id}: there are {', '.join(map(str, self.brokers))}")
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
        """Returns the running leader of a partition. Raises TimeoutError when there is none for 30 s."""

        def probe() -> Broker | None:
            found = self.brokers.get(self._described(topic, partition).leader)
            return found if found is not None and found.running else None

        return _until(probe, f"{topic}-{partition} has a leader")

    def followers(self, topic: str, partition: int = 0) -> list[Broker]:
        """Returns the other brokers with a replica of a partition."""
        leader = self.leader(topic, partition)
        replicas = [self.brokers[number] for number in self._described(topic, partition).replicas]
        return [broker for broker in replicas if broker is not leader]

    def controller(self) -> Broker:
        """Returns the active controller. Raises TimeoutError when there is none for 30 s."""
        from tidemill.client import Admin

        def probe() -> Broker | None:
            with Admin(self._reachable()) as admin:
                found = self.brokers.get(admin.describe_cluster().controller_id)
            return found if found is not None and found.running else None

        return _until(probe, "there is a controller")

    def wait_in_sync(self, topic: str, timeout_s: float = WAIT_S) -> None:
        """Waits until every partition of a topic has a leader, and all of its replicas are in sync.

        Only descriptions with the newest leader epoch count: brokers that were paused or cut off may not know
        it.
        """

        def probe() -> bool:
            found = self._views(topic)
            newest = {number: max(view.leader_epoch for view in views) for number, views in found.items()}
            return all(
                view.leader >= 0 and not view.under_replicated
                for number, views in found.items()
                for view in views
                if view.leader_epoch == newest[number]
            )

        _until(probe, f"every replica of {topic} is in sync", timeout_s)

    def _described(self, topic: str, partition: int) -> PartitionDescription:
        views = self._views(topic)
        if partition not in views:
            raise KeyError(f"{topic} has no partition {partition}: it has {len(views)}")
        return max(views[partition], key=lambda view: view.leader_epoch)

    def _views(self, topic: str) -> dict[int, list[PartitionDescription]]:
        """Returns the partitions of a topic by number, with the description of each reachable broker."""
        views: dict[int, list[PartitionDescription]] = {}
        for found in self._query_each(
            lambda admin: admin.describe_topic(topic, DESCRIBE_TIMEOUT_S).partitions
        ):
            for partition in found:
                views.setdefault(partition.partition, []).append(partition)
        return views

    def _query_each(self, query: Callable[[Admin], Found]) -> list[Found]:
        """Returns the results of the brokers that run and are not paused. Raises when there are none."""
        from tidemill.client import Admin, ClientError

        def query_broker(broker: Broker) -> Found | ClientError:
            try:
                with Admin(broker.bootstrap) as admin:
                    return query(admin)
            except ClientError as problem:
                return problem

        brokers = [broker for broker in self if broker.is_answering] or list(self)
        with ThreadPoolExecutor(len(brokers)) as pool:
            outcomes = list(pool.map(query_broker, brokers))
        results = [outcome for outcome in outcomes if not isinstance(outcome, ClientError)]
        if not results:
            raise next(outcome for outcome in outcomes if isinstance(outcome, ClientError))
        return results

    def _reachable(self) -> str:
        living = [broker.bootstrap for broker in self.brokers.values() if broker.is_answering]
        return ",".join(living) or self.bootstrap

    # Lifecycle

    def start(self) -> Self:
        """Starts the store, and all brokers in parallel. Processes that run already are not touched."""
        if self.store is not None:
            self.store.start()
        self._on_every_broker(Broker.start)
        return self

    def _on_every_broker(self, action: Callable[[Broker], object]) -> None:
        """Calls ``action`` with each broker, in parallel. Raises the error of the first that fails."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(action, self.brokers.values()))

    def mend(self, timeout_s: float = WAIT_S) -> Cluster:
        """Ends every fault: heals links, repairs disks, resumes and starts processes, and waits for recovery.

        Returns once every broker knows that all are registered, and that all replicas of all topics are in
        sync.
        """
        self.network.heal()
        if self.store is not None:
            self.store.start()
            self.store.resume()
        self._on_every_broker(Broker.mend)

        def is_recovered(admin: Admin) -> bool:
            if {broker.broker_id for broker in admin.describe_cluster().brokers} != self.brokers.keys():
                return False
            names = [topic.name for topic in admin.list_topics(include_internal=True)]
            topics = admin.describe_topics(names).values() if names else ()
            return all(
                partition.leader >= 0 and not partition.under_replicated
                for topic in topics
                for partition in topic.partitions
            )

        def probe() -> bool:
            views = self._query_each(is_recovered)
            return len(views) == len(self.brokers) and all(views)

        _until(probe, "the cluster has recovered", timeout_s)
        return self

    def close(self) -> None:
        """Ends all processes, and deletes the data."""
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

    # Faults. Those of a single broker are its own methods: cluster[1].pause(), .kill(), .cut(), .disk.fill(),
    # ...

    def cut(self, one: int | str, other: int | str, how: str = "silent") -> None:
        """Cuts the links between two ends: broker ids, ``"store"``, or ``"clients"``. See :meth:`Broker.cut`.

        ``cut(1, 2)`` cuts two brokers off from each other, ``cut(1, "store")`` broker 1 from the store, and
        ``cut("clients", 1)`` broker 1 from its clients.
        """
        self._check_ends(one, other)
        self.network.cut(one, other, how)

    def isolate(self, broker_id: int, how: str = "silent") -> None:
        """Cuts a broker off from all other brokers and the store. Clients still reach it."""
        ends: list[int | str] = [STORE, *self.brokers]
        for other in ends:
            if other != broker_id:
                self.cut(broker_id, other, how)

    def heal(self, one: int | str | None = None, other: int | str | None = None) -> None:
        """Ends the cut between two ends; without arguments all cuts."""
        if one is not None or other is not None:
            if one is None or other is None:
                raise ValueError("heal() ends all cuts, heal(one, other) the cut between two ends: name both")
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
        """Replaces the next responses of any broker by an error. See :meth:`Broker.fail_next`."""
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


def _until(probe: Callable[[], Found | None], condition: str, timeout_s: float = WAIT_S) -> Found:
    """Returns the first true result of ``probe``. Raises TimeoutError, with the last error, without one."""
    from tidemill.client import ClientError

    deadline = time.monotonic() + timeout_s
    trouble = ""
    while True:
        try:
            found = probe()
        except ClientError as problem:
            found, trouble = None, f" ({problem})"
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {timeout_s:g} s: {condition}{trouble}")
        time.sleep(POLL_S)
