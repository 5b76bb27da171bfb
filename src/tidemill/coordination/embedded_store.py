"""The coordination store of a single broker without ZooKeeper: a tree in memory, made durable by SQLite.

The file (``coordination.db``) is a SQLite database in WAL mode, synced at each commit::

    node   path TEXT primary key, data BLOB, version, creation_id, sequence     every persistent node
    state  name TEXT primary key, value                                         last_id

``application_id`` identifies Tidemill's file, ``user_version`` its layout. Ephemeral nodes are never written:
they end with the process, however it ends. Every transaction writes ``last_id``, even one with ephemeral
nodes only, so that no creation id is used twice.

``coordination.db-last-id`` has the ``last_id`` of the latest durable commit, in 20 decimal digits. SQLite
ignores a missing WAL and the rest of a damaged one, and then opens an older state of the tree. A store with
a lower ``last_id`` than this file is therefore rejected, and stays unchanged. The file is written after each
commit without a sync: a crash may leave an older number or no number, which detects less, never a number that
the store does not have.

Reads use the tree in memory. Commits run in one thread, and waiting transactions are committed together, so
that the event loop never waits for the disk. Readers do not see changes that are not yet durable, and a
failed commit undoes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tidemill.coordination.coordination_store import (
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
from tidemill.coordination.embedded_store_tree import Applied, Row, Tree

FILE_NAME = "coordination.db"
APPLICATION_ID = 0x5469646D
"""``Tidm``."""
LAYOUT_VERSION = 1
LAST_ID_SUFFIX = "-last-id"

logger = logging.getLogger(__name__)


class Database:
    """The SQLite file. Any thread may open and close it; only one thread may use it at a time."""

    def __init__(self, path: str) -> None:
        """Opens or creates the file at ``path``; raises StoreError with the next step on failure."""
        self.path = path
        self._last_id_path = path + LAST_ID_SUFFIX
        is_new = not os.path.exists(path)
        if is_new:
            self._write_last_id(0)
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
            self._close_unchanged()
            raise
        if is_new:
            sync_path(os.path.dirname(path) or ".")

    def _prepare(self) -> None:
        execute = self._connection.execute
        # Before the first access: the lock is then held until the file is closed, and no .db-shm is needed.
        execute("PRAGMA locking_mode=EXCLUSIVE")
        (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application_id,) = execute("PRAGMA application_id").fetchone()
        (layout,) = execute("PRAGMA user_version").fetchone()
        if tables and application_id != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a SQLite file of another program. Set another directory in log.dirs."
            )
        if tables and layout != LAYOUT_VERSION:
            raise StoreError(
                f"{self.path} has layout {layout}, this version reads {LAYOUT_VERSION}. Start the version "
                "that wrote it, or set another directory in log.dirs."
            )
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        last_id = 0
        if tables:
            (last_id,) = execute("SELECT coalesce(max(value), 0) FROM state").fetchone()
        durable_id = self._read_last_id()
        if last_id < durable_id:
            raise StoreError(
                f"{self.path} lacks the changes {last_id + 1} to {durable_id}, which were durable: "
                f"{self.path}-wal is missing or damaged, or {self.path} is an older copy. Restore "
                f"{self.path} and {self.path}-wal; or remove {self._last_id_path} to start without "
                f"these changes, as with an older backup; or {how_to_recreate(self.path)}"
            )
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
        """Loads all stored nodes."""
        try:
            rows = self._connection.execute("SELECT path, data, version, creation_id, sequence FROM node")
            (last_id,) = self._connection.execute("SELECT value FROM state WHERE name = 'last_id'").fetchone()
            tree = Tree(rows, last_id)
        except (sqlite3.Error, TypeError) as error:
            raise explain(self.path, error) from None
        with contextlib.suppress(sqlite3.Error):  # A full disk may have no space for it.
            # The changes that a killed process left in the WAL: fewer depend on a second file.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return tree

    def commit(self, rows: dict[str, Row | None], last_id: int) -> None:
        """Writes the rows (None deletes the row of a path) and returns once they are durable."""
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
        self._write_last_id(last_id)

    def _read_last_id(self) -> int:
        # A file without a number was written shortly before a power failure.
        with contextlib.suppress(OSError, ValueError), open(self._last_id_path, "rb") as file:
            return int(file.read(20))
        return 0

    def _write_last_id(self, last_id: int) -> None:
        # An older number detects fewer lost changes. The changes themselves are durable.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._last_id_path, os.O_WRONLY | os.O_CREAT, 0o644)
            with open(descriptor, "wb", buffering=0) as file:  # Not truncated: no moment without a number.
                file.write(b"%020d" % last_id)

    def close(self) -> None:
        """Checkpoints the WAL into the file and closes it."""
        self._connection.close()

    def _close_unchanged(self) -> None:
        # SQLite removes the WAL when it closes the file. A damaged WAL may have the only copy of changes.
        wal = f"{self.path}-wal"
        with contextlib.suppress(FileNotFoundError):
            os.rename(wal, f"{wal}.kept")
        self._connection.close()
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{wal}.kept", wal)


def sync_path(path: str) -> None:
    """Returns once a file, or the entries of a directory, are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(path: str, error: Exception) -> StoreError:
    """Returns an error whose one line describes the problem and the next step."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path} is in use by another process. Stop that broker, or set another directory in log.dirs."
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"{path} cannot be opened. Create its directory, and grant this user write access.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(f"{path} cannot be written. Grant this user write access to it.")
    if code == sqlite3.SQLITE_FULL:
        return StoreError(f"{path} could not be written: the disk is full. Free some space.")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"{path} could not be read or written: {error}. Check the disk.")
    return StoreError(f"{path} is damaged ({error}). Restore it from a backup; or {how_to_recreate(path)}")


def how_to_recreate(path: str) -> str:
    """Describes how to create the store at ``path`` again from the data directories."""
    return (
        "move it away, and recreate the topics with 'tidemill log import --without-settings "
        f"{os.path.dirname(path)}' (all of log.dirs): their settings, and those of brokers, are lost then."
    )


database_class: type[Database] = Database
"""The class that opens the file; tests replace it to simulate a full disk."""


class _Pending:
    """A transaction that is being committed."""

    __slots__ = ("applied", "future")

    def __init__(self, applied: Applied, future: asyncio.Future[None]) -> None:
        self.applied = applied
        self.future = future


class Engine:
    """The tree, its file, and the sessions that share both."""

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
        """Returns an id that no other session of this engine has."""
        self._last_session_id += 1
        return self._last_session_id

    def join(self, session: EmbeddedStore) -> None:
        """Registers a session: it receives events from now on."""
        self._sessions.append(session)

    async def leave(self, session: EmbeddedStore) -> None:
        """Unregisters a session; the last session closes the file."""
        self._sessions.remove(session)
        if self._sessions or self._closed:
            return
        self._closed = True
        await self.wait_for_commits()
        await asyncio.get_running_loop().run_in_executor(self._worker, self._database.close)
        self._worker.shutdown(wait=True)

    async def wait_for_commits(self) -> None:
        """Returns when no commit is pending."""
        while self._committing:
            last = self._waiting[-1] if self._waiting else self._committing[-1]
            await asyncio.wait((last.future,))

    async def transact(self, operations: Sequence[Operation], session_id: int) -> list[Result]:
        """Applies the operations and returns once they are durable."""
        if self._closed:
            raise StoreUnavailable(f"{self._database.path} is closed")
        applied = self.tree.apply(operations, session_id)
        loop = asyncio.get_running_loop()
        pending = _Pending(applied, loop.create_future())
        self._waiting.append(pending)
        if not self._committing:
            self._start_commit(loop)
        # Shielded: a cancelled caller cancels neither the change nor the readers that wait for it.
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
            self._undo_failed(committed + self._waiting, error)
            return
        for pending in committed:
            self._deliver(pending.applied.events)
            if not pending.future.done():
                pending.future.set_result(None)
        if self._waiting:
            self._start_commit(loop)

    def _undo_failed(self, failed: list[_Pending], error: BaseException) -> None:
        """Undoes the failed transactions, and the later ones that may depend on them."""
        self._waiting = []
        for pending in reversed(failed):
            self.tree.undo(pending.applied)
        for pending in failed:
            if not pending.future.done():
                pending.future.set_exception(StoreError(str(error)))
                pending.future.exception()  # A cancelled caller does not retrieve it.

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
    """A session with the embedded store: :meth:`open` creates the first, :meth:`join` further ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session_id = engine.next_session_id()
        self._watches: dict[str, list[_EmbeddedWatch]] = {}
        self._listeners: list[SessionListener] = []
        self._closed = False
        engine.join(self)

    @classmethod
    def open(cls, path: str) -> EmbeddedStore:
        """Opens or creates the file at ``path``; blocks for a few milliseconds.

        Raises StoreError, whose one line names the next step, when the file is in use, damaged or
        inaccessible.
        """
        return cls(Engine(path))

    def join(self) -> EmbeddedStore:
        """Opens another session on the same tree."""
        self._check_open()
        return EmbeddedStore(self._engine)

    @property
    def is_blank(self) -> bool:
        """Whether no transaction was ever committed."""
        return self._engine.tree.last_id == 0

    @property
    def session_id(self) -> int:
        return self._session_id

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("this session with the coordination store is closed")

    async def get(self, path: str) -> Node | None:
        self._check_open()
        await self._engine.wait_for_commits()
        return self._engine.tree.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self._check_open()
        await self._engine.wait_for_commits()
        get = self._engine.tree.get
        return [get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        self._check_open()
        await self._engine.wait_for_commits()
        return self._engine.tree.children(path)

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        self._check_open()
        return await self._engine.transact(operations, self._session_id)

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self._check_open()
        await self._engine.wait_for_commits()
        return _EmbeddedWatch(self._watches, path, watcher)

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def deliver(self, event: Event) -> None:
        """Passes an event to this session's watchers of its path."""
        for watch in list(self._watches.get(event.path, ())):
            if watch.watcher is None:
                continue
            try:
                watch.watcher(event)
            except Exception:
                logger.exception("A watcher of %s failed on the event %r.", event.path, event.kind.value)

    def _notify_listeners(self, state: SessionState) -> None:
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:
                logger.exception("A session listener failed on the state %r.", state.value)

    async def expire(self) -> None:
        """Ends the session as a server does after its timeout, and starts a new one."""
        self._check_open()
        await self._drop_ephemerals()
        self._session_id = self._engine.next_session_id()
        self._notify_listeners(SessionState.EXPIRED)
        self._notify_listeners(SessionState.CONNECTED)

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
