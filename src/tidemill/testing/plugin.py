"""Fixtures for pytest: real brokers, which start in a fraction of a second, and clusters of them.

``tidemill_broker``           a broker for one test
``tidemill_faulty_broker``    the same, with faults of its link, responses and disk
``tidemill_session_broker``   one broker for all tests of the session
``tidemill_topic``            the name of a new topic on the session's broker
``tidemill_topics``           creates such topics: ``tidemill_topics(partitions=3)``
``tidemill_config``           broker keys of these brokers; override it in a conftest.py
``tidemill_cluster``          three brokers for one test
``tidemill_session_cluster``  three brokers for all tests of the session; faults end after each test
``tidemill_cluster_size``     number of brokers of the clusters; override it in a conftest.py
``tidemill_cluster_config``   broker keys of the clusters
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from tidemill.testing.broker import Broker
    from tidemill.testing.cluster import Cluster


@pytest.fixture(scope="session")
def tidemill_config() -> Mapping[str, Any]:
    """Broker keys of the fixtures' brokers, as ``{"num.partitions": 3}``. To be overridden."""
    return {}


@pytest.fixture
def tidemill_broker(tidemill_config: Mapping[str, Any]) -> Iterator[Broker]:
    """A broker for one test: started before it, removed after it."""
    from tidemill.testing.broker import Broker

    with Broker(tidemill_config) as broker:
        yield broker


@pytest.fixture
def tidemill_faulty_broker(tidemill_config: Mapping[str, Any]) -> Iterator[Broker]:
    """A broker for one test with ``faults=True``: faults of its link, responses and disk can be set."""
    from tidemill.testing.broker import Broker

    with Broker(tidemill_config, faults=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def tidemill_cluster_size() -> int:
    """Number of brokers of the fixtures' clusters. To be overridden."""
    return 3


@pytest.fixture(scope="session")
def tidemill_cluster_config() -> Mapping[str, Any]:
    """Keys of all brokers of the fixtures' clusters. To be overridden."""
    return {}


@pytest.fixture
def tidemill_cluster(
    tidemill_cluster_size: int, tidemill_cluster_config: Mapping[str, Any]
) -> Iterator[Cluster]:
    """Brokers for one test, on their own store."""
    from tidemill.testing.cluster import Cluster

    with Cluster(tidemill_cluster_size, tidemill_cluster_config) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _tidemill_cluster_of_session(
    tidemill_cluster_size: int, tidemill_cluster_config: Mapping[str, Any]
) -> Iterator[Cluster]:
    from tidemill.testing.cluster import Cluster

    with Cluster(tidemill_cluster_size, tidemill_cluster_config) as cluster:
        yield cluster


@pytest.fixture
def tidemill_session_cluster(_tidemill_cluster_of_session: Cluster) -> Iterator[Cluster]:
    """One cluster for the whole session. After each test all faults end, and the cluster recovers."""
    yield _tidemill_cluster_of_session
    _tidemill_cluster_of_session.mend()


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
    """Creates topics on the session's broker: ``make(partitions=1, **config) -> name``."""
    from tidemill.testing.topics import TopicMaker

    with closing(TopicMaker(tidemill_session_broker.bootstrap, request.node.name)) as maker:
        yield maker.make


@pytest.fixture
def tidemill_topic(tidemill_topics: Callable[..., str]) -> str:
    """The name of a new topic with one partition on the session's broker."""
    return tidemill_topics()
