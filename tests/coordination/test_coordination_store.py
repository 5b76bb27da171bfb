"""The tests of every implementation of the coordination store; ``ENGINES`` lists them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tidemill.coordination.coordination_store import (
    NO_OWNER,
    NODE_BYTES_MAX,
    BadVersion,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildren,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionState,
    SetData,
    Store,
    StoreUnavailable,
    ensure_paths,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.zookeeper_store import ZooKeeperStore

Sessions = Callable[[], AbstractAsyncContextManager[tuple[Store, Store]]]


@asynccontextmanager
async def embedded_sessions(directory: Path) -> AsyncIterator[tuple[Store, Store]]:
    """Two sessions on one tree."""
    one = EmbeddedStore.open(str(directory / "coordination.db"))
    two = one.join()
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()


@asynccontextmanager
async def zookeeper_sessions(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, Store]]:
    """Two sessions on one server."""
    settings = request.getfixturevalue("zookeeper")()
    one = await ZooKeeperStore.open(settings)
    two = await ZooKeeperStore.open(settings)
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()


ENGINES: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[tuple[Store, Store]]]] = {
    "embedded": lambda request: embedded_sessions(request.getfixturevalue("tmp_path")),
    "zookeeper": zookeeper_sessions,
}


@pytest.fixture(params=sorted(ENGINES))
def sessions(request: pytest.FixtureRequest) -> Sessions:
    """Opens two sessions with a fresh store of each engine."""
    if request.param == "zookeeper":
        request.getfixturevalue("zookeeper")
    return lambda: ENGINES[request.param](request)


async def test_a_node_is_created_read_changed_and_deleted(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        assert await store.get("/a") is None
        assert not await store.exists("/a")
        assert (await store.transact([Create("/a", b"one")]))[0] == ("/a", 0)
        node = await store.get("/a")
        assert node is not None
        assert (node.data, node.version, node.owner) == (b"one", 0, NO_OWNER)
        assert (await store.transact([SetData("/a", b"two", 0)]))[0] == ("/a", 1)
        changed = await store.get("/a")
        assert changed is not None
        assert (changed.data, changed.version) == (b"two", 1)
        assert changed.creation_id == node.creation_id
        await store.transact([Delete("/a", 1)])
        assert await store.get("/a") is None


async def test_creation_ids_increase_and_are_unique(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        ids = []
        for _ in range(3):
            await store.transact([Create("/a")])
            node = await store.get("/a")
            assert node is not None
            ids.append(node.creation_id)
            await store.transact([Delete("/a")])
        assert ids == sorted(set(ids))


async def test_lists_the_names_of_children_in_order(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/a"), Create("/a/y"), Create("/a/x"), Create("/a/x/deep")])
        assert await store.children("/a") == ["x", "y"]
        assert await store.children("/a/y") == []
        await store.transact([Delete("/a/y")])
        assert await store.children("/a") == ["x"]
        with pytest.raises(NoNode):
            await store.children("/missing")


async def test_a_transaction_is_atomic(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/a", b"old"), Create("/a/kept")])
        with pytest.raises(NodeExists) as caught:
            await store.transact(
                [SetData("/a", b"new"), Create("/b"), Delete("/a/kept"), Create("/b/c"), Create("/b/c")]
            )
        assert (caught.value.path, caught.value.index) == ("/b/c", 4)
        node = await store.get("/a")
        assert node is not None
        assert (node.data, node.version) == (b"old", 0)
        assert await store.children("/a") == ["kept"]
        assert await store.get("/b") is None
        await store.transact([Create("/b")])


async def test_a_transaction_may_require_that_a_node_does_not_exist(sessions: Sessions) -> None:
    """The node is created and deleted in the transaction, and does not exist afterwards."""

    async with sessions() as (one, two):
        await one.transact([Create("/a", b"1"), Create("/ids")])
        without = [Create("/ids/7"), Delete("/ids/7")]
        await one.transact([*without, SetData("/a", b"2")])
        assert await one.children("/ids") == []
        await two.transact([Create("/ids/7", b"x", ephemeral=True)])
        with pytest.raises(NodeExists) as caught:
            await one.transact([*without, SetData("/a", b"3")])
        assert caught.value.path == "/ids/7"
        there, node = await one.get("/ids/7"), await one.get("/a")
        assert there is not None
        assert node is not None
        assert (there.data, node.data) == (b"x", b"2")


async def test_operations_of_a_transaction_see_earlier_operations(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        results = await store.transact(
            [Create("/a"), Create("/a/b", b"1"), SetData("/a/b", b"2", 0), Check("/a/b", 1)]
        )
        assert [result.version for result in results] == [0, 0, 1, 1]
        await store.transact([Delete("/a/b"), Delete("/a"), Create("/a", b"again")])
        assert await store.children("/a") == []


async def test_every_operation_rejects_a_stale_version(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/a"), SetData("/a", b"x")])
        for operation in (SetData("/a", b"y", 0), Delete("/a", 0), Check("/a", 0)):
            with pytest.raises(BadVersion, match="/a"):
                await store.transact([operation])
        for operation in (SetData("/n", b"y"), Delete("/n"), Check("/n")):
            with pytest.raises(NoNode, match="/n"):
                await store.transact([operation])


async def test_rejects_operations_that_break_the_tree(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        with pytest.raises(NoNode, match="/a"):
            await store.transact([Create("/a/b")])
        await store.transact([Create("/a"), Create("/a/b")])
        with pytest.raises(NotEmpty, match="/a"):
            await store.transact([Delete("/a")])
        await store.transact([Create("/e", ephemeral=True)])
        with pytest.raises(NoChildren, match="/e/f"):
            await store.transact([Create("/e/f")])


@pytest.mark.parametrize("path", ["a", "/a/", "//a", "/a/../b", "/a/./b", "/a\x00"])
async def test_rejects_an_invalid_path(sessions: Sessions, path: str) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/a")])
        with pytest.raises((ValueError, NoNode)):
            await store.transact([Create(path)])


async def test_rejects_data_over_the_limit(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        with pytest.raises(ValueError, match="at most"):
            await store.transact([Create("/a", b"x" * (NODE_BYTES_MAX + 1))])
        assert not await store.exists("/a")


async def test_numbers_of_sequential_nodes_increase_and_are_not_reused(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/q")])
        names = []
        for _ in range(3):
            (result,) = await store.transact([Create("/q/n_", b"x", sequential=True)])
            names.append(result.path)
            await store.transact([Delete(result.path)])
        assert names == sorted(set(names))
        assert all(len(name) == len("/q/n_") + 10 and name[5:].isdigit() for name in names)


async def test_ephemeral_nodes_are_deleted_with_their_session(sessions: Sessions) -> None:
    async with sessions() as (one, two):
        await one.transact([Create("/one", ephemeral=True), Create("/stays")])
        await two.transact([Create("/two", ephemeral=True)])
        node = await two.get("/one")
        assert node is not None
        assert node.owner == one.session_id != two.session_id
        await one.close()
        assert await two.get_many(["/one", "/two", "/stays"]) != [None, None, None]
        assert not await two.exists("/one")
        assert await two.exists("/two")
        assert await two.exists("/stays")


async def test_watches_report_each_change_once_in_order(sessions: Sessions) -> None:
    async with sessions() as (one, two):
        seen: list[Event] = []
        await two.watch("/a", seen.append)
        await one.transact([Create("/a")])
        await one.transact([SetData("/a", b"1")])
        await one.transact([Create("/a/b")])
        await one.transact([SetData("/a/b", b"not told: another node")])
        await one.transact([Delete("/a/b")])
        await one.transact([Delete("/a")])
        await two.exists("/a")
        assert seen == [
            (EventKind.CREATED, "/a"),
            (EventKind.DATA_CHANGED, "/a"),
            (EventKind.CHILDREN_CHANGED, "/a"),
            (EventKind.CHILDREN_CHANGED, "/a"),
            (EventKind.DELETED, "/a"),
        ]


async def test_a_writer_receives_its_events_before_its_write_returns(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        seen: list[Event] = []
        await store.watch("/a", seen.append)
        await store.transact([Create("/a")])
        assert [event.kind for event in seen] == [EventKind.CREATED]


async def test_a_failed_transaction_causes_no_events(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        seen: list[Event] = []
        await store.watch("/a", seen.append)
        with pytest.raises(NoNode):
            await store.transact([Create("/a"), Delete("/missing")])
        assert not await store.exists("/a")
        assert seen == []


async def test_a_cancelled_watch_receives_no_events(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        first: list[Event] = []
        second: list[Event] = []
        watch = await store.watch("/a", first.append)
        await store.watch("/a", second.append)
        watch.cancel()
        watch.cancel()
        await store.transact([Create("/a")])
        assert first == []
        assert len(second) == 1


async def test_a_watcher_may_write(sessions: Sessions) -> None:
    async with sessions() as (one, two):
        tasks: list[asyncio.Task[object]] = []

        def answer(event: Event) -> None:
            tasks.append(asyncio.ensure_future(two.transact([Create("/answer")])))

        await two.watch("/question", answer)
        await one.transact([Create("/question")])
        await two.exists("/question")
        await asyncio.gather(*tasks)
        assert await one.exists("/answer")


async def test_a_failing_watcher_does_not_affect_others(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    async with sessions() as (store, _):
        seen: list[Event] = []

        def broken(event: Event) -> None:
            raise RuntimeError("broken on purpose")

        await store.watch("/a", broken)
        await store.watch("/a", seen.append)
        await store.transact([Create("/a")])
        assert len(seen) == 1
    assert "/a" in caplog.text


async def test_concurrent_calls_take_effect_in_order(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/n", b"0")])
        calls: list[asyncio.Future[object]] = []
        for value in range(1, 50):
            data = str(value).encode()
            calls.append(asyncio.ensure_future(store.transact([SetData("/n", data, value - 1)])))
        *_, node = await asyncio.gather(*calls, store.get("/n"))
        assert node is not None
        assert (node.data, node.version) == (b"49", 49)


async def test_one_of_two_compare_and_set_operations_succeeds(sessions: Sessions) -> None:
    async with sessions() as (one, two):
        await one.transact([Create("/n")])
        outcomes = await asyncio.gather(
            one.transact([SetData("/n", b"one", 0)]),
            two.transact([SetData("/n", b"two", 0)]),
            return_exceptions=True,
        )
        assert sorted(isinstance(outcome, BadVersion) for outcome in outcomes) == [False, True]


async def test_a_closed_session_rejects_calls_and_can_be_closed_again(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.close()
        await store.close()
        for call in (
            store.get("/"),
            store.get_many(["/"]),
            store.children("/"),
            store.transact([Create("/a")]),
            store.watch("/a", print),
        ):
            with pytest.raises(StoreUnavailable):
                await call


async def test_ensure_paths_creates_only_missing_nodes(sessions: Sessions) -> None:
    async with sessions() as (store, _):
        await store.transact([Create("/a", b"kept")])
        await ensure_paths(store, ["/a/b/c", "/a/d", "/e"])
        await ensure_paths(store, ["/a/b/c"])
        assert await store.children("/a") == ["b", "d"]
        assert await store.children("/a/b") == ["c"]
        node = await store.get("/a")
        assert node is not None
        assert node.data == b"kept"


async def test_an_expired_session_loses_its_nodes_and_is_replaced(tmp_path: Path) -> None:
    async with embedded_sessions(tmp_path) as (one, two):
        assert isinstance(one, EmbeddedStore)
        states: list[SessionState] = []
        seen: list[Event] = []
        one.on_session(states.append)
        await two.watch("/mine", seen.append)
        await one.transact([Create("/mine", ephemeral=True)])
        former = one.session_id
        await one.expire()
        assert states == [SessionState.EXPIRED, SessionState.CONNECTED]
        assert one.session_id != former
        assert [event.kind for event in seen] == [EventKind.CREATED, EventKind.DELETED]
        await one.transact([Create("/mine", ephemeral=True)])
