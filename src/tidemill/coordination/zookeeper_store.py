"""The coordination store of a cluster: one session with ZooKeeper 3.6 or later.

Requests are sent in the order of the calls, with at most ``in_flight_max`` outstanding; ZooKeeper responds in
that order, and sends the events of a change before any response that follows the change.

Watches persist until the connection breaks. After a reconnect, no call completes and no event is delivered
until every watch is set again and its node was checked: differences from the last known state are reported,
once per kind, right after CONNECTED. Only changes that were undone in between are missed (a node that was
created and deleted).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as zk
from kazoo.protocol import serialization as frames
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from tidemill.coordination.coordination_store import (
    Check,
    Create,
    Delete,
    Node,
    Operation,
    Result,
    SessionListener,
    SetData,
    Store,
    StoreError,
    StoreUnavailable,
    Watch,
    Watcher,
    check_data,
    check_path,
)
from tidemill.coordination.zookeeper_calls import (
    CONNECTED,
    EVENT,
    EXPIRED,
    FAILURE,
    REFUSED,
    REPLY,
    SUSPENDED,
    Calls,
    Multi,
    MultiRead,
    Notice,
    acl_frame,
    check_frame,
    create_frame,
    delete_frame,
    read_frame,
    set_frame,
)
from tidemill.coordination.zookeeper_errors import (
    call_error,
    checked,
    explain,
    is_loss,
    lost_error,
    read_error,
)
from tidemill.coordination.zookeeper_link import REQUEST_BYTES_MAX, Link
from tidemill.coordination.zookeeper_session import CLOSE, CONNECT, EXPIRE, LOSE, RESUME, Session
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_watches import Watches

logger = logging.getLogger("tidemill.zookeeper")

CONNECTION_LOST = "the connection was lost"
TRY_AGAIN_S = 0.05
READS_MAX = 100
"""Nodes per request: a response stays far below a connection's limit, even if each node has the largest
size."""
OPEN_PATHS = frozenset({"/consumers"})
SENSITIVE_PATHS = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Below these paths only the creator may read, where ACLs are set; Kafka's rule (``ZkData.scala``)."""

_EPHEMERAL, _SEQUENTIAL = 1, 2
_READABLE_ACL = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


class ZooKeeperStore(Store):
    """A session with ZooKeeper: :meth:`open` starts it."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._link = Link(settings, self._loop, self._handle_notice)
        self._calls = Calls(self._loop, self._link.put, self._link.send, settings.in_flight_max)
        self._session = Session()
        self._watches = Watches(self._calls, self._session, self._full)
        self._session_id = 0
        self._trouble = "no connection yet"
        self._refused = ""
        self._opening: asyncio.Future[None] | None = None
        self._listeners: list[SessionListener] = []
        self._acl_frames: dict[int, bytes] = {}

    @classmethod
    async def open(cls, settings: ZooKeeperSettings) -> ZooKeeperStore:
        """Connects, and creates the chroot if it is missing.

        Raises StoreError, whose one line names the next step, when this takes longer than
        ``connection_timeout_ms``.
        """
        store = cls(settings)
        store._link.start()
        try:
            async with asyncio.timeout(settings.connection_timeout_ms / 1000):
                await store._begin_session()
        except TimeoutError:
            await store.close()
            raise StoreUnavailable(store._no_response_text()) from None
        except BaseException:
            await store.close()
            raise
        return store

    async def _begin_session(self) -> None:
        while not self._session.is_usable:
            if not self._session.is_connected:
                self._opening = self._loop.create_future()
                await self._opening
            try:
                await self._make_chroot()
            except StoreUnavailable:
                # The connection was opened and closed again: usually because the login was refused.
                if self._refused:
                    raise StoreUnavailable(self._refused) from None
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            except zk.ZookeeperError as error:
                raise StoreError(f"ZooKeeper at {self._settings.hosts}: {explain(error)}") from None
            # The connection may be lost after the last response.
            if self._session.is_connected:
                self._resume()

    def _no_response_text(self) -> str:
        return (
            f"ZooKeeper at {self._settings.hosts} does not respond: {self._trouble}. Start it, or correct "
            "zookeeper.connect."
        )

    async def _make_chroot(self) -> None:
        """Checks that the server accepts calls, and creates the missing nodes of the chroot."""
        chroot = self._settings.chroot
        parts = chroot.split("/")[1:] if chroot else []
        if await self._calls.submit(frames.Exists(chroot or "/", None)) is None:
            for depth in range(1, len(parts) + 1):
                path = "/" + "/".join(parts[:depth])
                try:
                    await self._calls.submit(frames.Create(path, b"", self._acl(path), 0))
                except zk.NodeExistsError:
                    continue
                except zk.ZookeeperError as error:
                    raise StoreError(
                        f"zookeeper.connect names {path}, which does not exist and could not be created: "
                        f"{explain(error)}"
                    ) from None

    # Calls

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._link.session_timeout_ms / 1000

    async def get(self, path: str) -> Node | None:
        (node,) = await self.get_many([path])
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._check_usable()
        for path in paths:
            check_path(path)
        chunks = [paths[start : start + READS_MAX] for start in range(0, len(paths), READS_MAX)]
        requests = (MultiRead(read_frame(self._full(path)) for path in chunk) for chunk in chunks)
        futures = [self._calls.submit(request) for request in requests]
        nodes: list[Node | None] = []
        try:
            for chunk, results in zip(chunks, await asyncio.gather(*futures), strict=True):
                nodes += [_node(path, result) for path, result in zip(chunk, results, strict=True)]
        except zk.ZookeeperError as error:
            raise call_error(error) from None
        return nodes

    async def children(self, path: str) -> list[str]:
        self._check_usable()
        check_path(path)
        try:
            names = await self._calls.submit(frames.GetChildren(self._full(path), None))
        except zk.ZookeeperError as error:
            raise read_error(path, error) from None
        return sorted(names)

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        self._check_usable()
        if not operations:
            return []
        request = Multi([self._frame(operation) for operation in operations])
        if len(request.body) > REQUEST_BYTES_MAX - 8:
            raise ValueError(
                f"a transaction of {len(operations)} operations ({operations[0].path} and others) has "
                f"{len(request.body)} bytes; ZooKeeper takes at most {REQUEST_BYTES_MAX - 8} "
                "(jute.maxbuffer). Split it into smaller transactions."
            )
        try:
            outcomes = await self._calls.submit(request)
        except zk.ZookeeperError as error:
            raise call_error(error) from None
        start = len(self._settings.chroot)
        return [
            _result(operation, outcome, start)
            for operation, outcome in zip(operations, checked(operations, outcomes), strict=True)
        ]

    def _frame(self, operation: Operation) -> bytes:
        path = operation.path
        full = f"{self._settings.chroot}{path}"
        if isinstance(operation, Create):
            # The number of a sequential node may be its entire name.
            check_path(f"{path}0" if operation.sequential else path)
            check_data(path, operation.data)
            flags = (_EPHEMERAL if operation.ephemeral else 0) | (_SEQUENTIAL if operation.sequential else 0)
            return create_frame(full, operation.data, self._acl_frame(path), flags)
        check_path(path)
        if isinstance(operation, SetData):
            check_data(path, operation.data)
            return set_frame(self._full(path), operation.data, operation.version)
        if isinstance(operation, Delete):
            if path == "/":
                raise ValueError("the root / cannot be deleted")
            return delete_frame(full, operation.version)
        return check_frame(self._full(path), operation.version)

    def _acl(self, path: str) -> Any:
        if not self._settings.set_acl or path in OPEN_PATHS:
            return OPEN_ACL_UNSAFE
        if path.startswith(SENSITIVE_PATHS):
            return CREATOR_ALL_ACL
        return _READABLE_ACL

    def _acl_frame(self, path: str) -> bytes:
        acl = self._acl(path)
        known = self._acl_frames.get(id(acl))
        if known is None:  # There are only three lists, and they are constants.
            known = self._acl_frames[id(acl)] = acl_frame(acl)
        return known

    def _full(self, path: str) -> str:
        chroot = self._settings.chroot
        return f"{chroot}{path}" if path != "/" else chroot or "/"

    def _own(self, full: str) -> str:
        return full[len(self._settings.chroot) :] or "/"

    def _check_usable(self) -> None:
        if self._session.is_closed:
            raise StoreUnavailable("this session with ZooKeeper is closed")
        if not self._session.is_usable:
            raise StoreUnavailable(
                f"ZooKeeper at {self._settings.hosts} does not respond ({self._trouble}); it is retried"
            )

    # Notices from kazoo's thread, on the event loop.

    def _handle_notice(self, notice: Notice) -> None:
        kind, subject, value = notice
        if kind == REPLY:
            self._calls.completed(subject, value)
        elif kind == FAILURE:
            # The caller translates errors of a node.
            is_plain = isinstance(value, zk.ZookeeperError) and not is_loss(value)
            self._calls.failed(subject, value if is_plain else call_error(value))
        elif self._session.is_closed:
            return
        elif kind == EVENT:
            self._watches.event(self._own(subject), *value)
        elif kind == CONNECTED:
            self._session_started(subject)
        elif kind in (SUSPENDED, EXPIRED):
            # Fails all calls, those in flight and those that wait.
            self._calls.drop(lambda: lost_error(kind == EXPIRED))
            self._change_state(EXPIRE if kind == EXPIRED else LOSE)
        else:
            self._report_trouble(subject, is_final=kind == REFUSED)

    def _session_started(self, session_id: int) -> None:
        self._session.handle(CONNECT)
        self._session_id = session_id
        self._finish_opening(None)
        if self._session.reported_state is not None:
            self._watches.restore()
            # Its response follows all of those, and a refused login is reported before it.
            self._calls.submit_internal(frames.Exists("/", None), lambda _: self._resume())

    def _resume(self) -> None:
        self._trouble = CONNECTION_LOST
        self._change_state(RESUME)
        self._watches.deliver_held()

    def _report_trouble(self, text: str, *, is_final: bool) -> None:
        if text != self._trouble and not is_final:
            logger.warning("No connection to ZooKeeper: %s. It is retried.", text)
        self._trouble = text
        if is_final:
            self._refused = (
                f"ZooKeeper at {text}. Correct tidemill.zookeeper.sasl.* or tidemill.zookeeper.digest."
            )
            logger.error("%s", self._refused)
            self._finish_opening(StoreUnavailable(self._refused))

    def _finish_opening(self, error: StoreError | None) -> None:
        opening, self._opening = self._opening, None
        if opening is None or opening.done():
            return
        if error is None:
            opening.set_result(None)
        else:
            opening.set_exception(error)

    def _change_state(self, event: int) -> None:
        """Changes the state, and notifies the listeners of a state that they do not know."""
        before = self._session.reported_state
        self._session.handle(event)
        state = self._session.reported_state
        if before is None or state is None or state is before:
            return
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:
                logger.exception("A session listener failed on the state %r.", state.value)

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self._check_usable()
        check_path(path)
        try:
            return await self._watches.add(path, watcher)
        except zk.ZookeeperError as error:
            raise read_error(path, error) from None

    # End

    async def close(self) -> None:
        if self._session.is_closed:
            return
        self._session.handle(CLOSE)
        self._watches.clear()
        self._calls.drop(lambda: StoreUnavailable("this session with ZooKeeper was closed"))
        await asyncio.shield(self._loop.run_in_executor(None, self._link.stop))


def _result(operation: Operation, outcome: Any, start: int) -> Result:
    """The result of an operation; a created path without the chroot begins at ``start``."""
    if isinstance(operation, Create):
        return Result(outcome[start:] if operation.sequential else operation.path, 0)
    if isinstance(operation, SetData):
        return Result(operation.path, outcome.version)
    return Result(operation.path, operation.version if isinstance(operation, Check) else -1)


def _node(path: str, result: Any) -> Node | None:
    if isinstance(result, zk.NoNodeError):
        return None
    if isinstance(result, zk.ZookeeperError):
        raise read_error(path, result)
    data, stat = result
    return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner)
