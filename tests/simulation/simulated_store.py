"""A coordination store for a simulated cluster: one tree, and sessions that are delayed, cut off, or expire.

The server is a machine of the network. Calls of a client arrive in order, and so do responses and events,
over one connection at a time. When a connection breaks, calls in flight may have arrived or not, and
responses and events are lost. A session that is silent for its timeout expires, together with its ephemeral
nodes; a client that returns too late is notified, and begins another session. The guarantees are those of
ZooKeeper, as :mod:`tidemill.coordination.zookeeper_store` provides them: see
:mod:`tidemill.coordination.coordination_store`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from simulated_loop import PROCESS
from simulated_network import WORLD, Machine, Network

from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    Event,
    EventKind,
    Node,
    Operation,
    Result,
    SessionExpired,
    SessionListener,
    SessionState,
    SetData,
    Store,
    StoreUnavailable,
    Watch,
    Watcher,
    check_path,
)
from tidemill.coordination.embedded_store_tree import Tree
from tidemill.coordination.zookeeper_watches import Seen, missed

STORE_MACHINE = "store"
PINGS_A_TIMEOUT = 3
TRY_AGAIN_S = 0.05


class Session:
    """A client's session, as the server knows it."""

    def __init__(self, number: int, timeout_s: float, heard_s: float) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.heard_s = heard_s
        self.connection: Connection | None = None
        self.watched: set[str] = set()


class Connection:
    """One connection of a client: two streams of calls, until it breaks."""

    def __init__(self, network: Network, client: Machine, server: Machine, store: SimulatedStore) -> None:
        self.network = network
        self.broken = False
        self.store = store
        self.client = client
        self.server = server
        self._arrivals = {True: 0.0, False: 0.0}

    def to_server(self, call: Callable[[], None]) -> None:
        """Calls a function at the server, a little later."""
        self._send(True, call, WORLD)

    def to_client(self, call: Callable[[], None], context: Any) -> None:
        """Calls a function at the client, a little later."""
        self._send(False, call, context)

    def _send(self, is_request: bool, call: Callable[[], None], context: Any) -> None:
        late_s = 0.0 if is_request else self.store.late_s
        when = max(self._arrivals[is_request], self.network.arrival_s() + late_s)
        self._arrivals[is_request] = when

        def arrive() -> None:
            ends = (self.client, self.server) if is_request else (self.server, self.client)
            if self.broken:
                # The call may have arrived before the connection broke.
                if not is_request or self.network.random.random() < 0.5:
                    return
            elif not self.network.is_open(*ends):
                self.broken = True
                return
            call()

        self.network.loop.call_at(when, arrive, context=context)


class StoreServer:
    """The tree and the sessions that share it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.loop = network.loop
        self.machine = network.machine(STORE_MACHINE)
        self.tree = Tree()
        self.sessions: dict[int, Session] = {}
        self.session_ended: Callable[[str], None] = lambda text: None
        """Called with a description of each ended session."""
        self.written: Callable[[str, bytes], None] = lambda path, data: None
        """Called with each node that was written, and its data."""
        self.removed: Callable[[str], None] = lambda path: None
        """Called with each node that was deleted."""
        self.ended: Callable[[list[str]], None] = lambda paths: None
        """Called with the nodes that go with a session."""
        self.read: Callable[[int, str, Node], None] = lambda session, path, node: None
        """Called with a session and each of the nodes that it has read at once, when it has them."""
        self.transacted: Callable[[int, Sequence[Operation], dict[str, Node | None]], None] = (
            lambda session, operations, before: None
        )
        """Called with a session, what it has written at once, and the nodes that were there before."""
        self._last_session = 0x100
        self._children_versions: Counter[str] = Counter()

    def connect(self, connection: Connection, number: int, timeout_s: float) -> Session | None:
        """Returns a new session (number 0), or the one of that number; None if it has ended."""
        if number:
            session = self.sessions.get(number)
            if session is None:
                return None
        else:
            self._last_session += 1
            session = Session(self._last_session, timeout_s, self.loop.time())
            self.sessions[session.number] = session
            self._watch_over(session)
        session.heard_s = self.loop.time()
        session.connection = connection
        session.watched.clear()
        return session

    def _watch_over(self, session: Session) -> None:
        def look() -> None:
            if session.number not in self.sessions:
                return
            if self.loop.time() >= session.heard_s + session.timeout_s:
                self.end(session.number, "expires")
            else:
                self._watch_over(session)

        self.network.world_timer(session.heard_s + session.timeout_s, look)

    def end(self, number: int, how: str) -> None:
        """Ends a session, and deletes its ephemeral nodes."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        owned = sorted(self.tree.owned_by(number))
        self.session_ended(f"session {number:#x} {how}; its nodes go: {', '.join(owned) or 'it had none'}")
        if session.connection is not None:
            session.connection.broken = True
        self.ended(owned)
        if owned:
            self._deliver(self.tree.apply([Delete(path) for path in owned], 0).events)

    def remove(self, path: str) -> None:
        """Deletes a node for a client that is not a broker, if it exists."""
        if self.tree.get(path) is not None:
            self._deliver(self.tree.apply([Delete(path)], 0).events)

    def transact(self, session: Session, operations: Sequence[Operation]) -> list[Result]:
        """Applies the operations, and notifies the watchers."""
        before = {one.path: self.tree.get(one.path) for one in operations if isinstance(one, SetData)}
        applied = self.tree.apply(operations, session.number)
        self.transacted(session.number, operations, before)
        for operation, result in zip(operations, applied.results, strict=True):
            if isinstance(operation, Create | SetData):
                self.written(result.path, operation.data)
            elif isinstance(operation, Delete):
                self.removed(operation.path)
        self._deliver(applied.events)
        return applied.results

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if event.kind is EventKind.CHILDREN_CHANGED:
                self._children_versions[event.path] += 1
            for session in list(self.sessions.values()):
                if event.path in session.watched and session.connection is not None:
                    self.on_event(session, event, self.seen(event.path))

    def on_event(self, session: Session, event: Event, seen: Seen | None) -> None:
        """Sends an event to a session's client."""
        connection = session.connection
        if connection is not None:
            client = connection.store
            connection.to_client(lambda: client.take_event(connection, event, seen), client.context)

    def seen(self, path: str) -> Seen | None:
        """Returns the current node at ``path``."""
        node = self.tree.get(path)
        if node is None:
            return None
        return Seen(node.creation_id, node.version, self._children_versions[path])


class _Watch(Watch):
    def __init__(self, store: SimulatedStore, path: str, watcher: Watcher) -> None:
        self._store = store
        self._path = path
        self.watcher: Watcher | None = watcher

    def cancel(self) -> None:
        if self.watcher is not None:
            self.watcher = None
            self._store.forget(self._path, self)


class SimulatedStore(Store):
    """One process's session with the store: :meth:`open` begins it."""

    def __init__(self, server: StoreServer, timeout_s: float) -> None:
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process opens a session, not the world")
        self._server = server
        self._loop = server.loop
        self._network = server.network
        self._machine = server.network.machine(process.name)
        self._timeout_s = timeout_s
        self._number = 0
        self._connection: Connection | None = None
        self._usable = False
        self._closed = False
        self._reported_state = SessionState.SUSPENDED
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[str, list[_Watch]] = {}
        self._seen: dict[str, Seen | None] = {}
        self._listeners: list[SessionListener] = []
        self._answered_s = self._loop.time()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.late_s = 0.0
        """The additional delay of responses and events."""
        self.context = copy_context()

    @classmethod
    async def open(cls, server: StoreServer, timeout_s: float) -> SimulatedStore:
        """Begins a session; waits for the server as long as a broker does (``zookeeper.connection.timeout``).

        Raises StoreUnavailable.
        """
        store = cls(server, timeout_s)
        store._dial()
        try:
            async with asyncio.timeout(18.0):
                await store._opened
        except TimeoutError:
            store._closed = True
            raise StoreUnavailable("the simulated store does not answer") from None
        return store

    # -- the connection

    def _dial(self) -> None:
        """Opens a connection, with a new session or the existing one."""
        if self._closed:
            return
        connection = Connection(self._network, self._machine, self._server.machine, self)
        self._connection = connection
        self._answered_s = self._loop.time()
        watched = list(self._watches)

        def at_server() -> None:
            if connection.broken:
                return
            session = self._server.connect(connection, self._number, self._timeout_s)
            if session is not None:
                session.watched.update(watched)
            seen = {path: self._server.seen(path) for path in watched}
            connection.to_client(lambda: self._begun(connection, session, seen), self.context)

        connection.to_server(at_server)
        self._look_after(connection)

    def _look_after(self, connection: Connection) -> None:
        """Sends pings, and detects missing responses."""
        if connection is not self._connection or self._closed:
            return
        silent_s = self._loop.time() - self._answered_s
        if connection.broken or silent_s > self._timeout_s * 2 / 3:
            self.lose_connection()
            return
        if self._usable:
            self._request(connection, lambda session: None, lambda answer, problem: None)
        self._loop.call_later(
            self._timeout_s / PINGS_A_TIMEOUT / 2, self._look_after, connection, context=self.context
        )

    def lose_connection(self) -> None:
        """The connection is lost: calls fail, and a new connection is tried."""
        connection = self._connection
        if connection is None or self._closed:
            return
        connection.broken = True
        self._connection = None
        self._drop(StoreUnavailable("the connection to the simulated store was lost"))
        if self._reported_state is SessionState.CONNECTED:
            self._tell(SessionState.SUSPENDED)
        self._loop.call_later(TRY_AGAIN_S + self._network.delay_s(), self._dial_again, context=self.context)

    def _dial_again(self) -> None:
        if self._connection is None:
            self._dial()

    def _begun(self, connection: Connection, session: Session | None, seen: dict[str, Seen | None]) -> None:
        if connection is not self._connection:
            return
        self._answered_s = self._loop.time()
        if session is None:
            self._number = 0
            connection.broken = True
            self._connection = None
            self._drop(SessionExpired("the session with the simulated store has expired"))
            self._tell(SessionState.EXPIRED)
            self._dial_again()
            return
        self._number = session.number
        self._usable = True
        if not self._opened.done():
            self._reported_state = SessionState.CONNECTED
            self._opened.set_result(None)
            return
        events = [Event(kind, path) for path in seen for kind in missed(self._seen.get(path), seen[path])]
        self._seen.update(seen)
        self._tell(SessionState.CONNECTED)
        for event in events:
            self._deliver(event)

    def _drop(self, problem: StoreUnavailable) -> None:
        self._usable = False
        calls, self._calls = self._calls, {}
        for call in calls:
            if not call.done():
                call.set_exception(problem)
                call.exception()  # The caller may have ended.

    def _tell(self, state: SessionState) -> None:
        if state is self._reported_state:
            return
        self._reported_state = state
        for listener in list(self._listeners):
            listener(state)

    # -- calls

    def _request(
        self,
        connection: Connection,
        do: Callable[[Session], Any],
        answered: Callable[[Any, Exception | None], None],
    ) -> None:
        number = self._number

        def at_server() -> None:
            session = self._server.sessions.get(number)
            if session is None or session.connection is not connection:
                connection.broken = True
                return
            session.heard_s = self._loop.time()
            result: Any = None
            problem: Exception | None = None
            try:
                result = do(session)
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                problem = error
            connection.to_client(lambda: at_client(result, problem), self.context)

        def at_client(result: Any, problem: Exception | None) -> None:
            if connection is self._connection:
                self._answered_s = self._loop.time()
                answered(result, problem)

        connection.to_server(at_server)

    async def _ask(self, do: Callable[[Session], Any]) -> Any:
        if self._closed:
            raise StoreUnavailable("this session with the simulated store is closed")
        if not self._usable or self._connection is None:
            raise StoreUnavailable("the simulated store does not answer")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[future] = None

        def answered(result: Any, problem: Exception | None) -> None:
            self._calls.pop(future, None)
            if future.done():
                return
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)
                future.exception()

        self._request(self._connection, do, answered)
        return await future

    @property
    def session_id(self) -> int:
        return self._number

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    async def get(self, path: str) -> Node | None:
        (node,) = await self._get([path])
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found = await self._get(paths)
        for path, node in zip(paths, found, strict=True):
            if node is not None:
                self._server.read(self._number, path, node)
        return found

    async def _get(self, paths: Sequence[str]) -> list[Node | None]:
        found: list[Node | None] = await self._ask(
            lambda session: [self._server.tree.get(path) for path in paths]
        )
        return found

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._ask(lambda session: self._server.tree.children(path))
        return names

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        wanted = list(operations)
        results: list[Result] = await self._ask(lambda session: self._server.transact(session, wanted))
        return results

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        check_path(path)
        watch = _Watch(self, path, watcher)

        def begin(session: Session) -> Seen | None:
            session.watched.add(path)
            # Events of this path that are sent from now on arrive after this response.
            return self._server.seen(path)

        self._watches.setdefault(path, []).append(watch)
        try:
            seen = await self._ask(begin)
        except BaseException:
            watch.cancel()
            raise
        self._seen.setdefault(path, seen)
        return watch

    def forget(self, path: str, watch: _Watch) -> None:
        """Removes a watch."""
        same = self._watches.get(path, [])
        if watch in same:
            same.remove(watch)
            if not same:
                del self._watches[path]
                self._seen.pop(path, None)

    def take_event(self, connection: Connection, event: Event, seen: Seen | None) -> None:
        """An event has arrived."""
        if connection is self._connection and event.path in self._watches:
            self._answered_s = self._loop.time()
            self._seen[event.path] = seen
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        for watch in list(self._watches.get(event.path, ())):
            if watch.watcher is not None:
                watch.watcher(event)

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        if self._closed:
            return
        number = self._number
        if self._usable:
            with contextlib.suppress(StoreUnavailable):
                await self._ask(lambda session: self._server.end(number, "is closed"))
        self._closed = True
        self._connection = None
        self._drop(StoreUnavailable("this session with the simulated store is closed"))
        self._watches.clear()
