"""Fixtures for pytest: a real broker, there in a fraction of a second.

``tidemill_broker``          a broker of the test's own
``tidemill_session_broker``  one broker for all tests of the session
``tidemill_topic``           the name of a fresh topic on the session's broker
``tidemill_topics``          makes such topics: ``tidemill_topics(partitions=3)``
``tidemill_config``          broker keys for both; override it in a conftest.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from tidemill.testing.broker import Broker


@pytest.fixture(scope="session")
def tidemill_config() -> Mapping[str, Any]:
    """Broker keys of the fixtures' brokers, as ``{"num.partitions": 3}``: to be overridden."""
    return {}


@pytest.fixture
def tidemill_broker(tidemill_config: Mapping[str, Any]) -> Iterator[Broker]:
    """A broker of the test's own: started before it, taken away after it."""
    from tidemill.testing.broker import Broker

    with Broker(tidemill_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def tidemill_session_broker(tidemill_config: Mapping[str, Any]) -> Iterator[Broker]:
    """One broker for the whole session (for each worker of pytest-xdist)."""
    from tidemill.testing.broker import Broker

    with Broker(tidemill_config) as broker:
        yield broker


@pytest.fixture
def tidemill_topics(
    request: pytest.FixtureRequest, tidemill_session_broker: Broker
) -> Iterator[Callable[..., str]]:
    """Makes topics on the session's broker: ``make(partitions=1, **config) -> name``."""
    from tidemill.testing.topics import TopicMaker

    with TopicMaker(tidemill_session_broker.bootstrap, request.node.name) as maker:
        yield maker.make


@pytest.fixture
def tidemill_topic(tidemill_topics: Callable[..., str]) -> str:
    """The name of a fresh topic of one partition on the session's broker."""
    return tidemill_topics()
