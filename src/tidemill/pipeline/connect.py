"""The client behind the port ``Cluster``: made for the driver, lent out in executors."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.client.ranges import RangeReader

_idle: dict[tuple[tuple[str, str], ...], RangeReader] = {}
_idle_process = 0
"""Clients of this process that no task uses. Spark gives task after task to one Python worker: the next one
finds the connections open. Another process, forked from this one, must not touch them."""

IDLE_MAX = 4
"""Clusters (or configurations) that one worker stays connected to."""


def open_cluster(client: Mapping[str, str]) -> RangeReader:
    """A client with this configuration; nothing is connected before the first call. Close it after use."""
    from tidemill.client.ranges import RangeReader

    return RangeReader(None, client)


@contextmanager
def borrowed(client: Mapping[str, str]) -> Iterator[RangeReader]:
    """A client that goes back to be used again, unless an error, or an early end, leaves it in doubt."""
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
