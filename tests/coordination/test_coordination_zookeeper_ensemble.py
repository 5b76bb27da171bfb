"""The ZooKeeper store with three servers, of which one or two fail."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from zookeeper_ensemble import Ensemble
from zookeeper_sessions import CONNECTED, DATA, SUSPENDED, WAIT_S, opened

from tidemill.coordination.coordination_store import Create, Event, SetData, StoreUnavailable
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.server.zookeeper_jars import serves
from tidemill.testing.zookeeper import ZooKeeper

Answer = TypeVar("Answer")

pytestmark = pytest.mark.slow


async def insist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The result of a call that is retried while the servers elect a leader."""
    for _ in range(WAIT_S * 10):
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    return await call()


def test_a_session_continues_on_another_server() -> None:
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
                # A server that lags behind reports the change when it has applied it.
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


def test_without_a_majority_calls_fail_and_nothing_is_lost() -> None:
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


def test_servers_of_an_ensemble_have_different_ports() -> None:
    ensemble = Ensemble(150)
    try:
        (members,) = {tuple(server.settings.items()) for server in ensemble.servers}
        ports = [server.port for server in ensemble.servers]
        ports += [
            int(port) for key, value in members if key[:7] == "server." for port in value.split(":")[1:]
        ]
        assert len(set(ports)) == len(ports) == 3 * 150
    finally:
        ensemble.close()


def test_an_ensemble_retries_with_other_ports_if_one_is_in_use() -> None:
    ensemble = Ensemble(3)
    with socket.create_server(("127.0.0.1", ensemble.servers[1].port)) as other, ensemble:
        taken = other.getsockname()[1]
        assert taken not in [server.port for server in ensemble.servers]
        assert all(serves("127.0.0.1", server.port) for server in ensemble.servers)
