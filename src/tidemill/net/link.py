"""A connection that a broker opens to another: requests go out as they come, answers come back in order.

Followers fetch over it, and the controller commands over it. Any number of requests may be under way; the
peer answers them in their order. What goes wrong ends the link, and everybody who waits on it is told why;
whoever opened it opens the next.

:meth:`Link.ask` takes messages and gives their answers to tasks. :meth:`Link.post` is for those who ask
without pause, and read and write the protocol by themselves: the answer is handed on where it was received,
in the turn of the loop in which it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tidemill.model.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.model.slices import with_pauses
from tidemill.wire.apis import ApiKey, response_class
from tidemill.wire.header import decode_response, request_head, response_body
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.primitives import skip_tag_section
from tidemill.wire.schema import decode_in_slices, encode_in_slices, encode_parts, has_many_items

log = logging.getLogger("tidemill.net")

FRAME_BYTES_MAX = 0x7FFF_FFFE
"""Of an answer: brokers may take batches of almost that size (``socket.request.max.bytes``), and a follower
gets each of them whole. Memory grows with what has come, not with what is promised."""
KEPT_ALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}
"""Seconds until a silent peer is asked, and between questions; how many; ms that sent bytes wait for."""
CONNECT_S = 2.0
"""After so long a connection is begun anew: the system would ask ever more rarely."""
AT_ONCE_ITEMS = 100
AT_ONCE_BYTES = 4 * 1024
"""A request of more items is encoded in slices, and a larger answer decoded so."""
RECEIVE_BYTES = 16 * 1024
RECEIVE_BYTES_MAX = 1024 * 1024
"""Of one receive: so much memory is taken on a peer's word."""
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")
"""Size, API key, its version, correlation id, length of the client id."""


class LinkError(TidemillError):
    """The peer cannot be reached, has gone, or does not speak the protocol. The text names it."""


class LinkRefused(LinkError):
    """Nobody listens at the peer's address: its process is gone."""


class LinkBroken(LinkError):
    """The peer took the connection, and closed or reset it at once: its process may be about to end."""


class LinkTimeout(LinkError):
    """The peer has not answered in time."""


class Poster(Protocol):
    """Who posts requests."""

    def on_answer(self, data: bytes, start: int, end: int) -> None:
        """The body of the answer to the oldest of its requests is ``data[start:end]``.

        ProtocolError ends the link.
        """

    def on_link_closed(self, reason: str) -> None:
        """The link has ended: no answer comes any more."""


class _Asked(NamedTuple):
    key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[Any] | None
    poster: Poster | None
    deadline: float
    """In the loop's time, of what was posted: who asks waits with a deadline of his own."""


class _LargeAnswer(NamedTuple):
    key: int
    version: int
    body: bytes


class Link:
    """One open connection; made by :meth:`open`. All methods belong to the event loop's thread."""

    def __init__(self, name: str, sock: socket.socket, client_id: str) -> None:
        self.name = name
        """The peer, for people: broker and address."""
        self.closed = ""
        """Why it has ended; empty while it lives."""
        self.versions: dict[int, tuple[int, int]] = {}
        self.is_broken = False
        """The peer closed or reset the connection: its process may have ended. Not after a timeout."""
        self.on_close: Callable[[str], None] | None = None
        self.on_broken: Callable[[], None] | None = None
        """Called when the link ends because the peer closed or reset it, before :attr:`on_close`."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._client_id = client_id
        self._client = client_id.encode() + b"\0"
        self._correlation_id = 0
        self._waiting: deque[_Asked] = deque()
        self._unsent = bytearray()
        self._writing = False
        self._chunks: list[bytes] = []
        self._have = 0
        """Bytes in the chunks, of a frame of which more is to come."""
        self._needed = _SIZE.size
        self._watch: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def open(cls, broker_id: int, host: str, port: int, client_id: str, timeout_s: float) -> Link:
        """Connects, and asks which versions the peer serves. Raises LinkError."""
        name = f"broker {broker_id} at {host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                sock = await _connect_soon(host, port)
        except TimeoutError:
            raise LinkTimeout(f"{name} has not taken a connection within {timeout_s:g} s") from None
        except ConnectionRefusedError:
            raise LinkRefused(f"{name} refuses connections") from None
        except OSError as problem:
            raise LinkError(f"{name} cannot be reached: {problem.strerror or problem}") from None
        link = cls(name, sock, client_id)
        try:
            await link._learn_versions(timeout_s)
        except BaseException as problem:
            link.close("it was not used")
            if link.is_broken and isinstance(problem, LinkError):
                raise LinkBroken(str(problem)) from None
            raise
        return link

    async def _learn_versions(self, timeout_s: float) -> None:
        request = ApiVersionsRequest(client_software_name="tidemill", client_software_version="0")
        answer: ApiVersionsResponse = await self.ask(ApiKey.API_VERSIONS, 3, request, timeout_s)
        if answer.error_code not in (0, ErrorCode.UNSUPPORTED_VERSION):
            raise LinkError(f"{self.name} answers ApiVersions with error {answer.error_code}")
        self.versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        """The newest version of an API that both sides know. Raises LinkError when there is none."""
        low, high = self.versions.get(key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            raise LinkError(
                f"{self.name} serves versions {low} to {high} of API {key}, and {lowest} to {highest} are "
                "known here"
            )
        return version

    async def ask(self, key: int, version: int, request: Any, timeout_s: float) -> Any:
        """Sends a request; its decoded answer. Raises LinkError; after a timeout the link is at its end."""
        if self.closed:
            raise LinkError(f"{self.name}: {self.closed}")
        parts: list[bytes] = []
        if has_many_items(request, AT_ONCE_ITEMS):
            await with_pauses(encode_in_slices(request, version, parts))
            if self.closed:
                raise LinkError(f"{self.name}: {self.closed}")
        else:
            parts = encode_parts(request, version)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        data = b"".join([request_head(key, version, self._correlation_id, self._client_id, parts), *parts])
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(_Asked(key, version, self._correlation_id, answer, None, 0.0))
        self._send(data)
        try:
            async with asyncio.timeout(timeout_s):
                found = await answer
        except TimeoutError:
            # Answers come in order: what was asked after this one would not come either.
            self.close(f"no answer within {timeout_s:g} s")
            raise LinkTimeout(f"{self.name} has not answered within {timeout_s:g} s") from None
        return await self._decoded(found) if isinstance(found, _LargeAnswer) else found

    async def _decoded(self, large: _LargeAnswer) -> Any:
        """An answer of many items, which is decoded in slices. One that is none ends the link."""
        cls, size = response_class(large.key), len(large.body)
        try:
            response, end = await with_pauses(decode_in_slices(cls, large.version, large.body, 0, size))
            if end != size:
                raise ProtocolError(f"{cls.__name__} v{large.version} ends at byte {end} of {size}")
        except Exception as problem:
            reason = _unreadable(problem)
            if not isinstance(problem, TidemillError):
                log.exception("an answer of %s could not be taken", self.name)
            self.close(reason)
            raise LinkError(f"{self.name}: {reason}") from None
        return response

    def post(self, key: int, version: int, body: bytes, poster: Poster, timeout_s: float) -> None:
        """Sends a request of a flexible version, whose fields are ``body``; ``poster`` is told the answer.

        When none has come within ``timeout_s``, the link is at its end.
        """
        if self.closed:
            poster.on_link_closed(self.closed)
            return
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        deadline = self._loop.time() + timeout_s
        self._waiting.append(_Asked(key, version, correlation_id, None, poster, deadline))
        if self._watch is None:
            self._watch = self._loop.call_at(deadline, self._look_for_answers)
        client = self._client
        size = _HEADER.size - _SIZE.size + len(client) + len(body)
        self._send(_HEADER.pack(size, key, version, correlation_id, len(client) - 1) + client + body)

    def _look_for_answers(self) -> None:
        """Answers come in order: only of the first that was posted the time can be over."""
        self._watch = None
        now = self._loop.time()
        for asked in self._waiting:
            if asked.poster is not None:
                if asked.deadline <= now:
                    self.close("no answer has come in time")
                else:
                    self._watch = self._loop.call_at(asked.deadline, self._look_for_answers)
                return

    def close(self, reason: str) -> None:
        """Ends the link; who waits is told ``reason``. Calling it again does nothing."""
        if self.closed:
            return
        self.closed = reason
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._watch is not None:
            self._watch.cancel()
        self._unsent.clear()
        self._chunks = []
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            self._fail(asked, reason)
        if self.is_broken and self.on_broken is not None:
            self.on_broken()
        if self.on_close is not None:
            self.on_close(reason)

    def _break(self, problem: OSError) -> None:
        self.is_broken = isinstance(problem, ConnectionError)
        self.close(_reason(problem))

    # -- sending

    def _send(self, data: bytes) -> None:
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
            self._loop.add_writer(self._socket, self._send_on)

    def _send_on(self) -> None:
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
        """Takes what has come, and hands on the frames that are whole. Memory grows with what has come."""
        wanted = RECEIVE_BYTES
        if self._have:
            wanted = min(max(wanted, self._needed - self._have), RECEIVE_BYTES_MAX)
        try:
            data = self._socket.recv(wanted)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._break(problem)
            return
        if not data:
            self.is_broken = True
            self.close("the peer closed the connection")
            return
        if self._have:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._needed:
                if len(self._chunks) > 64 + (self._have >> 14):
                    self._chunks = [b"".join(self._chunks)]
                return
            data = b"".join(self._chunks)
            self._chunks = []
            self._have = 0
        try:
            self._parse(data)
        except TidemillError as problem:
            self.close(str(problem))
        except Exception as problem:
            # A fault of this program; nobody else would end what waits for answers.
            log.exception("an answer of %s could not be taken", self.name)
            self.close(f"an answer could not be taken: {problem!r}")

    def _parse(self, data: bytes) -> None:
        position, end = 0, len(data)
        needed = _SIZE.size
        while end - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, position)
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"an answer of {size} bytes; 4 to {FRAME_BYTES_MAX} are taken")
            needed = _SIZE.size + size
            if end - position < needed:
                break
            self._take(data, position + _SIZE.size, position + needed)
            if self.closed:
                return
            position += needed
            needed = _SIZE.size
        if position < end:
            self._chunks = [data[position:] if position else data]
            self._have = end - position
            self._needed = needed

    def _take(self, data: bytes, start: int, end: int) -> None:
        if not self._waiting:
            raise ProtocolError("an answer came that nobody asked for")
        asked = self._waiting.popleft()
        try:
            if asked.poster is not None:
                (correlation_id,) = _SIZE.unpack_from(data, start)
                self._check(asked, correlation_id)
                asked.poster.on_answer(data, skip_tag_section(data, start + _SIZE.size, end), end)
                return
            response: Any
            if end - start > AT_ONCE_BYTES and asked.key != ApiKey.API_VERSIONS:
                correlation_id, body = response_body(asked.key, asked.version, data, start, end)
                self._check(asked, correlation_id)
                response = _LargeAnswer(asked.key, asked.version, data[body:end])
            else:
                correlation_id, response = decode_response(asked.key, asked.version, data, start, end)
                self._check(asked, correlation_id)
        except Exception as problem:
            self._fail(asked, _unreadable(problem))
            raise
        if asked.answer is not None and not asked.answer.done():
            asked.answer.set_result(response)

    @staticmethod
    def _check(asked: _Asked, correlation_id: int) -> None:
        if correlation_id != asked.correlation_id:
            raise ProtocolError(f"answer {correlation_id} came where {asked.correlation_id} was expected")

    def _fail(self, asked: _Asked, reason: str) -> None:
        if asked.poster is not None:
            asked.poster.on_link_closed(reason)
        elif asked.answer is not None and not asked.answer.done():
            asked.answer.set_exception(LinkError(f"{self.name}: {reason}"))
            asked.answer.exception()  # Whoever asked may be gone.


async def _connect_soon(host: str, port: int) -> socket.socket:
    while True:
        try:
            return await _connect(host, port)
        except TimeoutError:
            continue  # Whoever asked has a timeout of his own.


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    problem: OSError = ConnectionRefusedError()
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            if _is_its_own_peer(sock):
                sock.close()
                continue
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _notice_silence(sock)
            return sock
    raise problem


def _notice_silence(sock: socket.socket) -> None:
    """Has the system end a connection whose other end does not even acknowledge packets, after some seconds.

    After a cut TCP tries again ever more rarely: the network would be back long before the connection. A
    process that stands still has its packets acknowledged by its system.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEPT_ALIVE.items():
        option = getattr(socket, name, None)  # Each system has some of them.
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_its_own_peer(sock: socket.socket) -> bool:
    """Whether the system gave the socket the very port that it connects to: it does where nobody listens."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # It broke meanwhile, as will be found out.


def _reason(problem: OSError) -> str:
    return f"the connection broke: {problem.strerror or problem}"


def _unreadable(problem: Exception) -> str:
    known = isinstance(problem, TidemillError)
    return str(problem) if known else f"an answer could not be taken: {problem!r}"
