"""The interface of the coordination store: a tree of nodes that several brokers share.

Paths are absolute, with parts separated by ``/`` and no trailing slash (the root is ``/``). A node has data,
a version that counts the changes of its data from 0, and a creation id that is larger than those of all nodes
of earlier transactions. A node with an owner is ephemeral: it is deleted with its owner's session and can
have no children.

The changes of one :meth:`Store.transact` are atomic. Several calls may be in flight; those of one session
take effect in the order of the calls, and a read returns the state after all earlier calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, KafkaError, TidemillError

ANY_VERSION = -1
"""As the version of a change: any version of the node."""

NO_OWNER = 0
"""The owner of a persistent node."""

NODE_BYTES_MAX = 1024 * 1024 - 1
"""ZooKeeper refuses larger requests (``jute.maxbuffer``); all stores enforce it, so that data can be
moved."""


class Node(NamedTuple):
    """The contents of one path."""

    data: bytes
    version: int
    creation_id: int
    owner: int


class Create(NamedTuple):
    """Creates a node. A sequential one gets ten digits at the end of its name, increasing per parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replaces a node's data, if the node is still at ``version``."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Deletes a node without children, if it is still at ``version``."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing; fails its transaction unless the node exists at ``version``."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check


class Result(NamedTuple):
    """The result of one operation of a transaction.

    ``path`` is the node's full name (with the number, if it is sequential), ``version`` that of its data
    afterwards (-1 once it is deleted). A check of any version may return ANY_VERSION.
    """

    path: str
    version: int


class EventKind(Enum):
    """The kind of change of a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"


class Event(NamedTuple):
    """A change at ``path``. The event carries no data: the watcher reads the data that it needs."""

    kind: EventKind
    path: str


class SessionState(Enum):
    """The state of this process's session with the store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The store does not respond; the session and its ephemeral nodes may survive. Changes in the meantime
    are reported right after CONNECTED, once per kind and path, except those that were undone."""
    EXPIRED = "expired"
    """The session's ephemeral nodes are deleted, and events may have been missed: all state has to be read
    again. CONNECTED follows when there is a new session; watches continue in it."""


class StoreError(TidemillError):
    """The store refused a call, or could not respond."""


class OperationError(StoreError):
    """One operation of a transaction failed, so none was applied.

    ``path`` is its node, ``index`` its position in the transaction.
    """

    reason = "was refused"

    def __init__(self, path: str, index: int = 0, detail: str = "") -> None:
        self.path = path
        self.index = index
        super().__init__(f"{path} {self.reason}{': ' if detail else ''}{detail}")


class BadVersion(OperationError):
    """Another client changed the node first."""

    reason = "has another version than expected"


class NodeExists(OperationError):
    """A node exists at this path."""

    reason = "exists"


class NoNode(OperationError):
    """No node exists at this path, or (for a creation) no parent."""

    reason = "does not exist"


class NotEmpty(OperationError):
    """A node with children cannot be deleted."""

    reason = "has children"


class NoChildren(OperationError):
    """The parent is ephemeral."""

    reason = "cannot be created below an ephemeral node"


class NoAccess(OperationError):
    """The node's ACL does not permit this login to access it."""

    reason = "is not open to this login: use the login of its creator (tidemill.zookeeper.digest, or similar)"


class StoreUnavailable(StoreError, KafkaError):
    """The store does not respond, or is closed. A transaction in flight may or may not have been applied."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class SessionExpired(StoreUnavailable):
    """The call belonged to a session that has ended."""


Watcher = Callable[[Event], None]
SessionListener = Callable[[SessionState], None]


class Watch:
    """A watch that persists until it is cancelled."""

    def cancel(self) -> None:
        """Ends the watch; no event is delivered afterwards."""
        raise NotImplementedError


class Store:
    """One session with a coordination store. All methods must be called in the event loop's thread.

    Every method raises :class:`StoreUnavailable` when the store cannot be reached.
    """

    @property
    def session_id(self) -> int:
        """The value of :attr:`Node.owner` for nodes of this session; never 0."""
        raise NotImplementedError

    @property
    def session_timeout_s(self) -> float:
        """How long a session's nodes outlive a killed process; 0 when they end with the process."""
        return 0.0

    async def get(self, path: str) -> Node | None:
        """Returns the node at ``path``, or None."""
        raise NotImplementedError

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Returns the nodes at ``paths``, in order. They need not be from the same moment."""
        raise NotImplementedError

    async def children(self, path: str) -> list[str]:
        """Returns the sorted names (not paths) of the children; raises NoNode if ``path`` is missing."""
        raise NotImplementedError

    async def exists(self, path: str) -> bool:
        """Whether a node exists at ``path``."""
        return await self.get(path) is not None

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        """Applies all of ``operations``, each after those before it, or none.

        Returns once the changes are durable. Raises the :class:`OperationError` of the first operation that
        fails.
        """
        raise NotImplementedError

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """Calls ``watcher`` when the node is created or deleted, or its data or set of children changes.

        The node need not exist. Events arrive in the order of the changes, each change of a path once, after
        the change is durable and before any later read of this session completes; also for changes of this
        session, before their :meth:`transact` returns.
        """
        raise NotImplementedError

    def on_session(self, listener: SessionListener) -> None:
        """Calls ``listener`` when the session's state changes."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends the session and deletes its ephemeral nodes. Further calls do nothing."""
        raise NotImplementedError


def parent_of(path: str) -> str:
    """Returns the parent path of ``path``: ``/a`` for ``/a/b``, ``/`` for ``/a``."""
    return path[: path.rindex("/")] or "/"


_PECULIAR = re.compile(r"//|/\.|/\Z|\x00")
"""Paths without a match are valid; most others are valid as well."""


def check_path(path: str) -> None:
    """Raises ValueError unless ``path`` is a valid node path (ZooKeeper's rules)."""
    if path == "/" or (path.startswith("/") and _PECULIAR.search(path) is None):
        return
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"{path!r} is not a node path: it starts with / and does not end with one")
    for part in path[1:].split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"{path!r} is not a node path: {part!r} cannot be a part of it")
    if "\x00" in path:
        raise ValueError(f"{path!r} is not a node path: it contains a zero byte")


def check_data(path: str, data: bytes) -> None:
    """Raises ValueError when ``data`` exceeds the size limit of a node."""
    if len(data) > NODE_BYTES_MAX:
        raise ValueError(f"{path} would hold {len(data)} bytes; a node holds at most {NODE_BYTES_MAX}")


async def ensure_paths(store: Store, paths: Iterable[str]) -> None:
    """Creates the nodes at ``paths`` and all their ancestors where they are missing, without data."""
    requested: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            requested["/".join(parts[:depth])] = None
    while True:
        found = await store.get_many(list(requested))
        missing = [path for path, node in zip(requested, found, strict=True) if node is None]
        if not missing:
            return
        try:
            await store.transact([Create(path) for path in missing])
        except NodeExists:
            continue  # Another broker created one of them in the meantime.
        return


async def subtree(store: Store, path: str) -> list[str]:
    """Returns the paths of a node and its descendants, parents first; empty when it does not exist."""
    if not await store.exists(path):
        return []
    found = [path]
    for above in found:  # Grows during the iteration.
        try:
            found += [f"{above.rstrip('/')}/{name}" for name in await store.children(above)]
        except NoNode:
            continue  # Deleted in the meantime.
    return found
