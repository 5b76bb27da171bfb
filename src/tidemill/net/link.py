"""A connection that a broker opens to another: requests go out as they come, answers come back in order.

Followers fetch over it, and the controller commands over it. Any number of requests may be under way; the
peer answers them in their order. What goes wrong ends the link, and everybody who waits on it is told why;
whoever opened it opens the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemill.model.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

log = logging.getLogger("tidemill.net")

FRAME_BYTES_MAX = 128 * 1024 * 1024
"""Of an answer: a fetch's limit, and a batch that is larger."""
FIRST_BYTES_MAX = 64 * 1024
"""So much is taken on a peer's word; more is there once that much has come."""
_SIZE = struct.Struct(">i")


class LinkError(TidemillError):
    """The peer cannot be reached, has gone, or does not speak the protocol. The text names it."""


class LinkRefused(LinkError):
    """Nobody listens at the peer's address: its process is gone."""


class LinkTimeout(LinkError):
    """The peer has not answered in time."""


class _Asked(NamedTuple):
    key: int
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class Link:
    """One open connection; made by :meth:`open`. All methods belong to the event loop's thread."""

    def __init__(self, name: str, sock: socket.socket, client_id: str) -> None:
        self.name = name
        """The peer, for people: broker and address."""
        self.closed = ""
        """Why it has ended; empty while it lives."""
        self.versions: dict[int, tuple[int, int]] = {}
        self.on_close: Callable[[str], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: deque[_Asked] = deque()
        self._unsent = bytearray()
        self._writing = False
        self._reader = self._loop.create_task(self._read())

    @classmethod
    async def open(cls, broker_id: int, host: str, port: int, client_id: str, timeout_s: float) -> Link:
        """Connects, and asks which versions the peer serves. Raises LinkError."""
        name = f"broker {broker_id} at {host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                sock = await _connect(host, port)
        except TimeoutError:
            raise LinkTimeout(f"{name} has not taken a connection within {timeout_s:g} s") from None
        except ConnectionRefusedError:
            raise LinkRefused(f"{name} refuses connections") from None
        except OSError as problem:
            raise LinkError(f"{name} cannot be reached: {problem.strerror or problem}") from None
        link = cls(name, sock, client_id)
        try:
            await link._learn_versions(timeout_s)
        except BaseException:
            link.close("it was not used")
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
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        data = encode_request(key, version, self._correlation_id, self._client_id, request)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(_Asked(key, version, self._correlation_id, answer))
        self._send(data)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            # Answers come in order: what was asked after this one would not come either.
            self.close(f"no answer within {timeout_s:g} s")
            raise LinkTimeout(f"{self.name} has not answered within {timeout_s:g} s") from None

    def close(self, reason: str) -> None:
        """Ends the link; who waits is told ``reason``. Calling it again does nothing."""
        if self.closed:
            return
        self.closed = reason
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._reader.cancel()
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            if not asked.answer.done():
                asked.answer.set_exception(LinkError(f"{self.name}: {reason}"))
                asked.answer.exception()  # Whoever asked may be gone.
        # The reader holds the socket in the selector until its cancellation has arrived.
        self._reader.add_done_callback(lambda _: self._socket.close())
        if self.on_close is not None:
            self.on_close(reason)

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
            self.close(_reason(problem))
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
            self.close(_reason(problem))
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._writing = False
            self._loop.remove_writer(self._socket)

    # -- receiving

    async def _read(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._receive(_SIZE.size))
                if not 4 <= size <= FRAME_BYTES_MAX:
                    raise ProtocolError(f"an answer of {size} bytes; 4 to {FRAME_BYTES_MAX} are taken")
                self._take(await self._receive(size))
        except OSError as problem:
            self.close(_reason(problem))
        except TidemillError as problem:
            self.close(str(problem))
        except Exception as problem:
            # A fault of this program; nobody else would end what waits for answers.
            log.exception("an answer of %s could not be taken", self.name)
            self.close(f"an answer could not be taken: {problem!r}")

    async def _receive(self, count: int) -> bytes:
        """Exactly ``count`` bytes. Memory grows with what has come, not with what is promised."""
        data = bytearray(min(count, FIRST_BYTES_MAX))
        have = 0
        while have < count:
            if have == len(data):
                data.extend(bytes(min(len(data), count - have)))
            with memoryview(data) as view:
                got = await self._loop.sock_recv_into(self._socket, view[have:])
            if got == 0:
                raise LinkError("the peer closed the connection")
            have += got
        return bytes(data)

    def _take(self, frame: bytes) -> None:
        if not self._waiting:
            raise ProtocolError("an answer came that nobody asked for")
        asked = self._waiting.popleft()
        try:
            correlation_id, response = decode_response(asked.key, asked.version, frame)
            if correlation_id != asked.correlation_id:
                raise ProtocolError(f"answer {correlation_id} came where {asked.correlation_id} was expected")
        except Exception as problem:
            if not asked.answer.done():
                reason = problem if isinstance(problem, ProtocolError) else repr(problem)
                asked.answer.set_exception(LinkError(f"{self.name}: {reason}"))
                asked.answer.exception()
            raise
        if not asked.answer.done():
            asked.answer.set_result(response)


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    problem: OSError = ConnectionRefusedError()
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
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
            return sock
    raise problem


def _is_its_own_peer(sock: socket.socket) -> bool:
    """Whether the system gave the socket the very port that it connects to: it does where nobody listens."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # It broke meanwhile, as will be found out.


def _reason(problem: OSError) -> str:
    return f"the connection broke: {problem.strerror or problem}"
