"""A coordination store for tests that needs no Java: ZooKeeper's protocol, in its own process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import Self

from tidemill.testing.child import Child
from tidemill.testing.started import Started


class StoreServer(Started):
    """``with StoreServer() as store:`` starts a store on a free port of 127.0.0.1, and removes it afterwards.

    Brokers connect to it as to ZooKeeper (``zookeeper.connect``), and so does kazoo. It implements sessions,
    nodes, transactions and watches as ZooKeeper does, but no access lists. It is a single server for tests:
    it does not sync its files, and has no replicas. Acknowledged changes survive a :meth:`kill`.
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
        """The process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._child.running

    @property
    def log(self) -> str:
        """The output of the server, over all of its starts."""
        return self._child.log

    def start(self) -> Self:
        """Starts the server and waits until it serves. Keeps the port and the data of an earlier start."""
        if not self.running:
            journal = os.path.join(self.directory, "journal")
            self.port = int(self._child.start([journal, str(self.port)])["port"])
        return self

    def kill(self) -> None:
        """Kills the process, to simulate a crash. Sessions survive if it is started again in time."""
        self._child.kill()

    def pause(self) -> None:
        """Suspends the process: connections stay open, and no request gets a response."""
        self._child.pause()

    def resume(self) -> None:
        """Resumes a paused process. The pause does not count towards session timeouts."""
        self._child.resume()

    def expire(self, sessions: Iterable[int] | None = None) -> list[int]:
        """Expires sessions (all by default), as after their timeout. Returns their ids.

        Their ephemeral nodes are deleted; a broker detects that its session has expired, and registers again.
        """
        wanted = None if sessions is None else list(sessions)
        ended: list[int] = self._child.execute({"sessions": wanted})["expired"]
        return ended

    def close(self) -> None:
        """Ends the server, and deletes its files."""
        try:
            self._child.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
