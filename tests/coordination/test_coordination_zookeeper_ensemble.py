"""The ZooKeeper engine with three servers, of which one and then another is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from zookeeper_sessions import CONNECTED, DATA, SUSPENDED, WAIT_S, opened

from tidemill.coordination.port import Create, Event, SetData, StoreUnavailable
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.testing.zookeeper import Ensemble, ZooKeeper

Answer = TypeVar("Answer")

pytestmark = pytest.mark.slow


async def insist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer of a call that is made again while servers choose a leader."""
    for _ in range(WAIT_S * 10):
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    return await call()


def test_a_session_goes_on_with_another_server() -> None:
    async def story(ensemble: Ensemble) -> None:
        settings = ZooKeeperSettings(ensemble.address, "/c", 40_000, 60_000)
        async with opened(settings) as session, opened(settings) as other:
            store = session.store
            seen: list[Event] = []
            await store.transact([Create("/n", b"0"), Create("/mine", ephemeral=True)])
            told = asyncio.Event()

            def tell(event: Event) -> None:
                seen.append(event)
                told.set()

            await store.watch("/n", tell)
            former = store.session_id
            stopped: list[ZooKeeper] = []
            for value in range(1, 4):
                port = store._link._connection._socket.getpeername()[1]
                (server,) = (one for one in ensemble.servers if one.port == port)
                await asyncio.to_thread(server.kill)
                stopped.append(server)
                await session.reach_again()
                session.states.clear()
                data = b"%d" % value
                await insist(lambda data=data: other.store.transact([SetData("/n", data)]))
                # A server that is behind tells the change when it has it.
                async with asyncio.timeout(WAIT_S):
                    await told.wait()
                node = await insist(lambda: store.get("/n"))
                assert node is not None
                assert node.data == data
                assert {event.kind for event in seen} == {DATA}
                seen.clear()
                told.clear()
                await asyncio.to_thread(server.start)
            assert store.session_id == former
            assert await insist(lambda: store.exists("/mine"))

    with Ensemble(3) as ensemble:
        asyncio.run(story(ensemble))


def test_without_a_majority_nothing_is_served_and_nothing_lost() -> None:
    async def story(ensemble: Ensemble) -> None:
        settings = ZooKeeperSettings(ensemble.address, "", 40_000, 60_000)
        async with opened(settings) as session:
            await session.store.transact([Create("/kept", b"1"), Create("/mine", ephemeral=True)])
            for server in ensemble.servers[1:]:
                await asyncio.to_thread(server.kill)
            async with asyncio.timeout(30):
                while SUSPENDED not in session.states or session.states[-1] is CONNECTED:
                    await session.next_state()
            with pytest.raises(StoreUnavailable):
                await session.store.get("/kept")
            session.states.clear()
            await asyncio.to_thread(ensemble.servers[1].start)
            await session.reach_again()
            assert await insist(lambda: session.store.exists("/kept"))
            assert await insist(lambda: session.store.exists("/mine"))

    with Ensemble(3) as ensemble:
        asyncio.run(story(ensemble))
