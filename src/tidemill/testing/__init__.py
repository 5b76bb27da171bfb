"""Real brokers for tests: context managers, and fixtures for pytest.

    from tidemill.testing import Broker, Cluster

    with Broker() as broker:
        producer = Producer(broker.bootstrap)

    with Cluster(3) as cluster:
        cluster.leader("topic").kill()

The pytest plugin (:mod:`tidemill.testing.plugin`) loads automatically once tidemill is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.testing.broker import Broker as Broker
    from tidemill.testing.broker import BrokerFailed as BrokerFailed
    from tidemill.testing.cluster import Cluster as Cluster
    from tidemill.testing.store import StoreServer as StoreServer

_MODULES = {"Broker": "broker", "BrokerFailed": "broker", "Cluster": "cluster", "StoreServer": "store"}

__all__ = ["Broker", "BrokerFailed", "Cluster", "StoreServer"]


def __getattr__(name: str) -> object:
    # The plugin loads in every pytest run of every user of this package: its import must cost almost nothing.
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"tidemill.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
