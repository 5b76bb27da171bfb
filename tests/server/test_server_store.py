"""A broker's place in the cluster after its session with the store was lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.port import SessionState, StoreUnavailable
from tidemill.model.errors import KafkaError
from tidemill.server.store import Membership


class Cluster:
    """Store and controller as far as they are asked; ``faults`` are what the next calls meet."""

    session_timeout_s = 1.0

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.activated = asyncio.Event()
        self.met = asyncio.Event()
        """The last of the faults was met."""
        self.tell: Any = None

    def on_session(self, listener: Any) -> None:
        self.tell = listener

    async def load(self) -> None:
        if self.faults:
            fault = self.faults.pop(0)
            if not self.faults:
                self.met.set()
            raise fault

    async def activate(self, registration: BrokerRegistration, *, lost_unsynced: bool) -> None:
        self.activated.set()


async def joined(cluster: Any) -> Membership:
    one = Membership(cluster, cluster)
    await one.join(BrokerRegistration(1, ()))
    cluster.activated.clear()
    return one


def test_whatever_a_return_meets_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidemill.server.store.RETRY_S", 0.0)

    async def run() -> None:
        cluster = Cluster(KafkaError("not now"), KeyError("odd"))
        one = await joined(cluster)
        cluster.tell(SessionState.EXPIRED)
        cluster.tell(SessionState.CONNECTED)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())
    assert any("tried again in 0 s: not now" in record.getMessage() for record in caplog.records)
    faults = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert KeyError in faults


def test_a_store_that_is_away_again_is_waited_for() -> None:
    async def run() -> None:
        cluster = Cluster(StoreUnavailable("away"))
        one = await joined(cluster)
        cluster.tell(SessionState.EXPIRED)
        cluster.tell(SessionState.CONNECTED)
        await asyncio.wait_for(cluster.met.wait(), 10)
        assert not cluster.activated.is_set()
        cluster.tell(SessionState.CONNECTED)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())
