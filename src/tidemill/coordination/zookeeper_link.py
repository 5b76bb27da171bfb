"""The connection to ZooKeeper: kazoo, adapted so that its thread notifies the event loop in batches.

kazoo connects, logs in, keeps the session alive and finds another server. This module relies on kazoo's
internals in two ways. A request is queued with a :class:`Call` in the place of kazoo's result, which needs a
condition variable and a second thread for every call. And methods here send frames, receive frames and read
watch events: many at once, and with persistent watches (ZooKeeper 3.6), where kazoo's watches fire once. So
replies, events and session changes arrive in the order in which ZooKeeper sent them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from threading import Timer
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import PURESASL_AVAILABLE, ConnectionHandler
from kazoo.protocol.serialization import Watch as WatchFrame
from kazoo.protocol.serialization import int_int_struct, int_struct, reply_header_struct
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.zookeeper_calls import (
    CONNECTED,
    EVENT,
    EXPIRED,
    REFUSED,
    SUSPENDED,
    TROUBLE,
    Call,
    Notice,
)
from tidemill.coordination.zookeeper_settings import DIGEST_MD5, ZooKeeperSettings

REPLY_BYTES_MAX = 256 * 1024 * 1024
"""The longest list of children that is accepted; a longer frame does not come from ZooKeeper."""
REQUEST_BYTES_MAX = 1024 * 1024 - 1
"""``jute.maxbuffer``: ZooKeeper closes the connection of a client that sends more."""
RECEIVE_BYTES = 256 * 1024
SEND_BYTES = 256 * 1024
"""Larger batches are sent in several writes."""
INT_MAX = 2**31 - 1
NOTICES_MAX = 50_000
SPACE_WAIT_S = 1.0
"""The longest wait for space per read; after it, pings are sent so that the session survives, and memory use
grows."""
CONNECT_MAX_S = 5.0
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0
CLOSE_S = 2.0
"""How long the server may take to acknowledge the end of the session; then the connection is cut."""


class Inbox:
    """Notices from kazoo's thread to the event loop: one wake-up for all that are queued."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[Notice], None]) -> None:
        self._loop = loop
        self._handle = handle
        self._notices: deque[Notice] = deque()
        self._awake = False
        self.is_filling = False
        """Set by kazoo's thread while it adds several notices: it wakes the loop after the last."""

    def put(self, notice: Notice) -> None:
        """Adds a notice, from any thread."""
        self._notices.append(notice)
        if not self.is_filling:
            self.wake()

    def wake(self) -> None:
        """Wakes the loop to process the queued notices."""
        if self._notices and not self._awake:
            self._awake = True
            # The loop may be closed before the session.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain)

    def wait_for_space(self) -> None:
        """Blocks kazoo's thread while the loop is far behind, so that ZooKeeper is throttled."""
        if len(self._notices) > NOTICES_MAX:
            self.wake()
            deadline = time.monotonic() + SPACE_WAIT_S
            while len(self._notices) > NOTICES_MAX and time.monotonic() < deadline:
                time.sleep(0.01)

    def _drain(self) -> None:
        self._awake = False  # First, so that notices added from now on wake the loop again.
        while self._notices:
            self._handle(self._notices.popleft())


class Connection(ConnectionHandler):
    """kazoo's thread: passes events to the inbox, and reports failures with their reason."""

    def __init__(self, client: Any, retry: Any, inbox: Inbox, sasl: dict[str, str] | None) -> None:
        super().__init__(client, retry, logger=client.logger, sasl_options=sasl)
        self._inbox = inbox
        self._put = inbox.put
        self._received = bytearray()
        self._xid = 0
        self.session_timeout_ms = 0.0
        """The timeout that the server granted; 0 before that."""

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        frame, _ = WatchFrame.deserialize(buffer, offset)
        _, transaction_id, _ = reply_header_struct.unpack_from(buffer, 0)
        # After a disconnect, kazoo accepts another server only if it is not behind this transaction.
        self.client.last_zxid = max(self.client.last_zxid, transaction_id)
        self._put((EVENT, frame.path, (frame.type, transaction_id)))

    def _read(self, length: int, timeout: float) -> bytes:
        """Returns received bytes, and receives more while there are not enough."""
        if not 0 <= length <= REPLY_BYTES_MAX:
            raise ConnectionDropped(f"the response is not ZooKeeper's (a frame of {length} bytes)")
        received = self._received
        while len(received) < length:
            with self._socket_error_handling():
                # TLS may have buffered bytes that select() does not see: so a receive comes first.
                data = self._receive()
                if data is None:
                    if not self.handler.select([self._socket], [], [], timeout)[0]:
                        raise KazooTimeoutError("no response in time")
                    continue
            if not data:
                raise ConnectionDropped("the server closed the connection")
            received += data
        taken = bytes(received[:length])
        del received[:length]
        return taken

    def _receive(self) -> bytes | None:
        try:
            data: bytes = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        return data

    def _read_socket(self, read_timeout: float) -> Any:
        """Handles all received frames: no event would signal those that are left in the buffer."""
        self._inbox.is_filling = True
        try:
            response = super()._read_socket(read_timeout)
            while self._received and response is None:
                response = super()._read_socket(read_timeout)
            self._inbox.wait_for_space()
            return response
        except (RuntimeError, IndexError, ValueError, struct.error) as problem:
            raise ConnectionDropped(f"the response cannot be decoded: {problem}") from None
        finally:
            self._inbox.is_filling = False
            self._inbox.wake()

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Sends all queued requests in one write."""
        queue = self.client._queue
        batch = bytearray()
        count = 0
        while queue and len(batch) < SEND_BYTES and isinstance(queue[0][1], Call):
            request, call = queue.popleft()
            count += 1
            if call.is_dropped:
                continue
            self._xid = self._xid % INT_MAX + 1
            body = request.serialize()
            batch += int_int_struct.pack(len(body) + 8, self._xid) + int_struct.pack(request.type) + body
            self.client._pending.append((request, call, self._xid))
        if not count:
            super()._send_request(read_timeout, connect_timeout)  # Closes the session, or sends nothing.
            return
        self._read_sock.recv(count)  # The bytes that woke this thread, one per request.
        if batch:
            self._write(bytes(batch), connect_timeout)

    def _expand_client_hosts(self) -> Any:
        places = super()._expand_client_hosts()
        if not places:
            names = ", ".join(host for host, _ in self.client.hosts)
            self._put((TROUBLE, f"no address is known for {names}", None))
        return places

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        """As kazoo's; but an unexpected exception ends the connection, and not the thread."""
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as problem:  # noqa: BLE001 - kazoo has logged it, with its traceback
            self._put((TROUBLE, f"{host}:{port}: {_reason(problem)}", None))
            self.client._session_callback(KeeperState.CONNECTING)
            return None

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        """As kazoo's; but errors are reported, and never end the thread."""
        where = f"{host}:{port}"
        self._received.clear()
        if self.client._stopped.is_set():
            raise ConnectionDropped("closed")
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except SessionExpiredError:
            raise
        except (AuthFailedError, SASLException, SessionClosedRequireSaslError) as problem:
            self._put((REFUSED, f"{where} refused the login ({problem or type(problem).__name__})", None))
            raise ConnectionDropped("the login was refused") from None
        except (ConnectionDropped, KazooTimeoutError) as problem:
            self._put((TROUBLE, f"{where}: {_reason(problem)}", None))
            raise
        except (KazooException, OSError, RuntimeError, ValueError, struct.error) as problem:
            self._put((TROUBLE, f"{where}: {_reason(problem)}", None))
            raise ConnectionDropped(str(problem)) from None
        self.session_timeout_ms = read_timeout * 1.5  # kazoo's read timeout is two thirds of the session's.
        return read_timeout, connect_timeout

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if self.client._stopped.is_set():
            raise ConnectionDropped("closed")
        if xid is None:
            # A server that is starting may not respond to the first frame: this leaves time for a retry.
            timeout /= 3
        return super()._invoke(timeout, request, xid)

    def cut(self) -> None:
        """Cuts the connection at once, from any thread."""
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(2)


class Handler(SequentialThreadingHandler):
    """kazoo's threads, with sockets that have a connect timeout and are closed when TLS fails on them."""

    def __init__(self, connect_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._connect_s = connect_s
        self._tls = tls

    def create_connection(self, address: Any, hostname: str | None = None, **others: Any) -> socket.socket:
        """Returns a connected socket."""
        connection = socket.create_connection(address, self._connect_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise
        return connection


class Link:
    """Consecutive sessions with an ensemble, until the link is closed."""

    def __init__(
        self, settings: ZooKeeperSettings, loop: asyncio.AbstractEventLoop, handle: Callable[[Notice], None]
    ) -> None:
        self._inbox = Inbox(loop, handle)
        self.put = self._inbox.put
        logger = logging.getLogger("tidemill.zookeeper.kazoo")
        logger.setLevel(logging.ERROR)  # Its messages below that level contain node data and passwords.
        session_s = settings.session_timeout_ms / 1000
        connect_s = min(session_s / (settings.hosts.count(",") + 1), CONNECT_MAX_S)
        handler = Handler(connect_s, _tls_context(settings))
        self._client = KazooClient(
            settings.hosts,
            timeout=session_s,
            handler=handler,
            logger=logger,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=RECONNECT_FIRST_S,
                backoff=1.5,
                max_delay=RECONNECT_MAX_S,
                sleep_func=handler.sleep_func,
            ),
            auth_data=[("digest", settings.digest)] if settings.digest else None,
        )
        retry = self._client._conn_retry.copy()
        self._connection = Connection(self._client, retry, self._inbox, _sasl_options(settings))
        self._client._connection = self._connection
        self._client.add_listener(self._session_changed)

    @property
    def session_timeout_ms(self) -> float:
        """How long the server keeps a silent session; 0 before there is a session."""
        return self._connection.session_timeout_ms

    def start(self) -> None:
        """Starts to connect."""
        self._client.start_async()

    def send(self, request: Any, call: Call) -> None:
        """Queues a request; the response arrives as a notice."""
        self._client._call(request, call)

    def stop(self) -> None:
        """Closes the session and ends the thread; blocks for little more than CLOSE_S at most."""
        cutter = Timer(CLOSE_S, self._connection.cut)
        cutter.start()
        try:
            # A thread that is connecting ends by itself after the attempt.
            with contextlib.suppress(WriterNotClosedException):
                self._client.stop()
                self._client.close()
        finally:
            cutter.cancel()

    def _session_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.put((CONNECTED, self._client._session_id, None))
        elif state == KazooState.SUSPENDED:
            self.put((SUSPENDED, None, None))
        elif self._client.client_state == KeeperState.EXPIRED_SESSION:
            self.put((EXPIRED, None, None))


def _reason(problem: Exception) -> str:
    if isinstance(problem, KazooTimeoutError):
        return "no response in time"
    return str(problem).removeprefix("socket connection error: ") or type(problem).__name__


def _sasl_options(settings: ZooKeeperSettings) -> dict[str, str] | None:
    sasl = settings.sasl
    if sasl is None:
        return None
    if not PURESASL_AVAILABLE:
        raise StoreError("a login by SASL needs pure-sasl: pip install 'tidemill[zookeeper]'")
    options = {"mechanism": sasl.mechanism, "service": sasl.service}
    if sasl.mechanism == DIGEST_MD5:
        options |= {"username": sasl.username, "password": sasl.password}
    elif sasl.username:
        options["principal"] = sasl.username
    return options


def _tls_context(settings: ZooKeeperSettings) -> ssl.SSLContext | None:
    tls = settings.tls
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.authorities or None)
        context.check_hostname = tls.check_host
        if tls.key_and_certificate:
            # The password callback keeps OpenSSL from prompting at the terminal.
            context.load_cert_chain(tls.key_and_certificate, password=lambda: tls.key_password)
    except (OSError, ValueError) as problem:
        files = " or ".join(name for name in (tls.key_and_certificate, tls.authorities) if name)
        raise StoreError(
            f"TLS to ZooKeeper cannot be set up from {files}: {problem}. Correct zookeeper.ssl.keystore.* "
            "and zookeeper.ssl.truststore.location."
        ) from None
    return context
