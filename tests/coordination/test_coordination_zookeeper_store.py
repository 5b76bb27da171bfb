"""Failures of the ZooKeeper store: lost connections, expired sessions, stopped servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError, UnimplementedError
from zookeeper_sessions import (
    CHILDREN,
    CONNECTED,
    CREATED,
    DATA,
    DELETED,
    EXPIRED,
    SUSPENDED,
    WAIT_S,
    Settings,
    behind_proxy,
    kinds,
    opened,
)

from tidemill.coordination.coordination_store import (
    NODE_BYTES_MAX,
    Create,
    Delete,
    Event,
    NoNode,
    SessionExpired,
    SetData,
    StoreError,
    StoreUnavailable,
)
from tidemill.coordination.zookeeper_errors import call_error
from tidemill.coordination.zookeeper_link import Connection
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.testing.zookeeper import ZooKeeper


@pytest.fixture
def own_server() -> Iterator[ZooKeeper]:
    """A server that a test may stop."""
    with ZooKeeper() as server:
        yield server


# Sessions


async def test_a_new_session_follows_an_expired_one(
    zookeeper: Settings, expire: Callable[[ZooKeeperStore], None]
) -> None:
    async with opened(zookeeper()) as session:
        store = session.store
        seen: list[Event] = []
        await store.transact([Create("/mine", ephemeral=True), Create("/stays")])
        await store.watch("/mine", seen.append)
        await store.watch("/stays", seen.append)
        former = store.session_id
        await asyncio.to_thread(expire, store)
        await session.reach(SUSPENDED, EXPIRED, CONNECTED)
        assert store.session_id not in (0, former)
        assert await store.get_many(["/mine"]) == [None]
        assert seen == [(DELETED, "/mine")]
        await store.transact([Create("/mine", ephemeral=True), SetData("/stays", b"x")])
        node = await store.get("/mine")
        assert node is not None
        assert node.owner == store.session_id
        assert seen[1:] == [(CREATED, "/mine"), (DATA, "/stays")]


async def test_a_session_without_a_connection_expires(zookeeper: Settings) -> None:
    settings = zookeeper(session_timeout_ms=800)
    async with behind_proxy(settings) as (session, proxy), opened(zookeeper()) as other:
        gone = asyncio.Event()
        await session.store.transact([Create("/mine", ephemeral=True)])
        await other.store.watch("/mine", lambda event: gone.set())
        proxy.cut(refuse=True)
        await session.reach(SUSPENDED)
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
        proxy.cut()
        await session.reach(EXPIRED, CONNECTED)
        await session.store.transact([Create("/mine", ephemeral=True)])


async def test_a_session_survives_a_short_cut(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper()) as (session, proxy):
        await session.store.transact([Create("/mine", ephemeral=True)])
        former = session.store.session_id
        for _ in range(3):
            proxy.cut()
            await session.reach(SUSPENDED, CONNECTED)
        assert session.store.session_id == former
        assert await session.store.exists("/mine")


async def test_detects_a_half_open_connection(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper(session_timeout_ms=1500)) as (session, proxy):
        await session.store.transact([Create("/a")])
        proxy.hold()
        calls = [asyncio.ensure_future(session.store.get("/a")) for _ in range(30)]
        began = time.monotonic()
        await session.reach(SUSPENDED)
        assert time.monotonic() - began < 10
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, StoreUnavailable)
        proxy.release()
        proxy.cut()
        await session.reach_again()
        assert await session.store.exists("/a")


async def test_calls_fail_without_a_connection(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper()) as (session, proxy):
        store = session.store
        await store.transact([Create("/n")])
        calls = [asyncio.ensure_future(store.transact([SetData("/n", b"x")])) for _ in range(50)]
        await asyncio.sleep(0)
        proxy.cut(refuse=True)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [o for o in outcomes if isinstance(o, Exception)]
        assert all(isinstance(o, StoreUnavailable) for o in outcomes if isinstance(o, Exception))
        await session.reach(SUSPENDED)
        for call in (store.get("/n"), store.children("/n"), store.transact([Delete("/n")])):
            with pytest.raises(StoreUnavailable):
                await call
        proxy.cut()
        await session.reach(CONNECTED)
        # Acknowledged calls took effect; unanswered calls may have.
        node = await store.get("/n")
        assert node is not None
        assert sum(not isinstance(o, Exception) for o in outcomes) <= node.version <= 50


async def test_a_killed_server_returns_with_all_data(own_server: ZooKeeper) -> None:
    async with opened(ZooKeeperSettings(own_server.address, "/c", 20_000)) as session:
        store = session.store
        seen: list[Event] = []
        await store.transact([Create("/a", b"1"), Create("/mine", ephemeral=True)])
        await store.watch("/a", seen.append)
        former = store.session_id
        await asyncio.to_thread(own_server.kill)
        await session.reach(SUSPENDED)
        await asyncio.to_thread(own_server.start)
        await session.reach(CONNECTED)
        assert store.session_id == former
        assert await store.children("/") == ["a", "mine"]
        assert seen == []
        await store.transact([SetData("/a", b"2")])
        assert seen == [(DATA, "/a")]


async def test_detects_a_paused_server_and_reconnects(own_server: ZooKeeper) -> None:
    async with opened(ZooKeeperSettings(own_server.address, "", 1000)) as session:
        own_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                await session.store.get("/")
            # The call may fail before the session reports the outage.
            for _ in range(500):
                if SUSPENDED in session.states:
                    break
                await asyncio.sleep(0.02)
            assert SUSPENDED in session.states
        finally:
            own_server.resume()
        # A busy machine may break the connection more than once: one second without a break is enough.
        await session.serves()


async def test_close_does_not_wait_for_a_paused_server(own_server: ZooKeeper) -> None:
    store = await ZooKeeperStore.open(ZooKeeperSettings(own_server.address, "", 60_000))
    own_server.pause()
    try:
        call = asyncio.ensure_future(store.get("/"))
        await asyncio.sleep(0)
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < 10
        with pytest.raises(StoreUnavailable, match="closed"):
            await call
    finally:
        own_server.resume()


async def test_an_exception_in_the_thread_closes_only_the_connection(
    zookeeper: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(zookeeper()) as session:
        store = session.store
        await store.transact([Create("/n")])
        seen: list[Event] = []
        await store.watch("/n", seen.append)

        def broken(*arguments: object) -> None:
            monkeypatch.undo()
            raise AttributeError("broken on purpose")

        monkeypatch.setattr(Connection, "_read_watch_event", broken)
        with contextlib.suppress(StoreUnavailable):
            await store.transact([SetData("/n", b"1")])
        await session.reach_again()
        assert await store.exists("/n")
        assert kinds(seen) == [DATA]
    assert "broken on purpose" in caplog.text


def test_a_call_in_an_expired_session_fails() -> None:
    assert isinstance(call_error(SessionExpiredError()), SessionExpired)
    assert not isinstance(call_error(ConnectionLoss()), SessionExpired)
    assert isinstance(call_error(ConnectionLoss()), StoreUnavailable)
    assert "3.6 or later" in str(call_error(UnimplementedError()))


# Amounts


async def test_thousands_of_calls_are_in_flight_together(
    zookeeper: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(zookeeper(in_flight_max=200)) as session:
        store = session.store
        await store.transact([Create("/many")])
        loop = asyncio.get_running_loop()
        wakeups = 0
        wake = loop.call_soon_threadsafe

        def count(*arguments: Any, **others: Any) -> Any:
            nonlocal wakeups
            wakeups += 1
            return wake(*arguments, **others)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        began = time.monotonic()
        calls = [store.transact([Create(f"/many/{n:05}", b"x" * 100)]) for n in range(2000)]
        work = asyncio.gather(*calls)
        passes = 0
        while not work.done():
            # The loop is busy, and all responses that arrive meanwhile wake it once.
            time.sleep(0.005)  # noqa: ASYNC251 - the loop is to be busy
            passes += 1
            await asyncio.sleep(0)
        results = work.result()
        took_s, wakeups_of_creates = time.monotonic() - began, wakeups
        print(f"2,000 creates took {took_s:.2f} s, {passes} passes of the loop and {wakeups} wake-ups")
        assert [result.path for (result,) in results] == [f"/many/{n:05}" for n in range(2000)]
        nodes = await store.get_many([f"/many/{n:05}" for n in range(2000)])
        ids = [node.creation_id for node in nodes if node is not None]
        assert len(ids) == 2000
        assert ids == sorted(set(ids))
        assert took_s < 20
        assert wakeups_of_creates <= passes + 1


async def test_limits_the_calls_in_flight(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper(in_flight_max=7)) as (session, proxy):
        client = session.store._link._client
        proxy.hold()
        calls = [asyncio.ensure_future(session.store.get("/")) for _ in range(100)]
        await asyncio.sleep(0.2)
        assert len(client._queue) + len(client._pending) <= 7
        proxy.release()
        assert None not in await asyncio.gather(*calls)


async def test_rejects_requests_for_which_zookeeper_would_close_the_connection(zookeeper: Settings) -> None:
    async with opened(zookeeper()) as session:
        store = session.store
        largest = NODE_BYTES_MAX - 1024
        await store.transact([Create("/large", b"x" * largest)])
        node = await store.get("/large")
        assert node is not None
        assert len(node.data) == largest
        with pytest.raises(ValueError, match=r"jute\.maxbuffer"):
            await store.transact([SetData("/large", b"x" * NODE_BYTES_MAX)])
        many = [Create(f"/n{n}", b"x" * 1000) for n in range(1100)]
        with pytest.raises(ValueError, match=r"1100 operations.*smaller"):
            await store.transact(many)
        await store.transact(many[:900])
        assert session.states == []


async def test_a_cancelled_call_does_not_affect_others(zookeeper: Settings) -> None:
    async with opened(zookeeper()) as session:
        store = session.store
        calls = [asyncio.ensure_future(store.transact([Create(f"/{n}")])) for n in range(30)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(await store.children("/")) == 30
        with pytest.raises(NoNode):
            await store.children("/missing")


# Another client


def test_another_client_sees_the_same_nodes(zookeeper: Settings) -> None:
    async def story(settings: ZooKeeperSettings, other: Any) -> None:
        async with opened(settings) as session:
            store = session.store
            await store.transact([Create("/a", b"data"), Create("/a/e", b"x", ephemeral=True)])
            (result,) = await store.transact([Create("/a/n_", sequential=True)])
            await store.transact([SetData("/a", b"other")])
            data, stat = other.get(f"{settings.chroot}/a")
            assert (data, stat.version, stat.ephemeralOwner) == (b"other", 1, 0)
            node = await store.get("/a")
            assert node is not None
            assert node.creation_id == stat.czxid
            assert other.exists(f"{settings.chroot}/a/e").ephemeralOwner == store.session_id
            assert sorted(other.get_children(f"{settings.chroot}/a")) == ["e", result.path[3:]]
            seen: list[Event] = []
            await store.watch("/a", seen.append)
            other.set(f"{settings.chroot}/a", b"theirs")
            other.create(f"{settings.chroot}/a/null", None)
            assert await store.get("/a/null") is not None
            assert kinds(seen) == [DATA, CHILDREN]
            assert (await store.get_many(["/a/null"]))[0].data == b""  # type: ignore[union-attr]
        assert other.exists(f"{settings.chroot}/a/e") is None

    settings = zookeeper()
    other = KazooClient(settings.hosts)
    other.start()
    try:
        asyncio.run(story(settings, other))
    finally:
        other.stop()
        other.close()


# Errors of open


async def test_reports_a_server_that_is_not_zookeeper(zookeeper: Settings) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = ZooKeeperSettings(address, session_timeout_ms=2000, connection_timeout_ms=700)
    with pytest.raises(StoreUnavailable, match="not ZooKeeper's"):
        await ZooKeeperStore.open(settings)
    server.close()


async def test_reports_an_unresolvable_host() -> None:
    settings = ZooKeeperSettings("no-such-host.invalid:2181", connection_timeout_ms=700)
    with pytest.raises(StoreUnavailable, match=r"no address is known for no-such-host\.invalid"):
        await ZooKeeperStore.open(settings)


async def test_reports_a_chroot_that_cannot_be_created(zookeeper: Settings) -> None:
    settings = zookeeper()
    async with opened(settings) as session:
        await session.store.transact([Create("/e", ephemeral=True)])
        with pytest.raises(StoreError, match="/e/below, which does not exist and could not be created"):
            await ZooKeeperStore.open(settings._replace(chroot=f"{settings.chroot}/e/below"))
