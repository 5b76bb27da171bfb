"""The process of a store for tests: ``python -m tidemill.testing.store_process JOURNAL [PORT]``.

It listens on 127.0.0.1, writes its port to standard output, and ends with its standard input. Changes are
written to the journal before their response, and are not synced: they survive a kill of the process, not of
the machine. A start reads the journal; sessions continue, with their whole timeout ahead.

========  ===============================================================================
entry     INT32 size of the rest
          INT64 session, INT64 wall time in ms, then the request as received
========  ===============================================================================

The start of a session is a request of operation -10 with its timeout as INT32, its end a request of -11.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from tidemill.net.framing import NEED_DATA, FrameReader, FrameSizeError
from tidemill.testing.commands import serve_commands
from tidemill.testing.store_core import Session, StoreCore, Watches
from tidemill.testing.store_frames import (
    FRAME_BYTES_MAX,
    PASSWORD,
    WRITES,
    BadFrame,
    Op,
    Reader,
    buffer_bytes,
)

TICK_S: Final = 0.05
LATE_S: Final = 0.5
"""A tick this late means that the process was suspended, which must not count towards session timeouts."""
BACKLOG: Final = 128
_SIZE: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">iqq")
_BEGIN: Final = struct.Struct(">iii")
_CONNECTED: Final = struct.Struct(">iiq")
_WORDS: Final = {
    b"ruok": b"imok",
    b"srvr": b"Zookeeper version: Tidemill's store for tests\nMode: standalone\n",
}


class Journal:
    """The requests that changed the tree, in order."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)

    def entries(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields session, time and request of each entry. Truncates a torn entry at the end."""
        with open(self._descriptor, "rb", closefd=False) as file:
            data = file.read()
        position = 0
        while position + _ENTRY.size <= len(data):
            size, session_id, now_ms = _ENTRY.unpack_from(data, position)
            end = position + _SIZE.size + size
            if end > len(data):
                break
            yield session_id, now_ms, data[position + _ENTRY.size : end]
            position = end
        os.ftruncate(self._descriptor, position)

    def append(self, session_id: int, now_ms: int, request: bytes) -> None:
        """Adds an entry. Returns once the system has it."""
        os.write(self._descriptor, _ENTRY.pack(16 + len(request), session_id, now_ms) + request)


class Server:
    """The store with its connections."""

    def __init__(self, journal: Journal) -> None:
        self.core = StoreCore()
        self.journal = journal
        self._ends: dict[int, float] = {}
        """Expiry time of each session, unless it sends a request before."""
        self._last_tick = time.monotonic()

    def restore(self) -> None:
        """Replays the journal."""
        for session_id, now_ms, request in self.journal.entries():
            reader = Reader(request, 4)
            operation = reader.int32()
            if operation == Op.CREATE_SESSION:
                self.core.open_session(reader.int32())
                continue
            session = self.core.sessions.get(session_id)
            if session is not None:
                with contextlib.suppress(BadFrame):  # The request ended its connection, and changed nothing.
                    self.core.request(session, request, now_ms)
        for session in self.core.sessions.values():
            session.watches = Watches()
            self.renew_session(session)

    def renew_session(self, session: Session) -> None:
        """Renews a session, so that its timeout starts again."""
        self._ends[session.session_id] = time.monotonic() + session.timeout_ms / 1000

    def open_session(self, timeout_ms: int) -> Session:
        """Opens a session."""
        session = self.core.open_session(timeout_ms)
        request = _BEGIN.pack(0, Op.CREATE_SESSION, session.timeout_ms)
        self.journal.append(session.session_id, wall_ms(), request)
        self.renew_session(session)
        return session

    def request(self, session: Session, frame: bytes) -> bytes:
        """Writes a request to the journal, and executes it. Returns its response."""
        now_ms = wall_ms()
        if len(frame) >= 8 and int.from_bytes(frame[4:8], "big", signed=True) in WRITES:
            self.journal.append(session.session_id, now_ms, frame)
        return self.core.request(session, frame, now_ms)

    def expire_due(self) -> list[Session]:
        """Ends the sessions whose timeout has passed, and returns them."""
        now = time.monotonic()
        late_s = now - self._last_tick - TICK_S
        self._last_tick = now
        if late_s > LATE_S:
            for session_id in self._ends:
                self._ends[session_id] += late_s
        ended = []
        for session_id, end in list(self._ends.items()):
            session = self.core.sessions.get(session_id)
            if session is None:
                del self._ends[session_id]
            elif end < now:
                del self._ends[session_id]
                self.end(session)
                ended.append(session)
        return ended

    def end(self, session: Session) -> None:
        """Ends a session."""
        self.request(session, _SIZE.pack(0) + _SIZE.pack(Op.CLOSE_SESSION))


class Connection(asyncio.Protocol):
    """A client's connection, which handles one frame after the other."""

    def __init__(self, server: Server, by_session: dict[int, Connection]) -> None:
        self._server = server
        self._by_session = by_session
        self._frames = FrameReader(0, FRAME_BYTES_MAX, "a request")
        self._session: Session | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def connection_lost(self, problem: Exception | None) -> None:
        """Keeps the session, which continues for its timeout."""
        self.transport = None
        session = self._session
        if session is not None and self._by_session.get(session.session_id) is self:
            del self._by_session[session.session_id]
            session.send = None
            session.watches = Watches()

    def data_received(self, data: bytes) -> None:
        """Handles every complete frame."""
        self._frames.receive(data)
        try:
            self._handle_frames()
        except FrameSizeError as problem:
            # The four letters of a command are no size of a frame.
            word = _WORDS.get(_SIZE.pack(problem.size)) if self._session is None else None
            if word is None:
                self._close_after(problem)
            elif self.transport is not None:
                self.transport.write(word)
                self.close()
        except BadFrame as problem:
            self._close_after(problem)

    def _close_after(self, problem: Exception) -> None:
        sys.stderr.write(f"closing a connection: {problem}\n")
        self.close()

    def _handle_frames(self) -> None:
        frames = self._frames
        while self.transport is not None and (start := frames.next_frame()) != NEED_DATA:
            frame = frames.data[start : frames.end]
            frames.consume()
            if self._session is None:
                self._connect(frame)
            else:
                self._respond(self._session, frame)

    def _connect(self, frame: bytes) -> None:
        reader = Reader(frame)
        reader.int32()
        seen, timeout_ms, session_id = reader.int64(), reader.int32(), reader.int64()
        if seen > self._server.core.transaction:
            raise BadFrame("the client has seen a later state than this store has")
        if session_id == 0:
            session = self._server.open_session(timeout_ms)
        else:
            found = self._server.core.sessions.get(session_id)
            if found is None:
                self.send(_CONNECTED.pack(0, 0, 0) + buffer_bytes(PASSWORD) + b"\0")
                self.close()
                return
            session = found
            former = self._by_session.get(session_id)
            if former is not None:
                former.close()  # The client has opened a new connection.
        self._session = session
        self._by_session[session.session_id] = self
        session.watches = Watches()
        session.send = self.send
        self._server.renew_session(session)
        self.send(_CONNECTED.pack(0, session.timeout_ms, session.session_id) + buffer_bytes(PASSWORD) + b"\0")

    def _respond(self, session: Session, frame: bytes) -> None:
        if self._by_session.get(session.session_id) is not self:
            self.close()
            return
        self._server.renew_session(session)
        self.send(self._server.request(session, frame))
        if session.session_id not in self._server.core.sessions:
            self.close()

    def send(self, frame: bytes) -> None:
        """Sends a frame."""
        if self.transport is not None:
            self.transport.write(_SIZE.pack(len(frame)) + frame)

    def close(self) -> None:
        """Closes the connection."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None


async def serve(journal_path: str, port: int) -> None:
    """Serves until standard input ends. A command names the sessions to expire (null: all)."""
    loop = asyncio.get_running_loop()
    server = Server(Journal(journal_path))
    server.restore()
    by_session: dict[int, Connection] = {}
    listening = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    listener = await loop.create_server(lambda: Connection(server, by_session), sock=listening)

    def close(ended: list[Session]) -> None:
        for session in ended:
            found = by_session.get(session.session_id)
            if found is not None:
                found.close()

    def expire(command: dict[str, Any]) -> dict[str, Any]:
        wanted = command["sessions"]
        living = list(server.core.sessions.values())
        ended = [session for session in living if wanted is None or session.session_id in wanted]
        for session in ended:
            server.end(session)
        close(ended)
        return {"expired": [session.session_id for session in ended]}

    async def expire_sessions() -> None:
        while True:
            close(server.expire_due())
            await asyncio.sleep(TICK_S)

    expiry_task = loop.create_task(expire_sessions())
    try:
        await serve_commands({"port": listening.getsockname()[1]}, expire)
    finally:
        expiry_task.cancel()
        listener.close()


def wall_ms() -> int:
    """Returns milliseconds since 1970."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
