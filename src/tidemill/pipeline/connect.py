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

IDLE_MAX = 4
"""The maximum number of clusters (or configurations) that a worker stays connected to."""


def open_cluster(client: Mapping[str, str]) -> RangeReader:
    """Returns a client with this configuration, which connects at the first call. The caller closes it."""
    from tidemill.client.range_reader import RangeReader

    return RangeReader(None, client)


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
