"""The clients of the data source: opened for the driver, pooled in executors."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tidemill.client.errors import ClientError
from tidemill.pipeline.process_local import ProcessLocal

if TYPE_CHECKING:
    from tidemill.client.admin import Admin
    from tidemill.client.producer import Producer
    from tidemill.client.range_reader import RangeReader

REFUSED_TIMEOUT_S = 3.0
"""How long a query that starts waits for a broker while all of them refuse connections."""
UNANSWERED_TIMEOUT_S = 15.0
"""The same while a broker neither accepts nor refuses the connection."""

IDLE_MAX = 4
"""The maximum number of clusters (or configurations) that a worker stays connected to."""


RETRY_PAUSE_S = 0.05


class Closable(Protocol):
    """A client."""

    def close(self) -> None:
        """Closes the connections."""
        ...


ClientT = TypeVar("ClientT", bound=Closable)
ResultT = TypeVar("ResultT")


class OpenedOnce(Generic[ClientT]):
    """The clients of a reader or a query, which are opened at their first use. For one thread."""

    def __init__(self, open_clients: Callable[[], ClientT]) -> None:
        self._open_clients = open_clients
        self._opened: ClientT | None = None

    def get(self) -> ClientT:
        """Returns the clients."""
        if self._opened is None:
            self._opened = self._open_clients()
        return self._opened

    def close(self) -> None:
        """Closes the clients; the next use opens others."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class ClientPool(Generic[ClientT]):
    """Idle clients of this process, by their configuration.

    Spark runs many tasks in one Python worker: the next task reuses the open connections. A process that is
    forked from this one must not use them.
    """

    def __init__(self, open_client: Callable[[Mapping[str, str]], ClientT]) -> None:
        self._open = open_client
        self._idle: ProcessLocal[dict[tuple[tuple[str, str], ...], ClientT]] = ProcessLocal(dict)
        atexit.register(self._close_idle)

    @contextmanager
    def borrow(self, config: Mapping[str, str]) -> Iterator[ClientT]:
        """Borrows a client; returns it to the pool unless the block raised or ended early."""
        idle = self._idle.value
        name = tuple(sorted(config.items()))
        client = idle.pop(name, None) or self._open(config)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        if len(idle) >= IDLE_MAX or name in idle:
            client.close()
        else:
            idle[name] = client

    def _close_idle(self) -> None:
        idle = self._idle.value
        while idle:
            idle.popitem()[1].close()


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


def repeated(attempt: Callable[[], ResultT], timeout_s: float) -> ResultT:
    """Repeats an attempt while its error is retriable; raises the last error after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except ClientError as problem:
            if not problem.retriable or time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def _open_producer(client: Mapping[str, str]) -> Producer:
    from tidemill.client.producer import Producer

    return Producer(None, client)


def _open_admin(client: Mapping[str, str]) -> Admin:
    from tidemill.client.admin import Admin

    return Admin(None, client)


pooled_cluster = ClientPool(open_cluster).borrow
pooled_producer = ClientPool(_open_producer).borrow
pooled_admin = ClientPool(_open_admin).borrow
