"""The client that implements ``Cluster``: opened for the driver, pooled in executors."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.client.range_reader import RangeReader

_idle: dict[tuple[tuple[str, str], ...], RangeReader] = {}
_idle_process = 0
"""Idle clients of this process. Spark runs many tasks in one Python worker: the next task reuses the open
connections. A process that is forked from this one must not use them."""

REFUSED_TIMEOUT_S = 3.0
"""How long a query that starts waits for a broker while all of them refuse connections."""
UNANSWERED_TIMEOUT_S = 15.0
"""The same while a broker neither accepts nor refuses the connection."""

IDLE_MAX = 4
"""The maximum number of clusters (or configurations) that a worker stays connected to."""


def open_cluster(client: Mapping[str, str]) -> RangeReader:
    """Returns a client with this configuration, which connects at the first call. The caller closes it."""
    from tidemill.client.range_reader import RangeReader

    return RangeReader(None, client)


def open_for_planning(client: Mapping[str, str]) -> RangeReader:
    """As :func:`open_cluster`, for a query that starts. Raises BrokerUnreachable within seconds.

    With ``default.api.timeout.ms`` among the options, the first call waits for a broker this long instead.
    """
    cluster = open_cluster(client)
    if "default.api.timeout.ms" not in client:
        try:
            cluster.connect(REFUSED_TIMEOUT_S, UNANSWERED_TIMEOUT_S)
        except BaseException:
            cluster.close()
            raise
    return cluster


@contextmanager
def pooled_cluster(client: Mapping[str, str]) -> Iterator[RangeReader]:
    """Borrows a pooled client; returns it to the pool unless the block raised or ended early."""
    global _idle, _idle_process
    if _idle_process != os.getpid():
        _idle, _idle_process = {}, os.getpid()
    name = tuple(sorted(client.items()))
    cluster = _idle.pop(name, None) or open_cluster(client)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    if len(_idle) >= IDLE_MAX or name in _idle:
        cluster.close()
    else:
        _idle[name] = cluster


@atexit.register
def _close_idle() -> None:
    if _idle_process == os.getpid():
        while _idle:
            _idle.popitem()[1].close()
