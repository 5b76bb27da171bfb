"""A connection that a broker opens to another broker: sends requests, receives the responses in order.

Replica fetchers and the controller's channels use it. Any number of requests may be in flight; the peer
responds in their order. An error closes the link and fails all pending requests; the owner opens the next
link.

:meth:`Link.request` encodes a request, waits, and returns the decoded response. :meth:`Link.send` is for
owners that send requests continuously and encode them themselves: it passes the undecoded response to a
:class:`ResponseHandler` in the turn of the event loop in which it was received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidemill import __version__
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.net.framing import NEED_DATA, FrameReader
from tidemill.wire.apis import ApiKey, ResponseT, expect_response, response_class
from tidemill.wire.codec import decode_in_slices, encode_in_slices, encode_parts
from tidemill.wire.header import decode_response, request_head, response_body
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.primitives import skip_tag_section
from tidemill.wire.schema import Struct, has_many_items

logger = logging.getLogger("tidemill.net")

FRAME_BYTES_MAX = 0x7FFF_FFFE
"""The limit for a response: brokers may accept batches of almost that size (``socket.request.max.bytes``),
and a follower gets each of them whole. Memory grows with the received bytes, not with the announced size.
"""
KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}
"""The idle seconds before the first keep-alive probe and between probes; their number; the ms that sent bytes
may stay unacknowledged.
"""
CONNECT_S = 2.0
"""The connect timeout, after which a new attempt begins: TCP would retry at growing intervals."""
AT_ONCE_ITEMS = 100
AT_ONCE_BYTES = 4 * 1024
"""A request with more items is encoded in slices; a larger response is decoded in slices."""
RECEIVE_BYTES_MIN = 16 * 1024
RECEIVE_BYTES_MAX = 1024 * 1024
"""The sizes of one receive. The second limits the memory that is allocated for an announced size."""
_SIZE = struct.Struct(">i")


class LinkError(TidemillError):
    """The peer is unreachable, has closed the connection, or violates the protocol. The text names it."""


class LinkRefused(LinkError):
    """The peer refuses connections: its process has ended."""


class LinkBroken(LinkError):
    """The peer accepted the connection and closed or reset it at once: its process may be about to end."""


class LinkTimeout(LinkError):
    """The peer has not responded in time."""


class ResponseHandler(Protocol):
    """Handles the responses to the requests of :meth:`Link.send`."""

    def on_response(self, data: bytes, start: int, end: int) -> None:
        """Handles the response to the oldest request. Its body is ``data[start:end]``.

        A ProtocolError closes the link.
        """

    def on_link_closed(self, reason: str) -> None:
        """The link is closed: no response arrives any more."""


class _PendingRequest(NamedTuple):
    """A request of :meth:`Link.request`, which has its own timer."""

    key: int
    version: int
    correlation_id: int
    response: asyncio.Future[Struct | _LargeResponse]


class _PendingSend(NamedTuple):
    """A request of :meth:`Link.send`."""

    key: int
    correlation_id: int
    handler: ResponseHandler
    timeout_s: float
    deadline_s: float
    """In the event loop's time."""


class _LargeResponse(NamedTuple):
    key: int
    version: int
    body: bytes


class Link:
    """One open connection, created by :meth:`open`. All methods must be called in the event loop's thread."""

    def __init__(self, name: str, sock: socket.socket, client_id: str) -> None:
        self.name = name
        """The peer, for log lines: broker and address."""
        self.close_reason: str | None = None
        """The reason of the close; None while the link is open."""
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_broken = False
        """The peer closed or reset the connection: its process may have ended. Not set after a timeout."""
        self.on_close: Callable[[str], None] | None = None
        self.on_broken: Callable[[], None] | None = None
        """Called when the peer closes or resets the connection, before :attr:`on_close`."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._client_id = client_id
        self._correlation_id = 0
        self._pending: deque[_PendingRequest | _PendingSend] = deque()
        self._unsent = bytearray()
        self._writing = False
        self._frames = FrameReader(_SIZE.size, FRAME_BYTES_MAX, "a response")
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._readable)

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed."""
        return self.close_reason is not None

    @classmethod
    async def open(cls, broker_id: int, host: str, port: int, client_id: str, timeout_s: float) -> Link:
        """Connects, and requests the supported API versions. Raises LinkError."""
        name = f"broker {broker_id} at {join_address(host, port)}"
        try:
            async with asyncio.timeout(timeout_s):
                sock = await _connect_with_retries(host, port)
        except TimeoutError:
            raise LinkTimeout(f"{name} has not accepted a connection within {timeout_s:g} s") from None
        except ConnectionRefusedError:
            raise LinkRefused(f"{name} refuses connections") from None
        except OSError as problem:
            raise LinkError(f"{name} cannot be reached: {problem.strerror or problem}") from None
        link = cls(name, sock, client_id)
        try:
            await link._request_versions(timeout_s)
        except BaseException as problem:
            link.close("the link was not used")
            if link.is_broken and isinstance(problem, LinkError):
                raise LinkBroken(str(problem)) from None
            raise
        return link

    async def _request_versions(self, timeout_s: float) -> None:
        request = ApiVersionsRequest(client_software_name="tidemill", client_software_version=__version__)
        response = await self.request(ApiKey.API_VERSIONS, 3, request, ApiVersionsResponse, timeout_s)
        if response.error_code not in (0, ErrorCode.UNSUPPORTED_VERSION):
            raise LinkError(f"{self.name} responded to ApiVersions with error {response.error_code}")
        self.versions = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        """The newest API version that both sides support. Raises LinkError if there is none."""
        low, high = self.versions.get(key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            raise LinkError(
                f"{self.name} supports versions {low} to {high} of API {key}, but this broker "
                f"supports {lowest} to {highest}"
            )
        return version

    async def request(
        self, key: int, version: int, request: Struct, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        """Sends a request and returns its decoded response. Raises LinkError; a timeout closes the link."""
        self._check_open()
        parts: list[bytes] = []
        if has_many_items(request, AT_ONCE_ITEMS):
            await run_in_slices(encode_in_slices(request, version, parts))
            self._check_open()
        else:
            parts = encode_parts(request, version)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        data = b"".join([request_head(key, version, self._correlation_id, self._client_id, parts), *parts])
        future: asyncio.Future[Struct | _LargeResponse] = self._loop.create_future()
        self._pending.append(_PendingRequest(key, version, self._correlation_id, future))
        self._send_bytes(data)
        try:
            async with asyncio.timeout(timeout_s):
                response = await future
        except TimeoutError:
            # Responses arrive in order: later requests get no response either.
            reason = self._close_after_timeout(key, timeout_s)
            raise LinkTimeout(f"{self.name}: {reason}") from None
        if isinstance(response, _LargeResponse):
            response = await self._decoded(response)
        return expect_response(response, response_type)

    def _check_open(self) -> None:
        if self.close_reason is not None:
            raise LinkError(f"{self.name}: {self.close_reason}")

    def _close_after_timeout(self, key: int, timeout_s: float) -> str:
        """Closes the link, and returns the reason."""
        reason = f"no response to API {key} within {timeout_s:g} s"
        self.close(reason)
        return reason

    async def _decoded(self, large: _LargeResponse) -> Struct:
        """Decodes a response with many items in slices. An invalid response closes the link."""
        cls, size = response_class(large.key), len(large.body)
        try:
            response, end = await run_in_slices(decode_in_slices(cls, large.version, large.body, 0, size))
            if end != size:
                raise ProtocolError(f"{cls.__name__} v{large.version} ends at byte {end} of {size}")
        except Exception as problem:
            reason = _error_text(problem)
            if not isinstance(problem, TidemillError):
                logger.exception("a response of %s could not be handled", self.name)
            self.close(reason)
            raise LinkError(f"{self.name}: {reason}") from None
        return response

    def send(self, key: int, version: int, body: bytes, handler: ResponseHandler, timeout_s: float) -> None:
        """Sends a request of a flexible version with the fields ``body``; ``handler`` gets the response.

        Closes the link if there is no response within ``timeout_s``.
        """
        if self.close_reason is not None:
            handler.on_link_closed(self.close_reason)
            return
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        deadline_s = self._loop.time() + timeout_s
        self._pending.append(_PendingSend(key, correlation_id, handler, timeout_s, deadline_s))
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_at(deadline_s, self._check_deadline)
        self._send_bytes(request_head(key, version, correlation_id, self._client_id, [body]) + body)

    def _check_deadline(self) -> None:
        """Closes the link if the oldest request of :meth:`send` has timed out: responses arrive in order."""
        self._deadline_timer = None
        now = self._loop.time()
        for pending in self._pending:
            if isinstance(pending, _PendingSend):
                if pending.deadline_s <= now:
                    self._close_after_timeout(pending.key, pending.timeout_s)
                else:
                    self._deadline_timer = self._loop.call_at(pending.deadline_s, self._check_deadline)
                return

    def close(self, reason: str) -> None:
        """Closes the link; pending requests fail with ``reason``. Further calls do nothing."""
        if self.is_closed:
            return
        self.close_reason = reason
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._unsent.clear()
        self._frames.clear()
        failed, self._pending = self._pending, deque()
        for pending in failed:
            self._fail(pending, reason)
        if self.is_broken and self.on_broken is not None:
            self.on_broken()
        if self.on_close is not None:
            self.on_close(reason)

    def _break(self, problem: OSError) -> None:
        self.is_broken = isinstance(problem, ConnectionError)
        self.close(f"the connection broke: {problem.strerror or problem}")

    # -- sending

    def _send_bytes(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            self._break(problem)
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._writing = True
            self._loop.add_writer(self._socket, self._send_rest)

    def _send_rest(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as problem:
            self._break(problem)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._writing = False
            self._loop.remove_writer(self._socket)

    # -- receiving

    def _readable(self) -> None:
        """Receives available bytes and handles the complete frames."""
        frames = self._frames
        requested = RECEIVE_BYTES_MIN
        if frames.has_partial:
            requested = min(max(requested, frames.missing_bytes), RECEIVE_BYTES_MAX)
        try:
            data = self._socket.recv(requested)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._break(problem)
            return
        if not data:
            self.is_broken = True
            self.close("the peer closed the connection")
            return
        frames.receive(data)
        try:
            self._handle_frames(frames)
        except TidemillError as problem:
            self.close(str(problem))
        except Exception as problem:
            # An internal error. Closing the link fails all pending requests.
            logger.exception("a response of %s could not be handled", self.name)
            self.close(f"a response could not be handled: {problem!r}")

    def _handle_frames(self, frames: FrameReader) -> None:
        start = frames.next_frame()
        while start != NEED_DATA:
            self._handle_frame(frames.data, start, frames.end)
            if self.is_closed:
                return
            frames.consume()
            start = frames.next_frame()

    def _handle_frame(self, data: bytes, start: int, end: int) -> None:
        if not self._pending:
            raise ProtocolError("a response without a request")
        pending = self._pending.popleft()
        try:
            if isinstance(pending, _PendingSend):
                (correlation_id,) = _SIZE.unpack_from(data, start)
                self._check(pending, correlation_id)
                pending.handler.on_response(data, skip_tag_section(data, start + _SIZE.size, end), end)
                return
            response: Struct | _LargeResponse
            if end - start > AT_ONCE_BYTES and pending.key != ApiKey.API_VERSIONS:
                correlation_id, body = response_body(pending.key, pending.version, data, start, end)
                self._check(pending, correlation_id)
                response = _LargeResponse(pending.key, pending.version, data[body:end])
            else:
                correlation_id, response = decode_response(pending.key, pending.version, data, start, end)
                self._check(pending, correlation_id)
        except Exception as problem:
            self._fail(pending, _error_text(problem))
            raise
        if not pending.response.done():
            pending.response.set_result(response)

    @staticmethod
    def _check(pending: _PendingRequest | _PendingSend, correlation_id: int) -> None:
        if correlation_id != pending.correlation_id:
            raise ProtocolError(
                f"correlation id {correlation_id}, expected {pending.correlation_id} (API {pending.key})"
            )

    def _fail(self, pending: _PendingRequest | _PendingSend, reason: str) -> None:
        if isinstance(pending, _PendingSend):
            pending.handler.on_link_closed(reason)
        elif not pending.response.done():
            pending.response.set_exception(LinkError(f"{self.name}: {reason}"))
            pending.response.exception()  # The caller may be gone.


async def _connect_with_retries(host: str, port: int) -> socket.socket:
    while True:
        try:
            return await _connect(host, port)
        except TimeoutError:
            continue  # The caller has its own timeout.


async def _connect(host: str, port: int) -> socket.socket:
    """Connects to the first address that accepts a connection.

    If none does, raises ConnectionRefusedError if an address refuses: the host responds, and the others may
    be unreachable from here, as IPv6 often is. Raises TimeoutError before other errors.
    """
    loop = asyncio.get_running_loop()
    problems: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            with contextlib.ExitStack() as opened:
                sock = opened.enter_context(socket.socket(family, kind, protocol))
                sock.setblocking(False)
                async with asyncio.timeout(CONNECT_S):
                    await loop.sock_connect(sock, address)
                if _is_connected_to_itself(sock):
                    raise ConnectionRefusedError
                opened.pop_all()
        except OSError as problem:
            problems.append(problem)
        else:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _enable_keepalive(sock)
            return sock
    raise min(
        problems,
        key=lambda error: (
            not isinstance(error, ConnectionRefusedError),
            not isinstance(error, TimeoutError),
        ),
    )


def _enable_keepalive(sock: socket.socket) -> None:
    """Has the system close a connection if its peer acknowledges no packets for some seconds.

    After an interruption TCP retries at growing intervals: the network would work again long before the
    connection. A stopped process has its packets acknowledged by its system.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # Each system supports some of them.
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_connected_to_itself(sock: socket.socket) -> bool:
    """Whether the socket is connected to itself: the system may choose the destination port as its source
    port.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # It broke meanwhile; the next call on it fails.


def _error_text(problem: Exception) -> str:
    known = isinstance(problem, TidemillError)
    return str(problem) if known else f"a response could not be handled: {problem!r}"
