"""Real brokers for tests: a context manager, and fixtures for pytest.

    from tidemill.testing import Broker

    with Broker() as broker:
        producer = Producer(broker.bootstrap)

The pytest plugin (:mod:`tidemill.testing.plugin`) loads by itself once tidemill is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.testing.broker import Broker as Broker
    from tidemill.testing.broker import BrokerFailed as BrokerFailed

__all__ = ["Broker", "BrokerFailed"]


def __getattr__(name: str) -> object:
    # The plugin loads in every pytest run of everybody who has this package: it must cost next to nothing.
    if name in __all__:
        from tidemill.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
