"""A small HTTP/1.1 server for /metrics and /healthz, on the broker's own event loop.

Requests without a body, one a connection. Bounds: the head in bytes and seconds, the connections at once;
rendering happens in a thread. Whoever exceeds a bound is answered and closed, the broker never notices.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidemill.server.metrics import Family, render

log = logging.getLogger("tidemill.server")

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
    """What a client sent is no request; ``status`` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


class Answer(NamedTuple):
    """One reply, as it will be written."""

    status: int
    content_type: str
    body: bytes
    with_body: bool = True

    def encoded(self) -> bytes:
        """Head and, unless only the head was asked for, body."""
        head = (
            f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if self.with_body else b"")


class MetricsEndpoint:
    """Serves ``/metrics`` from ``gather`` and ``/healthz`` from ``health``.

    ``health`` answers (well?, details): 200 or 503, with the details as JSON. Both are called on the loop;
    where ``gather`` gives None, others have their turn.
    """

    def __init__(
        self,
        gather: Callable[[], Iterable[Family | None]],
        health: Callable[[], tuple[bool, dict[str, Any]]],
    ) -> None:
        self._gather = gather
        self._health = health
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = -1

    async def start(self, host: str, port: int) -> None:
        """Listens; OSError when the port is taken. ``port`` 0 takes a free one, see :attr:`port`."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX, backlog=64)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops listening, and breaks off what is under way."""
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
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            answer = await self._answer(reader)
            writer.write(answer.encoded())
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            method, target, accept = await read_head(reader)
        except BadRequest as problem:
            return Answer(problem.status, PLAIN, f"{problem}\n".encode())
        if method not in ("GET", "HEAD"):
            return Answer(405, PLAIN, b"only GET and HEAD\n")
        try:
            answer = await self._page(target.partition("?")[0], accept)
        except Exception:
            log.exception("a request to the metrics port failed")
            answer = Answer(500, PLAIN, b"it failed; the log has the reason\n")
        return answer._replace(with_body=method != "HEAD")

    async def _page(self, path: str, accept: str) -> Answer:
        if path == "/metrics":
            families = []
            for family in self._gather():
                if family is None:
                    await asyncio.sleep(0)
                else:
                    families.append(family)
            loop = asyncio.get_running_loop()
            content_type, body = await loop.run_in_executor(None, render, families, accept)
            return Answer(200, content_type, body)
        if path == "/healthz":
            well, details = self._health()
            text = json.dumps({"status": "ok" if well else "unwell", **details})
            return Answer(200 if well else 503, "application/json", f"{text}\n".encode())
        return Answer(404, PLAIN, b"there are /metrics and /healthz here\n")


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, str]:
    """Method, target and ``Accept`` header of one request; BadRequest when it is none."""
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
