"""ZooKeeper sessions for tests: recorded session states, and a proxy that cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tidemill.coordination.coordination_store import Event, EventKind, SessionState, StoreUnavailable
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore

Settings = Callable[..., ZooKeeperSettings]
WAIT_S = 50
CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED
CREATED, DELETED = EventKind.CREATED, EventKind.DELETED
DATA, CHILDREN = EventKind.DATA_CHANGED, EventKind.CHILDREN_CHANGED


class Proxy:
    """A proxy between a store and its server. While it holds, it forwards nothing."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.partition(":")
        self._port = int(port)
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refuses:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def hold(self) -> None:
        """Stops forwarding: connections become half open."""
        self._flows.clear()

    def release(self) -> None:
        """Forwards again."""
        self._flows.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Closes all connections. With ``refuse`` it accepts none until the next call without ``refuse``."""
        self._refuses = refuse
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut(refuse=True)
        self.release()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Session:
    """A store and the session states that it reported."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.store = store
        self.states: list[SessionState] = []
        self._changed = asyncio.Event()
        store.on_session(self._tell)

    def _tell(self, state: SessionState) -> None:
        self.states.append(state)
        self._changed.set()

    async def reach(self, *states: SessionState) -> None:
        """Waits until exactly these states were reported since the last call, in order; fails on others."""
        async with asyncio.timeout(WAIT_S):
            while len(self.states) < len(states):
                self._changed.clear()
                await self._changed.wait()
        assert self.states == list(states)
        self.states.clear()

    async def next_state(self) -> None:
        """Waits until another state is reported."""
        self._changed.clear()
        await self._changed.wait()

    async def reach_again(self) -> None:
        """Waits for a connection."""
        async with asyncio.timeout(WAIT_S):
            while CONNECTED not in self.states:
                self._changed.clear()
                await self._changed.wait()

    async def serves(self) -> None:
        """Waits for the response to a call, which is retried when the connection breaks."""
        async with asyncio.timeout(WAIT_S):
            while True:
                told = len(self.states)
                try:
                    await self.store.exists("/")
                except StoreUnavailable:
                    while len(self.states) == told:
                        await self.next_state()
                else:
                    return


@contextlib.asynccontextmanager
async def opened(settings: ZooKeeperSettings) -> AsyncIterator[Session]:
    store = await ZooKeeperStore.open(settings)
    try:
        yield Session(store)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def behind_proxy(settings: ZooKeeperSettings) -> AsyncIterator[tuple[Session, Proxy]]:
    proxy = Proxy(settings.hosts)
    address = await proxy.start()
    try:
        async with opened(settings._replace(hosts=address)) as session:
            yield session, proxy
    finally:
        await proxy.close()


def kinds(events: list[Event]) -> list[EventKind]:
    return [event.kind for event in events]
