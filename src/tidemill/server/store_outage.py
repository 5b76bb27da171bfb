"""Detects during an outage of the store whether this broker is isolated from the other brokers as well."""

from __future__ import annotations

import asyncio

from tidemill.coordination.coordination_store import Store
from tidemill.model.system_interfaces import Clock
from tidemill.replication.leader_isolation import StoreIsolation
from tidemill.replication.replica_manager import ReplicaManager

CHECK_INTERVAL_S = 0.5


class StoreOutage:
    """Checks the followers of this broker's leaders, from a session timeout after the start of the outage."""

    def __init__(self, replica_manager: ReplicaManager, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._isolation = StoreIsolation(replica_manager)
        self._task: asyncio.Task[None] | None = None

    def store_disconnected(self) -> None:
        """Starts the checks: the store does not respond."""
        self.stop()
        self._task = asyncio.get_running_loop().create_task(self._check_periodically())

    def store_reconnected(self, *, session_expired: bool) -> None:
        """Stops the checks: the store responds again, or the session has expired."""
        self.stop()
        if session_expired:
            self._isolation.clear()
        else:
            self._isolation.resume()

    def stop(self) -> None:
        """Stops the checks."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _check_periodically(self) -> None:
        session_s = self._store.session_timeout_s
        await asyncio.sleep(session_s)
        while True:
            self._isolation.leave(self._clock.monotonic_ms() - int(session_s * 1000))
            await asyncio.sleep(CHECK_INTERVAL_S)
