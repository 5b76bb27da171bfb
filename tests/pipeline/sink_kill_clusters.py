"""The clusters of the kill runs: one broker, three brokers, or Apache Kafka. Brokers are killed by role."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

KAFKA_VERSION = "4.3.1"
ONE, THREE, KAFKA = "one broker", "three brokers", "Apache Kafka"
RESTART_S = 2.0
"""How long a killed broker of three stays away: the others take over meanwhile."""
TRANSACTION_STATE = "__transaction_state"


class Target(Protocol):
    """A cluster."""

    @property
    def bootstrap(self) -> str:
        """The addresses of its brokers."""
        ...

    @property
    def inter_broker_bootstrap(self) -> str:
        """The addresses of its brokers at the inter-broker listener."""
        ...

    def kill(self, role: str, place: tuple[str, int], transactional_id: str | None) -> None:
        """Kills a broker with SIGKILL and starts it again: the leader of a partition, a coordinator, ..."""
        ...

    def await_recovered(self) -> None:
        """Waits until all brokers run and all replicas are in sync."""
        ...


class OneBroker:
    """A broker of Tidemill, which has all roles."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.bootstrap: str = broker.bootstrap
        self.inter_broker_bootstrap = self.bootstrap

    def kill(self, role: str, place: tuple[str, int], transactional_id: str | None) -> None:
        self._broker.kill()
        self._broker.start()

    def await_recovered(self) -> None:
        self._broker.mend()


class ThreeBrokers:
    """Three brokers of Tidemill."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.bootstrap: str = cluster.bootstrap
        self.inter_broker_bootstrap = ",".join(broker.inter_broker_bootstrap for broker in cluster)
        self._restarts: list[threading.Timer] = []

    def kill(self, role: str, place: tuple[str, int], transactional_id: str | None) -> None:
        broker = self._broker(role, place, transactional_id)
        broker.kill()
        restart = threading.Timer(RESTART_S, broker.start)
        restart.start()
        self._restarts.append(restart)

    def _broker(self, role: str, place: tuple[str, int], transactional_id: str | None) -> Any:
        from tidemill.coordinator_runtime.coordinator_partition import partition_for

        if role == "controller":
            return self._cluster.controller()
        if role == "coordinator" and transactional_id is not None:
            place = TRANSACTION_STATE, partition_for(transactional_id, 50)
        return self._cluster.leader(*place)

    def await_recovered(self) -> None:
        while self._restarts:
            self._restarts.pop().join()
        self._cluster.mend()


class ApacheKafka:
    """A broker of Apache Kafka, which has all roles."""

    def __init__(self, kafka: Any) -> None:
        self._kafka = kafka
        self.bootstrap: str = kafka.bootstrap
        self.inter_broker_bootstrap = self.bootstrap

    def kill(self, role: str, place: tuple[str, int], transactional_id: str | None) -> None:
        self._kafka.end(signal.SIGKILL)
        self._kafka.start()

    def await_recovered(self) -> None:
        """Does nothing: the broker runs."""


@contextmanager
def started(kind: str, folder: Path, config: Mapping[str, str] | None = None) -> Iterator[Target]:
    """Yields a cluster of this kind, whose brokers have the keys ``config``."""
    if kind == ONE:
        from tidemill.testing.broker import Broker

        with Broker(config=config) as broker:
            yield OneBroker(broker)
    elif kind == THREE:
        from tidemill.testing.cluster import Cluster

        with Cluster(3, config) as cluster:
            yield ThreeBrokers(cluster)
    else:
        sys.path.append(str(Path(__file__).parents[1] / "interchange"))
        from kafka_peer import Kafka, class_path, free_ports

        (port,) = free_ports(1)
        settings = "".join(f"{key}={value}\n" for key, value in (config or {}).items())
        kafka = Kafka(class_path(KAFKA_VERSION), folder, folder / "data", settings=settings, port=port)
        kafka.start(form=True)
        try:
            yield ApacheKafka(kafka)
        finally:
            kafka.end()
