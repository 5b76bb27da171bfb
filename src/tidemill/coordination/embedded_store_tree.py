"""The tree of the embedded store, in memory: checks and applies transactions.

It does no input or output: :meth:`Tree.apply` checks and applies the changes, and returns the rows to write
and the events to deliver; :meth:`Tree.undo` reverts the latest changes when they could not be made durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.coordination.coordination_store import (
    ANY_VERSION,
    NO_OWNER,
    BadVersion,
    Create,
    Delete,
    Event,
    EventKind,
    NoChildren,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    StoreError,
    check_data,
    check_path,
    parent_of,
)


class Entry:
    """A node, with the fields that only the tree uses."""

    __slots__ = ("children", "creation_id", "data", "owner", "sequence", "version")

    def __init__(self, data: bytes, version: int, creation_id: int, owner: int, sequence: int) -> None:
        self.data = data
        self.version = version
        self.creation_id = creation_id
        self.owner = owner
        self.sequence = sequence
        """The number of children ever created here: the number of the next sequential child."""
        self.children: set[str] | None = None

    def view(self) -> Node:
        """Returns the node as the store's interface presents it."""
        return Node(self.data, self.version, self.creation_id, self.owner)


Row = tuple[str, bytes, int, int, int]
"""A persistent node: path, data, version, creation id, sequence."""


class Applied:
    """The outcome of one transaction."""

    __slots__ = ("after", "before", "events", "last_id", "results")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        """The tree's transaction id before the transaction."""
        self.results: list[Result] = []
        self.events: list[Event] = []
        self.before: list[tuple[str, Entry | None, str]] = []
        """The previous entry of each changed path, in order; with the child that was added or removed, if
        any."""
        self.after: dict[str, Row | None] = {}
        """The rows to write: the row that is now at a path, None where there is none."""


class Tree:
    """All nodes of a store, by path."""

    def __init__(self, rows: Iterable[Row] = (), last_id: int = 0) -> None:
        self.last_id = last_id
        self._entries: dict[str, Entry] = {"/": Entry(b"", 0, 0, NO_OWNER, 0)}
        for path, data, version, creation_id, sequence in rows:
            self._entries[path] = Entry(data, version, creation_id, NO_OWNER, sequence)
        for path in self._entries:
            if path == "/":
                continue
            parent = self._entries.get(parent_of(path))
            if parent is None:
                raise StoreError(f"node {path} has no parent: the store is damaged")
            if parent.children is None:
                parent.children = set()
            parent.children.add(path[path.rindex("/") + 1 :])

    def get(self, path: str) -> Node | None:
        """Returns the node at ``path``, or None."""
        entry = self._entries.get(path)
        return None if entry is None else entry.view()

    def children(self, path: str) -> list[str]:
        """Returns the names of the children of ``path``, sorted."""
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(path)
        return sorted(entry.children) if entry.children else []

    def owned_by(self, session_id: int) -> list[str]:
        """Returns the paths of a session's ephemeral nodes."""
        return [path for path, entry in self._entries.items() if entry.owner == session_id]

    def apply(self, operations: Sequence[Operation], session_id: int) -> Applied:
        """Applies all operations, or raises and applies none."""
        applied = Applied(self.last_id)
        self.last_id += 1
        try:
            for index, operation in enumerate(operations):
                if isinstance(operation, Create):
                    self._create(applied, index, operation, session_id)
                elif isinstance(operation, SetData):
                    self._set_data(applied, index, operation)
                elif isinstance(operation, Delete):
                    self._delete(applied, index, operation)
                else:
                    entry = self._expect(operation.path, operation.version, index)
                    applied.results.append(Result(operation.path, entry.version))
        except (StoreError, ValueError):
            self.undo(applied)
            raise
        return applied

    def undo(self, applied: Applied) -> None:
        """Reverts ``applied``. It must be the latest transaction that was not reverted."""
        for path, entry, child in reversed(applied.before):
            if entry is None:
                del self._entries[path]
            else:
                self._entries[path] = entry
                if child and entry.children is not None:
                    entry.children ^= {child}
        self.last_id = applied.last_id

    def _expect(self, path: str, version: int, index: int) -> Entry:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(path, index)
        if version not in (ANY_VERSION, entry.version):
            raise BadVersion(path, index, f"it is at {entry.version}, not {version}")
        return entry

    def _replace(self, applied: Applied, path: str, entry: Entry | None, child: str = "") -> None:
        """Puts ``entry`` at ``path``, and records the previous entry and the row to write."""
        applied.before.append((path, self._entries.get(path), child))
        if entry is None:
            del self._entries[path]
        else:
            self._entries[path] = entry
        if entry is None or entry.owner != NO_OWNER:
            applied.after[path] = None
        else:
            applied.after[path] = (path, entry.data, entry.version, entry.creation_id, entry.sequence)

    def _create(self, applied: Applied, index: int, operation: Create, session_id: int) -> None:
        check_data(operation.path, operation.data)
        path = operation.path
        parent_path = parent_of(path)
        parent = self._entries.get(parent_path)
        if parent is None:
            raise NoNode(parent_path, index, f"{path} cannot be created without it")
        if parent.owner != NO_OWNER:
            raise NoChildren(path, index)
        if operation.sequential:
            path = f"{path}{parent.sequence:010d}"
        check_path(path)
        if path in self._entries:
            raise NodeExists(path, index)
        owner = session_id if operation.ephemeral else NO_OWNER
        self._replace(applied, path, Entry(operation.data, 0, self.last_id, owner, 0))
        self._toggle_child(applied, parent_path, parent, path, parent.sequence + 1)
        applied.events.append(Event(EventKind.CREATED, path))
        applied.events.append(Event(EventKind.CHILDREN_CHANGED, parent_path))
        applied.results.append(Result(path, 0))

    def _toggle_child(
        self, applied: Applied, parent_path: str, parent: Entry, path: str, sequence: int
    ) -> None:
        """Adds or removes a child. All versions of the parent share the set of children."""
        child = path[path.rindex("/") + 1 :]
        if parent.children is None:
            parent.children = set()
        parent.children ^= {child}
        changed = Entry(parent.data, parent.version, parent.creation_id, parent.owner, sequence)
        changed.children = parent.children
        self._replace(applied, parent_path, changed, child)

    def _set_data(self, applied: Applied, index: int, operation: SetData) -> None:
        check_data(operation.path, operation.data)
        entry = self._expect(operation.path, operation.version, index)
        changed = Entry(operation.data, entry.version + 1, entry.creation_id, entry.owner, entry.sequence)
        changed.children = entry.children
        self._replace(applied, operation.path, changed)
        applied.events.append(Event(EventKind.DATA_CHANGED, operation.path))
        applied.results.append(Result(operation.path, changed.version))

    def _delete(self, applied: Applied, index: int, operation: Delete) -> None:
        path = operation.path
        entry = self._expect(path, operation.version, index)
        if path == "/":
            raise ValueError("the root / cannot be deleted")
        if entry.children:
            raise NotEmpty(path, index, f"{len(entry.children)} of them")
        self._replace(applied, path, None)
        parent_path = parent_of(path)
        parent = self._entries[parent_path]
        self._toggle_child(applied, parent_path, parent, path, parent.sequence)
        applied.events.append(Event(EventKind.DELETED, path))
        applied.events.append(Event(EventKind.CHILDREN_CHANGED, parent_path))
        applied.results.append(Result(path, -1))
