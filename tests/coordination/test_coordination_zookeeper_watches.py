"""Watches of the ZooKeeper store: no change is missed when connections break."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from zookeeper_sessions import (
    CHILDREN,
    CONNECTED,
    CREATED,
    DATA,
    DELETED,
    SUSPENDED,
    WAIT_S,
    Settings,
    behind_proxy,
    kinds,
    opened,
)

from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    Event,
    EventKind,
    SetData,
    StoreUnavailable,
)
from tidemill.coordination.zookeeper_watches import Seen, after, missed


async def test_reports_changes_of_a_cut_after_it(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper()) as (session, proxy), opened(zookeeper()) as other:
        write = other.store.transact
        names = ["same", "data", "child", "both", "gone", "new", "again", "never"]
        await write([Create(f"/{name}") for name in names if name not in ("new", "never")])
        seen: dict[str, list[EventKind]] = {name: [] for name in names}
        order: list[object] = []
        session.store.on_session(order.append)

        def tell(event: Event) -> None:
            seen[event.path[1:]].append(event.kind)
            order.append(event.kind)

        for name in names:
            await session.store.watch(f"/{name}", tell)
        proxy.cut(refuse=True)
        await session.reach(SUSPENDED)
        await write([SetData("/data", b"1"), SetData("/data", b"2"), Create("/child/c")])
        await write([SetData("/both", b"1"), Create("/both/c"), Delete("/gone"), Create("/new")])
        await write([Delete("/again"), Create("/never")])
        await write([Create("/again"), Delete("/never")])
        proxy.cut()
        await session.reach(CONNECTED)
        await session.store.exists("/")
        assert seen == {
            "same": [],
            "data": [DATA],
            "child": [CHILDREN],
            "both": [DATA, CHILDREN],
            "gone": [DELETED],
            "new": [CREATED],
            "again": [DELETED, CREATED],
            "never": [],
        }
        assert order[:2] == [SUSPENDED, CONNECTED]
        # From now on each change is reported as before.
        await write([SetData("/data", b"3"), Delete("/child/c"), Delete("/new"), Create("/gone")])
        await session.store.exists("/")
        assert (seen["data"], seen["child"]) == ([DATA, DATA], [CHILDREN, CHILDREN])
        assert (seen["new"], seen["gone"]) == ([CREATED, DELETED], [DELETED, CREATED])


async def test_loses_no_change_while_connections_break(zookeeper: Settings) -> None:
    async with behind_proxy(zookeeper()) as (session, proxy), opened(zookeeper()) as other:
        store = session.store
        changed, served = asyncio.Event(), asyncio.Event()
        store.on_session(lambda state: served.set() if state is CONNECTED else served.clear())
        served.set()

        async def read() -> int:
            while True:
                await served.wait()
                with contextlib.suppress(StoreUnavailable):
                    node = await store.get("/n")
                    assert node is not None
                    return int(node.data)
                await asyncio.sleep(0)

        await other.store.transact([Create("/n", b"0")])
        await store.watch("/n", lambda event: changed.set())
        last_read = 0
        for value in range(1, 151):
            if value % 10 == 0:
                proxy.cut()
            await other.store.transact([SetData("/n", b"%d" % value)])
            # The node is read only after an event; the last value is read nevertheless.
            async with asyncio.timeout(WAIT_S):
                while last_read < value:
                    await changed.wait()
                    changed.clear()
                    last_read = await read()
        assert last_read == 150


async def test_reports_each_of_many_fast_changes(zookeeper: Settings) -> None:
    async with opened(zookeeper()) as watching, opened(zookeeper(in_flight_max=100)) as writing:
        seen: list[Event] = []
        await writing.store.transact([Create("/n")])
        await watching.store.watch("/n", seen.append)
        calls = [writing.store.transact([SetData("/n", b"%d" % n)]) for n in range(300)]
        calls += [writing.store.transact([Create(f"/n/{n}")]) for n in range(300)]
        await asyncio.gather(*calls)
        await watching.store.exists("/n")
        assert kinds(seen) == [DATA] * 300 + [CHILDREN] * 300


async def test_watches_of_one_path_are_independent(zookeeper: Settings) -> None:
    async with opened(zookeeper()) as session:
        store = session.store
        await store.transact([Create("/n")])
        first: list[Event] = []
        second: list[Event] = []
        one = await store.watch("/n", first.append)
        # The second watch starts while the first one ends: ZooKeeper's watch of the path must survive.
        setting = asyncio.ensure_future(store.watch("/n", second.append))
        await asyncio.sleep(0)
        one.cancel()
        two = await setting
        await store.transact([SetData("/n", b"1")])
        assert (kinds(first), kinds(second)) == ([], [DATA])
        two.cancel()
        await store.transact([SetData("/n", b"2")])
        third: list[Event] = []
        await store.watch("/n", third.append)
        await store.transact([SetData("/n", b"3")])
        assert (kinds(first), kinds(second), kinds(third)) == ([], [DATA], [DATA])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, None, []),
        (None, Seen(1, 0, 0), [CREATED]),
        (Seen(1, 0, 0), None, [DELETED]),
        (Seen(1, 2, 3), Seen(1, 2, 3), []),
        (Seen(1, 2, 3), Seen(1, 4, 3), [DATA]),
        (Seen(1, 2, 3), Seen(1, 2, 9), [CHILDREN]),
        (Seen(1, 2, 3), Seen(1, 4, 9), [DATA, CHILDREN]),
        (Seen(1, 2, 3), Seen(5, 2, 3), [DELETED, CREATED]),
        # Before 3.9 the server does not report which transaction created the node: it may be a new node.
        (Seen(0, 0, 0), Seen(5, 0, 0), [DELETED, CREATED]),
    ],
)
def test_finds_missed_changes_from_the_stat_of_the_node(
    before: Seen | None, now: Seen | None, expected: list[EventKind]
) -> None:
    assert missed(before, now) == expected


def test_counts_reported_events() -> None:
    seen: Seen | None = None
    for kind in (CREATED, DATA, DATA, CHILDREN):
        seen = after(seen, kind, 7)
    assert seen == Seen(7, 2, 1)
    assert after(seen, DELETED, 8) is None
    assert after(None, DATA, 8) is None
