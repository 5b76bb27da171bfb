"""While the store is silent: whether it has gone, or this broker is cut off."""

from __future__ import annotations

import asyncio

from tidemill.broker.broker import Broker
from tidemill.replication.cut_off import CutOff

LOOK_S = 0.5


class Silence:
    """Looks whether the other brokers are silent as well, once a session could have ended."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cut_off = CutOff(broker.partitions)
        self._task: asyncio.Task[None] | None = None

    def begins(self) -> None:
        """The store does not answer."""
        self.stop()
        self._task = asyncio.get_running_loop().create_task(self._look())

    def ends(self, *, is_lost: bool) -> None:
        """It answers again, ``is_lost``: the session has ended."""
        self.stop()
        if is_lost:
            self._cut_off.forget()
        else:
            self._cut_off.resume()

    def stop(self) -> None:
        """Looks no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        session_s = self._broker.store.session_timeout_s
        await asyncio.sleep(session_s)
        while True:
            self._cut_off.leave(self._broker.clock.monotonic_ms() - int(session_s * 1000))
            await asyncio.sleep(LOOK_S)
