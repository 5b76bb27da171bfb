"""The coordination store, as everything above sees it: a tree of nodes that several brokers share.

Paths are absolute, parts divided by ``/``, no slash at the end (the root is ``/``). A node has data, a
version that counts the changes of its data from 0, and a creation id that no node of an earlier transaction
had, larger than all of those. A node with an owner is ephemeral: it goes with its owner's session and can
have no children.

Several changes made by one :meth:`Store.transact` happen together or not at all. Calls may be in flight
together; those of one session take effect in the order in which they were made, and a read answers with
everything that was asked before it in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, KafkaError, TidemillError

ANY_VERSION = -1
"""As the version of a change: whatever the node's version is."""

NO_OWNER = 0
"""The owner of a node that stays."""

NODE_BYTES_MAX = 1024 * 1024 - 1
"""ZooKeeper refuses larger requests (``jute.maxbuffer``); all engines hold to it, so that data can move."""


class Node(NamedTuple):
    """What is stored at one path."""

    data: bytes
    version: int
    creation_id: int
    owner: int

    @property
    def is_ephemeral(self) -> bool:
        """Whether the node goes with a session."""
        return self.owner != NO_OWNER


class Create(NamedTuple):
    """Makes a node. A sequential one gets ten digits at the end of its name, ever larger under one parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replaces a node's data, if it is still at ``version``."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Removes a node without children, if it is still at ``version``."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing; fails its transaction unless the node is there, at ``version``."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check


class Result(NamedTuple):
    """What one operation of a transaction did.

    ``path`` is the node's full name (with the number, if it is sequential), ``version`` that of its data
    afterwards (-1 once it is deleted). A check of any version may have ANY_VERSION there.
    """

    path: str
    version: int


class EventKind(Enum):
    """What happened to a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"


class Event(NamedTuple):
    """Something happened at ``path``. It carries no data: the watcher reads what it needs."""

    kind: EventKind
    path: str


class SessionState(Enum):
    """How this process stands with the store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No answer at present; the session and its ephemeral nodes may live on. What happened meanwhile is told
    right after CONNECTED, once a kind and path; only what was undone meanwhile is not."""
    EXPIRED = "expired"
    """The session's ephemeral nodes are gone, and events may have been missed: what was read has to be read
    again. CONNECTED follows when there is a new session; watches live on in it."""


class StoreError(TidemillError):
    """The store refused, or could not answer."""


class OperationError(StoreError):
    """One operation of a transaction could not be done, so none was.

    ``path`` is its node, ``index`` its place in the transaction.
    """

    reason = "was refused"

    def __init__(self, path: str, index: int = 0, detail: str = "") -> None:
        self.path = path
        self.index = index
        super().__init__(f"{path} {self.reason}{': ' if detail else ''}{detail}")


class BadVersion(OperationError):
    """Somebody else changed the node first."""

    reason = "has another version than expected"


class NodeExists(OperationError):
    """There is a node at this path."""

    reason = "exists"


class NoNode(OperationError):
    """There is no node at this path, or (for a creation) no parent."""

    reason = "does not exist"


class NotEmpty(OperationError):
    """A node with children cannot be deleted."""

    reason = "has children"


class NoChildren(OperationError):
    """The parent is ephemeral."""

    reason = "cannot be made below an ephemeral node"


class NoAccess(OperationError):
    """The store keeps this node for others."""

    reason = "is not open to this login: use that of who made it (tidemill.zookeeper.digest, or its like)"


class StoreUnavailable(StoreError, KafkaError):
    """The store does not answer, or is closed. Whether a transaction in flight was done is not known."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class SessionExpired(StoreUnavailable):
    """The call was made under a session that has ended."""


Watcher = Callable[[Event], None]
SessionListener = Callable[[SessionState], None]


class Watch:
    """A watch that stays until it is cancelled."""

    def cancel(self) -> None:
        """Ends the watch; no event is delivered afterwards."""
        raise NotImplementedError


class Store:
    """One session with a coordination store. All methods belong to the event loop's thread.

    Every method raises :class:`StoreUnavailable` when the store cannot be reached.
    """

    @property
    def session_id(self) -> int:
        """What :attr:`Node.owner` is on nodes of this session; never 0."""
        raise NotImplementedError

    @property
    def session_timeout_s(self) -> float:
        """How long the nodes of a session outlive a process that was killed; 0 when they end with it."""
        return 0.0

    async def get(self, path: str) -> Node | None:
        """The node at ``path``, or None."""
        raise NotImplementedError

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at ``paths``, in that order. They need not be of one moment."""
        raise NotImplementedError

    async def children(self, path: str) -> list[str]:
        """The names (not paths) of the children, sorted; NoNode when ``path`` does not exist."""
        raise NotImplementedError

    async def exists(self, path: str) -> bool:
        """Whether there is a node at ``path``."""
        return await self.get(path) is not None

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        """Does all of ``operations``, each seeing those before it, or none.

        It returns once the changes are durable. Raises the :class:`OperationError` of the first operation
        that cannot be done.
        """
        raise NotImplementedError

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """Calls ``watcher`` for each change of the node's data, of its set of children, and of its being.

        The node need not exist. Events arrive in the order of the changes, each change of a path once,
        after the change is durable and before any later read of this session answers; also for changes of
        this session, before their :meth:`transact` returns.
        """
        raise NotImplementedError

    def on_session(self, listener: SessionListener) -> None:
        """Calls ``listener`` when the session's state changes."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends the session: its ephemeral nodes vanish. Calling it again does nothing."""
        raise NotImplementedError


def parent_of(path: str) -> str:
    """The path above ``path``: ``/a`` for ``/a/b``, ``/`` for ``/a``."""
    return path[: path.rindex("/")] or "/"


_PECULIAR = re.compile(r"//|/\.|/\Z|\x00")
"""Paths without any of these need no closer look; of the others most are good as well."""


def check_path(path: str) -> None:
    """Raises ValueError unless ``path`` can name a node (ZooKeeper's rules)."""
    if path == "/" or (path.startswith("/") and _PECULIAR.search(path) is None):
        return
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"{path!r} is no node path: it starts with / and does not end with one")
    for part in path[1:].split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"{path!r} is no node path: {part!r} cannot be a part of it")
    if "\x00" in path:
        raise ValueError(f"{path!r} is no node path: it contains a zero byte")


async def ensure_paths(store: Store, paths: Iterable[str]) -> None:
    """Makes the nodes at ``paths`` and all above them where they are missing, without data."""
    wanted: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            wanted["/".join(parts[:depth])] = None
    while True:
        found = await store.get_many(list(wanted))
        missing = [path for path, node in zip(wanted, found, strict=True) if node is None]
        if not missing:
            return
        try:
            await store.transact([Create(path) for path in missing])
        except NodeExists:
            continue  # Another broker made one of them meanwhile.
        return


async def subtree(store: Store, path: str) -> list[str]:
    """The paths of a node and of everything below it, parents first; empty when there is no such node."""
    if not await store.exists(path):
        return []
    found = [path]
    for above in found:  # Grows while it is walked.
        try:
            found += [f"{above.rstrip('/')}/{name}" for name in await store.children(above)]
        except NoNode:
            continue  # Deleted meanwhile.
    return found
