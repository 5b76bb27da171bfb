"""A coordination store with ZooKeeper's protocol: sessions, nodes, watches. No I/O.

It implements the features that brokers and ZooKeeper's clients use: sessions with timeouts, ephemeral and
sequential nodes, transactions, one-shot and persistent watches. It does not implement access lists (they are
accepted and dropped), containers, nodes with a time to live, quotas, SASL. Such requests get UNIMPLEMENTED.

The frames are in :mod:`tidemill.testing.store_frames`.

Source: ``DataTree.java`` and ``FinalRequestProcessor.java`` of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidemill.coordination.coordination_store import (
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
    Operation,
    OperationError,
    Result,
    SetData,
    check_path,
    parent_of,
)
from tidemill.coordination.embedded_store_tree import Tree
from tidemill.testing.store_frames import (
    CONNECTED_STATE,
    EVENT,
    INT32,
    MULTI,
    MULTI_END,
    NOTIFICATION_XID,
    REPLY,
    STAT,
    BadFrame,
    Code,
    Op,
    Reader,
    Refused,
    buffer_bytes,
    text_bytes,
)

SESSION_MS_LEAST: Final = 200
SESSION_MS_MOST: Final = 60_000
OPERATIONS_MAX: Final = 100_000
"""Largest number of operations in a transaction; a frame has no space for more."""

_CODES: Final[dict[type[OperationError], Code]] = {
    NoNode: Code.NO_NODE,
    BadVersion: Code.BAD_VERSION,
    NoChildren: Code.NO_CHILDREN_FOR_EPHEMERALS,
    NodeExists: Code.NODE_EXISTS,
    NotEmpty: Code.NOT_EMPTY,
}
_KINDS: Final = {
    EventKind.CREATED: 1,
    EventKind.DELETED: 2,
    EventKind.DATA_CHANGED: 3,
    EventKind.CHILDREN_CHANGED: 4,
}
_VERSION_POSITION: Final = 4 * 8
"""Offset after the two transaction ids and the two times."""
_LENGTH_POSITION: Final = _VERSION_POSITION + 3 * 4 + 8
"""Offset after the three versions and the owner."""
_EPHEMERAL, _SEQUENTIAL = 1, 2
_RECURSIVE = 1
_CHILD_WATCHES, _DATA_WATCHES = 1, 2
_OPEN_ACL: Final = struct.pack(">ii", 1, 31) + b"\0\0\0\x05world" + b"\0\0\0\x06anyone"


class Watches:
    """The watches of one connection; they end with it."""

    def __init__(self) -> None:
        self.data: set[str] = set()
        """Paths with a one-shot watch of the data of a node, its creation and its deletion."""
        self.children: set[str] = set()
        """Paths with a one-shot watch of the children of a node and its deletion."""
        self.persistent: set[str] = set()
        self.recursive: set[str] = set()

    def trigger(self, event: Event) -> bool:
        """Returns whether an event triggers a watch of the connection; removes triggered one-shot watches."""
        path, kind = event.path, event.kind
        is_triggered = path in self.persistent
        if kind is not EventKind.CHILDREN_CHANGED:
            is_triggered = is_triggered or any(path in self.recursive for path in _with_parents(path))
            if path in self.data:
                self.data.discard(path)
                is_triggered = True
        if kind in (EventKind.CHILDREN_CHANGED, EventKind.DELETED) and path in self.children:
            self.children.discard(path)
            is_triggered = True
        return is_triggered

    def remove(self, path: str, kind: int) -> bool:
        """Removes watches of a path: 1 of its children, 2 of its data, 3 all; False when there are none."""
        sets = [self.data] if kind == _DATA_WATCHES else [self.children] if kind == _CHILD_WATCHES else []
        found = False
        for paths in sets or (self.data, self.children, self.persistent, self.recursive):
            found = found or path in paths
            paths.discard(path)
        return found


def _with_parents(path: str) -> Iterator[str]:
    yield path
    while path != "/":
        path = parent_of(path)
        yield path


class NodeStat:
    """The part of a node's stat that the tree does not store."""

    __slots__ = ("changed_at_ms", "changed_in", "children_changed_in", "children_version", "made_at_ms")

    def __init__(self, transaction: int, now_ms: int) -> None:
        self.changed_in = transaction
        self.made_at_ms = now_ms
        self.changed_at_ms = now_ms
        self.children_version = 0
        self.children_changed_in = transaction


class Session:
    """A client's session; it outlives its connection."""

    def __init__(self, session_id: int, timeout_ms: int) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.watches = Watches()
        self.send: Callable[[bytes], None] | None = None
        """Sends a frame over its connection, if it has one."""


class StoreCore:
    """The tree and its sessions. :meth:`request` returns the response to a frame; ``now_ms`` is wall time."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.sessions: dict[int, Session] = {}
        self._stats: dict[str, NodeStat] = {"/": NodeStat(0, 0)}
        self._next_session = 0x7469_6400_0000_0001

    @property
    def transaction(self) -> int:
        """The id of the last transaction: ZooKeeper's zxid."""
        return self.tree.last_id

    # Sessions

    def open_session(self, timeout_ms: int) -> Session:
        """Opens a session. Its timeout is limited to the bounds."""
        timeout_ms = min(max(timeout_ms, SESSION_MS_LEAST), SESSION_MS_MOST)
        session = Session(self._next_session, timeout_ms)
        self._next_session += 1
        self.sessions[session.session_id] = session
        return session

    def end_session(self, session: Session, now_ms: int) -> None:
        """Ends a session, and deletes its ephemeral nodes."""
        if self.sessions.pop(session.session_id, None) is None:
            return
        session.watches = Watches()
        owned = self.tree.owned_by(session.session_id)
        if owned:
            self._apply([Delete(path) for path in owned], session, now_ms)

    # Requests

    def request(self, session: Session, frame: bytes, now_ms: int) -> bytes:
        """Returns the response to a request. Raises BadFrame for an invalid one."""
        reader = Reader(frame)
        xid, number = reader.int32(), reader.int32()
        try:
            body = self._execute(session, number, reader, now_ms)
        except Refused as refusal:
            return REPLY.pack(xid, self.transaction, refusal.code)
        return REPLY.pack(xid, self.transaction, Code.OK) + body

    def _execute(self, session: Session, number: int, reader: Reader, now_ms: int) -> bytes:
        if number in (Op.CREATE, Op.CREATE2, Op.DELETE, Op.SET_DATA, Op.MULTI):
            return self._write(session, Op(number), reader, now_ms)
        if number in (Op.PING, Op.AUTH):
            return b""
        if number == Op.SYNC:
            return text_bytes(reader.text())
        if number == Op.CLOSE_SESSION:
            self.end_session(session, now_ms)
            return b""
        if number == Op.MULTI_READ:
            return self._read_many(session, reader)
        if number in (Op.SET_WATCHES, Op.SET_WATCHES2):
            self._restore_watches(session, reader, with_persistent=number == Op.SET_WATCHES2)
            return b""
        if number in (Op.ADD_WATCH, Op.REMOVE_WATCHES, Op.CHECK_WATCHES):
            return self._change_watch(session, number, reader)
        return self._read(session, number, reader)

    def _read(self, session: Session, number: int, reader: Reader) -> bytes:
        if number not in (Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.GET_ACL):
            raise Refused(Code.UNIMPLEMENTED)
        path = _checked(reader.text())
        watches = number != Op.GET_ACL and reader.boolean()
        node = self.tree.get(path)
        if node is None:
            if number == Op.EXISTS and watches:
                session.watches.data.add(path)
            raise Refused(Code.NO_NODE)
        if watches:
            has_children = number in (Op.GET_CHILDREN, Op.GET_CHILDREN2)
            (session.watches.children if has_children else session.watches.data).add(path)
        stat = self._stat(path)
        if number == Op.EXISTS:
            return stat
        if number == Op.GET_DATA:
            return buffer_bytes(node.data) + stat
        if number == Op.GET_ACL:
            return _OPEN_ACL + stat
        names = self.tree.children(path)
        listed = INT32.pack(len(names)) + b"".join(map(text_bytes, names))
        return listed + stat if number == Op.GET_CHILDREN2 else listed

    def _stat(self, path: str) -> bytes:
        node = self.tree.get(path)
        if node is None:
            raise Refused(Code.NO_NODE)
        stat = self._stats[path]
        return STAT.pack(
            node.creation_id,
            stat.changed_in,
            stat.made_at_ms,
            stat.changed_at_ms,
            node.version,
            stat.children_version,
            0,
            node.owner,
            len(node.data),
            len(self.tree.children(path)),
            stat.children_changed_in,
        )

    def _read_many(self, session: Session, reader: Reader) -> bytes:
        parts = []
        for number in _operations(reader):
            try:
                body = self._read(session, number, reader)
            except Refused as refusal:
                parts.append(_error_part(refusal.code))
            else:
                parts.append(MULTI.pack(number, False, Code.OK) + body)
        return b"".join((*parts, MULTI_END))

    # Changes

    def _write(self, session: Session, op: Op, reader: Reader, now_ms: int) -> bytes:
        if op is Op.MULTI:
            return self._transact(session, reader, now_ms)
        operation = _operation(op, reader)
        try:
            (result,) = self._apply([operation], session, now_ms)
        except OperationError as error:
            raise Refused(_code_of(error)) from None
        return self._written(op, operation, result)

    def _transact(self, session: Session, reader: Reader, now_ms: int) -> bytes:
        numbers: list[int] = []
        operations: list[Operation] = []
        for number in _operations(reader):
            numbers.append(number)
            operations.append(_operation(number, reader))
        try:
            results = self._apply(operations, session, now_ms)
        except OperationError as error:
            codes = [Code.OK] * error.index + [_code_of(error)]
            codes += [Code.RUNTIME_INCONSISTENCY] * (len(operations) - len(codes))
            return b"".join((*map(_error_part, codes), MULTI_END))
        parts = [
            MULTI.pack(number, False, Code.OK) + self._written(number, operation, result)
            for number, operation, result in zip(numbers, operations, results, strict=True)
        ]
        return b"".join((*parts, MULTI_END))

    def _written(self, number: int, operation: Operation, result: Result) -> bytes:
        """Returns the response to one change.

        Version and length are those after the change. The rest of the stat is the state after the
        transaction; it is empty for a node that a later operation removed.
        """
        if not isinstance(operation, Create | SetData):
            return b""
        stat = bytearray(self._stat(result.path) if self.tree.get(result.path) is not None else STAT.size)
        INT32.pack_into(stat, _VERSION_POSITION, result.version)
        INT32.pack_into(stat, _LENGTH_POSITION, len(operation.data))
        if number == Op.SET_DATA:
            return bytes(stat)
        return text_bytes(result.path) + (bytes(stat) if number == Op.CREATE2 else b"")

    def _apply(self, operations: Sequence[Operation], session: Session, now_ms: int) -> list[Result]:
        """Applies changes, and triggers watches. Raises OperationError, or Refused for invalid arguments."""
        try:
            applied = self.tree.apply(operations, session.session_id)
        except ValueError:
            raise Refused(Code.BAD_ARGUMENTS) from None
        for event in applied.events:
            self._update_stats(event, now_ms)
        for event in applied.events:
            self._trigger_watches(event)
        return applied.results

    def _update_stats(self, event: Event, now_ms: int) -> None:
        if event.kind is EventKind.CREATED:
            self._stats[event.path] = NodeStat(self.transaction, now_ms)
        elif event.kind is EventKind.DELETED:
            self._stats.pop(event.path, None)
        elif (stat := self._stats.get(event.path)) is not None:
            if event.kind is EventKind.DATA_CHANGED:
                stat.changed_in, stat.changed_at_ms = self.transaction, now_ms
            else:
                stat.children_version += 1
                stat.children_changed_in = self.transaction

    # Watches

    def _trigger_watches(self, event: Event) -> None:
        for session in self.sessions.values():
            if session.watches.trigger(event):
                self._notify(session, event)

    def _notify(self, session: Session, event: Event) -> None:
        if session.send is not None:
            head = EVENT.pack(
                NOTIFICATION_XID, self.transaction, Code.OK, _KINDS[event.kind], CONNECTED_STATE
            )
            session.send(head + text_bytes(event.path))

    def _change_watch(self, session: Session, number: int, reader: Reader) -> bytes:
        path = _checked(reader.text())
        argument = reader.int32()
        watches = session.watches
        if number == Op.ADD_WATCH:
            (watches.recursive if argument == _RECURSIVE else watches.persistent).add(path)
            return INT32.pack(Code.OK)
        if number == Op.REMOVE_WATCHES:
            if not watches.remove(path, argument):
                raise Refused(Code.NO_WATCHER)
        elif path not in watches.data | watches.children | watches.persistent | watches.recursive:
            raise Refused(Code.NO_WATCHER)
        return b""

    def _restore_watches(self, session: Session, reader: Reader, *, with_persistent: bool) -> None:
        """Sets the watches of an earlier connection again; events since then are sent at once."""
        since = reader.int64()
        data, exist, children = reader.texts(), reader.texts(), reader.texts()
        if with_persistent:
            session.watches.persistent.update(reader.texts())
            session.watches.recursive.update(reader.texts())
        for path in data:
            if path not in self._stats:
                self._notify(session, Event(EventKind.DELETED, path))
            elif self._stats[path].changed_in > since:
                self._notify(session, Event(EventKind.DATA_CHANGED, path))
            else:
                session.watches.data.add(path)
        for path in exist:
            if path in self._stats:
                self._notify(session, Event(EventKind.CREATED, path))
            else:
                session.watches.data.add(path)
        for path in children:
            if path not in self._stats:
                self._notify(session, Event(EventKind.DELETED, path))
            elif self._stats[path].children_changed_in > since:
                self._notify(session, Event(EventKind.CHILDREN_CHANGED, path))
            else:
                session.watches.children.add(path)


def _operations(reader: Reader) -> Iterator[int]:
    """Yields the numbers of a transaction's operations; the caller reads the fields of each."""
    for _ in range(OPERATIONS_MAX):
        number = reader.int32()
        is_end = reader.boolean()
        reader.int32()
        if is_end:
            return
        yield number
    raise BadFrame(f"a transaction of more than {OPERATIONS_MAX} operations")


def _operation(number: int, reader: Reader) -> Operation:
    if number in (Op.CREATE, Op.CREATE2):
        path, data = reader.text(), reader.buffer()
        reader.skip_acl()
        flags = reader.int32()
        if flags not in range(_EPHEMERAL + _SEQUENTIAL + 1):
            raise Refused(Code.UNIMPLEMENTED)
        is_sequential = bool(flags & _SEQUENTIAL)
        _checked(f"{path}0" if is_sequential else path)
        return Create(path, data, bool(flags & _EPHEMERAL), is_sequential)
    if number == Op.SET_DATA:
        return SetData(_checked(reader.text()), reader.buffer(), reader.int32())
    if number == Op.DELETE:
        return Delete(_checked(reader.text()), reader.int32())
    if number == Op.CHECK:
        return Check(_checked(reader.text()), reader.int32())
    raise Refused(Code.UNIMPLEMENTED)


def _checked(path: str) -> str:
    try:
        check_path(path)
    except ValueError:
        raise Refused(Code.BAD_ARGUMENTS) from None
    return path


def _code_of(error: OperationError) -> Code:
    return _CODES.get(type(error), Code.RUNTIME_INCONSISTENCY)


def _error_part(code: Code) -> bytes:
    return MULTI.pack(-1, False, code) + INT32.pack(code)
