"""An HTTP/1.1 server for /metrics and /healthz on the event loop of the broker.

It accepts one request without a body per connection. The size and the duration of the request head and the
number of connections are limited; a connection that exceeds a limit is closed. A thread renders the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidemill.model.task_set import TaskSet
from tidemill.server.health import Health
from tidemill.server.metrics import Family, render

logger = logging.getLogger("tidemill.server")

HEAD_BYTES_MAX = 8 * 1024
HEAD_SECONDS_MAX = 5.0
SEND_SECONDS_MAX = 15.0
CONNECTIONS_MAX = 32

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
PLAIN = "text/plain; charset=utf-8"


class BadRequest(Exception):
    """An invalid request; ``status`` is the HTTP status of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes
    with_body: bool = True

    def encode(self) -> bytes:
        """The head, and the body unless the request was a HEAD."""
        head = (
            f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if self.with_body else b"")


class MetricsEndpoint:
    """Serves ``/metrics`` from ``gather`` and ``/healthz`` from ``health``.

    The response with the health is 200 or 503. Both functions run on the event loop. Where ``gather`` yields
    None, the endpoint yields to other tasks.
    """

    def __init__(self, gather: Callable[[], Iterable[Family | None]], health: Callable[[], Health]) -> None:
        self._gather = gather
        self._health = health
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks = TaskSet()
        self.port = -1

    async def start(self, host: str, port: int) -> None:
        """Listens; with ``port`` 0 on a free port, see :attr:`port`. Raises OSError if the port is in use."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX, backlog=64)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops listening, and aborts the open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        if task is not None:
            self._tasks.track(task)
        self._writers.add(writer)
        try:
            response = await self._respond(reader)
            writer.write(response.encode())
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _respond(self, reader: asyncio.StreamReader) -> Response:
        try:
            method, target, accept = await read_head(reader)
        except BadRequest as problem:
            return Response(problem.status, PLAIN, f"{problem}\n".encode())
        if method not in ("GET", "HEAD"):
            return Response(405, PLAIN, b"only GET and HEAD are allowed\n")
        try:
            response = await self._page(target.partition("?")[0], accept)
        except Exception:
            logger.exception("a request to the metrics port failed")
            response = Response(500, PLAIN, b"internal error; see the log of the broker\n")
        return response._replace(with_body=method != "HEAD")

    async def _page(self, path: str, accept: str) -> Response:
        if path == "/metrics":
            families = []
            for family in self._gather():
                if family is None:
                    await asyncio.sleep(0)
                else:
                    families.append(family)
            loop = asyncio.get_running_loop()
            content_type, body = await loop.run_in_executor(None, render, families, accept)
            return Response(200, content_type, body)
        if path == "/healthz":
            health = self._health()
            status = 200 if health.is_healthy else 503
            return Response(status, "application/json", f"{health.to_json()}\n".encode())
        return Response(404, PLAIN, b"the paths are /metrics and /healthz\n")


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, str]:
    """The method, target and ``Accept`` header of a request. Raises BadRequest."""
    try:
        async with asyncio.timeout(HEAD_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise BadRequest(408) from None
    except asyncio.LimitOverrunError:
        raise BadRequest(431) from None
    except asyncio.IncompleteReadError:
        raise BadRequest(400) from None
    lines = head.decode("iso-8859-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise BadRequest(400)
    accept = ""
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            accept = value.strip()
    return words[0], words[1], accept
