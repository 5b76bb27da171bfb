"""A coordination store for tests that needs no Java: ZooKeeper's protocol, in a process of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from types import TracebackType

from tidemill.testing.child import Child


class StoreServer:
    """``with StoreServer() as store:`` starts one on a free port of 127.0.0.1, and takes it away afterwards.

    Brokers connect to it as to ZooKeeper (``zookeeper.connect``), and so does kazoo. It keeps sessions,
    nodes, transactions and watches as ZooKeeper does, and knows no access lists. It is one server, for tests:
    it does not sync its files, and has no replicas. What was acknowledged outlives a :meth:`kill`.
    """

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        self.port = 0
        self.directory = tempfile.mkdtemp(prefix="tidemill-store-")
        self._child = Child(
            "tidemill.testing.store_process", os.path.join(self.directory, "store.log"), timeout_s
        )

    @property
    def address(self) -> str:
        """``host:port``, for ``zookeeper.connect``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process number."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._child.running

    @property
    def log(self) -> str:
        """What the server has said so far, over all of its starts."""
        return self._child.log

    def start(self) -> StoreServer:
        """Starts the server and waits until it serves. The port of an earlier start is kept, and its data."""
        if not self.running:
            journal = os.path.join(self.directory, "journal")
            self.port = int(self._child.start([journal, str(self.port)])["port"])
        return self

    def kill(self) -> None:
        """Ends the process at once, as a crash does. Sessions live on when it is started again in time."""
        self._child.kill()

    def pause(self) -> None:
        """Stops the process where it is: connections stay open, and nobody answers."""
        self._child.pause()

    def resume(self) -> None:
        """Lets a paused process go on. Sessions are not ended for the time that it stood still."""
        self._child.resume()

    def expire(self, sessions: Iterable[int] | None = None) -> list[int]:
        """Ends sessions (all, unless told) as if nothing had been heard of them; returns which.

        Their ephemeral nodes vanish; a broker finds its session expired, and registers again.
        """
        wanted = None if sessions is None else list(sessions)
        ended: list[int] = self._child.ask({"sessions": wanted})["expired"]
        return ended

    def close(self) -> None:
        """Ends the server and removes its files."""
        try:
            self._child.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> StoreServer:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
