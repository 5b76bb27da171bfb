"""The coordination store of one broker without ZooKeeper: a tree in memory, made durable by SQLite.

The file (``coordination.db``) is a SQLite database in WAL mode, synced at each commit::

    node   path TEXT primary key, data BLOB, version, creation_id, sequence     every node that stays
    state  name TEXT primary key, value                                         last_id

``application_id`` says that the file is ours, ``user_version`` which layout it has. Ephemeral nodes are
never written: they end with the process, however it ends. ``last_id`` is written with every transaction,
theirs too, so that no creation id is given twice.

Reads are answered from memory. Commits run in one thread, those that wait together as one, so that the event
loop never waits for the disk; what is not yet durable is not shown to readers, and is taken back when the
disk refuses it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tidemill.coordination.port import (
    Delete,
    Event,
    Node,
    Operation,
    Result,
    SessionListener,
    SessionState,
    Store,
    StoreError,
    StoreUnavailable,
    Watch,
    Watcher,
)
from tidemill.coordination.tree import Applied, Row, Tree

FILE_NAME = "coordination.db"
APPLICATION_ID = 0x5469646D
"""``Tidm``."""
LAYOUT_VERSION = 1

logger = logging.getLogger(__name__)


class Database:
    """The SQLite file. Opened and closed by anybody, used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """Opens or makes the file at ``path``; StoreError with the next step when that cannot be."""
        self.path = path
        is_new = not os.path.exists(path)
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise explain(path, error) from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._connection.close()
            raise explain(path, error) from None
        except StoreError:
            self._connection.close()
            raise
        if is_new:
            sync_directory(os.path.dirname(path) or ".")

    def _prepare(self) -> None:
        execute = self._connection.execute
        # Before the first access: the lock is then held until the file is closed, and no .db-shm is needed.
        execute("PRAGMA locking_mode=EXCLUSIVE")
        (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application_id,) = execute("PRAGMA application_id").fetchone()
        (layout,) = execute("PRAGMA user_version").fetchone()
        if tables and application_id != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a SQLite file of another program. Name another directory in log.dirs."
            )
        if tables and layout != LAYOUT_VERSION:
            raise StoreError(
                f"{self.path} has layout {layout}, this version reads {LAYOUT_VERSION}. Start the version "
                "that wrote it, or name another directory in log.dirs."
            )
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        if tables:
            return
        execute("BEGIN IMMEDIATE")
        execute(f"PRAGMA application_id={APPLICATION_ID}")
        execute(f"PRAGMA user_version={LAYOUT_VERSION}")
        execute(
            "CREATE TABLE node (path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, "
            "creation_id INTEGER NOT NULL, sequence INTEGER NOT NULL) WITHOUT ROWID"
        )
        execute("CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")
        execute("INSERT INTO state VALUES ('last_id', 0)")
        execute("COMMIT")

    def load(self) -> Tree:
        """Everything that is stored."""
        try:
            rows = self._connection.execute("SELECT path, data, version, creation_id, sequence FROM node")
            (last_id,) = self._connection.execute("SELECT value FROM state WHERE name = 'last_id'").fetchone()
            return Tree(rows, last_id)
        except (sqlite3.Error, TypeError) as error:
            raise explain(self.path, error) from None

    def commit(self, rows: dict[str, Row | None], last_id: int) -> None:
        """Writes the rows (None: there is none at this path) and returns once they are on the disk."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "DELETE FROM node WHERE path = ?", [(path,) for path, row in rows.items() if row is None]
            )
            connection.executemany(
                "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?)",
                [row for row in rows.values() if row is not None],
            )
            connection.execute("UPDATE state SET value = ? WHERE name = 'last_id'", (last_id,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise explain(self.path, error) from None

    def close(self) -> None:
        """Folds the log into the file and lets go of it."""
        self._connection.close()


def sync_directory(path: str) -> None:
    """Returns once the names in ``path`` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(path: str, error: Exception) -> StoreError:
    """One line that says what is wrong with the file, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path} is in use by another process. Stop that broker, or name another directory in log.dirs."
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(
            f"{path} cannot be opened. Make its directory, and give this user the right to write."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(f"{path} cannot be written. Give this user the right to write to it.")
    if code == sqlite3.SQLITE_FULL:
        return StoreError(f"{path} could not be written: the disk is full. Make room.")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"{path} could not be read or written: {error}. Check the disk.")
    return StoreError(
        f"{path} is damaged ({error}). Restore it from a backup; or move it away, and make the topics known "
        f"again with 'tidemill log import --without-settings {os.path.dirname(path)}' "
        "(all of log.dirs): their settings, and those of brokers, are lost then."
    )


database_class: type[Database] = Database
"""What opens the file; tests put one in its place whose disk is full."""


class _Pending:
    """A transaction on its way to the disk."""

    __slots__ = ("applied", "future")

    def __init__(self, applied: Applied, future: asyncio.Future[None]) -> None:
        self.applied = applied
        self.future = future


class Engine:
    """The tree, its file, and the sessions that share them."""

    def __init__(self, path: str) -> None:
        self._database = database_class(path)
        try:
            self.tree = self._database.load()
        except StoreError:
            self._database.close()
            raise
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tidemill-store")
        self._waiting: list[_Pending] = []
        self._committing: list[_Pending] = []
        self._sessions: list[EmbeddedStore] = []
        self._last_session_id = 0
        self._closed = False

    def next_session_id(self) -> int:
        """An id that no other session of this engine has."""
        self._last_session_id += 1
        return self._last_session_id

    def join(self, session: EmbeddedStore) -> None:
        """Takes a session in: it gets events from now on."""
        self._sessions.append(session)

    async def leave(self, session: EmbeddedStore) -> None:
        """Forgets a session; the last one closes the file."""
        self._sessions.remove(session)
        if self._sessions or self._closed:
            return
        self._closed = True
        await self.settle()
        await asyncio.get_running_loop().run_in_executor(self._worker, self._database.close)
        self._worker.shutdown(wait=True)

    async def settle(self) -> None:
        """Returns when nothing is on its way to the disk."""
        while self._committing:
            last = self._waiting[-1] if self._waiting else self._committing[-1]
            await asyncio.wait((last.future,))

    async def transact(self, operations: Sequence[Operation], session_id: int) -> list[Result]:
        """Applies the operations and returns when they are durable."""
        if self._closed:
            raise StoreUnavailable(f"{self._database.path} is closed")
        applied = self.tree.apply(operations, session_id)
        loop = asyncio.get_running_loop()
        pending = _Pending(applied, loop.create_future())
        self._waiting.append(pending)
        if not self._committing:
            self._start_commit(loop)
        # Shielded: the change happens, and readers wait for it, also when its caller is cancelled.
        await asyncio.shield(pending.future)
        return applied.results

    def _start_commit(self, loop: asyncio.AbstractEventLoop) -> None:
        self._committing, self._waiting = self._waiting, []
        rows: dict[str, Row | None] = {}
        for pending in self._committing:
            rows.update(pending.applied.after)
        last_id = self._committing[-1].applied.last_id + 1
        work = self._worker.submit(self._database.commit, rows, last_id)
        work.add_done_callback(lambda done: loop.call_soon_threadsafe(self._committed, loop, done))

    def _committed(self, loop: asyncio.AbstractEventLoop, done: Future[None]) -> None:
        error = done.exception()
        committed, self._committing = self._committing, []
        if error is not None:
            self._take_back(committed + self._waiting, error)
            return
        for pending in committed:
            self._deliver(pending.applied.events)
            if not pending.future.done():
                pending.future.set_result(None)
        if self._waiting:
            self._start_commit(loop)

    def _take_back(self, failed: list[_Pending], error: BaseException) -> None:
        """Undoes what did not reach the disk, and what was asked after it and may rest on it."""
        self._waiting = []
        for pending in reversed(failed):
            self.tree.undo(pending.applied)
        for pending in failed:
            if not pending.future.done():
                pending.future.set_exception(StoreError(str(error)))
                pending.future.exception()  # A caller that was cancelled does not fetch it.

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            for session in list(self._sessions):
                session.deliver(event)


class _EmbeddedWatch(Watch):
    def __init__(self, watches: dict[str, list[_EmbeddedWatch]], path: str, watcher: Watcher) -> None:
        self._watches = watches
        self._path = path
        self.watcher: Watcher | None = watcher
        watches.setdefault(path, []).append(self)

    def cancel(self) -> None:
        if self.watcher is None:
            return
        self.watcher = None
        same_path = self._watches[self._path]
        same_path.remove(self)
        if not same_path:
            del self._watches[self._path]


class EmbeddedStore(Store):
    """A session with the embedded store: :meth:`open` makes the first, :meth:`join` others beside it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session_id = engine.next_session_id()
        self._watches: dict[str, list[_EmbeddedWatch]] = {}
        self._listeners: list[SessionListener] = []
        self._closed = False
        engine.join(self)

    @classmethod
    def open(cls, path: str) -> EmbeddedStore:
        """Opens the file at ``path``, or makes it; takes a few milliseconds, and blocks for them.

        Raises StoreError, with one line that says what to do, when the file is in use, damaged or out of
        reach.
        """
        return cls(Engine(path))

    def join(self) -> EmbeddedStore:
        """Another session on the same tree."""
        self._check_open()
        return EmbeddedStore(self._engine)

    @property
    def session_id(self) -> int:
        return self._session_id

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("this session with the coordination store is closed")

    async def get(self, path: str) -> Node | None:
        self._check_open()
        await self._engine.settle()
        return self._engine.tree.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._check_open()
        await self._engine.settle()
        get = self._engine.tree.get
        return [get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        self._check_open()
        await self._engine.settle()
        return self._engine.tree.children(path)

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        self._check_open()
        return await self._engine.transact(operations, self._session_id)

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self._check_open()
        await self._engine.settle()
        return _EmbeddedWatch(self._watches, path, watcher)

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def deliver(self, event: Event) -> None:
        """Hands an event to this session's watchers of its path."""
        for watch in list(self._watches.get(event.path, ())):
            if watch.watcher is None:
                continue
            try:
                watch.watcher(event)
            except Exception:
                logger.exception("A watcher of %s failed on the event %r.", event.path, event.kind.value)

    def _tell(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:
                logger.exception("A session listener failed on the state %r.", state.value)

    async def expire(self) -> None:
        """Ends the session as a server would that heard nothing of it, and begins a new one."""
        self._check_open()
        await self._drop_ephemerals()
        self._session_id = self._engine.next_session_id()
        self._tell(SessionState.EXPIRED)
        self._tell(SessionState.CONNECTED)

    async def _drop_ephemerals(self) -> None:
        owned = self._engine.tree.owned_by(self._session_id)
        if owned:
            await self._engine.transact([Delete(path) for path in owned], self._session_id)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        try:
            await self._drop_ephemerals()
        finally:
            await self._engine.leave(self)
