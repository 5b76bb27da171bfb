"""The way of all requests but Produce and Fetch: header, decode, handler, encode.

A handler is a function or coroutine function of (broker, context, request). What it raises becomes the
end of the connection, reported with its traceback: errors that the protocol has a place for are part of
the response.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
import time
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tidemill.broker.context import Peer, RequestContext
from tidemill.broker.error_texts import bound_texts, bound_texts_in_slices
from tidemill.broker.handlers.common import going_on
from tidemill.broker.registry import APIS, Api, api_for
from tidemill.broker.request_slices import Lane
from tidemill.controller.configs import ResourceType
from tidemill.coordination.port import StoreUnavailable
from tidemill.model.counters import TimeHistogram
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.net.connection import Connection, Reply
from tidemill.net.memory import Memory
from tidemill.net.sending import FileRange
from tidemill.wire.apis import ApiKey, request_class
from tidemill.wire.header import encode_response, parse_request_header, response_head
from tidemill.wire.schema import (
    Struct,
    decode_in_slices,
    decode_prefix,
    encode_in_slices,
    let_go_in_slices,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

log = logging.getLogger("tidemill.broker")

SIZE = struct.Struct(">i")
READ_AHEAD_BYTES = 1024 * 1024
AT_ONCE_BYTES = 4 * 1024
"""A larger request is decoded in slices: this is half a millisecond of it."""
PIECES_MAX = 2000
"""Pieces of a response that are joined at a time."""
ENDED = object()
STOP_S_MAX = 5.0
"""What handlers get at the stop to end what they began, a change of the cluster for instance."""


class Dispatch:
    """Finds the handler of a request and carries its answer back."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        memory: Memory | None = None,
    ) -> None:
        self.broker = broker
        self.lane = Lane(memory)
        self.loop = loop
        self.readers = readers
        self.tasks: set[asyncio.Task[None]] = set()
        self.durations: dict[int, TimeHistogram] = {}
        """By API key: how long its requests took."""
        self.on_closed: Any = None

    def handle(
        self,
        connection: Connection,
        data: bytes,
        start: int,
        end: int,
        api_key: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Answers one request, or closes its connection by raising ProtocolError."""
        served = APIS.get(api_key)
        if api_key == ApiKey.API_VERSIONS and served and not served.first <= version <= served.last:
            from tidemill.broker.handlers.api_versions import unsupported

            connection.reply_now(encode_response(ApiKey.API_VERSIONS, 0, correlation_id, unsupported()))
            return
        api = api_for(api_key, version)
        header = parse_request_header(data, start, end)
        peer: Peer = connection.context
        context = RequestContext(peer, header.client_id, api_key, version, correlation_id, connection)
        context.lane = self.lane
        started = time.perf_counter()
        if end - header.body_position > AT_ONCE_BYTES:
            # By itself, so that it does not hold the whole of what was received.
            frame = data[start:end]
            outcome: Any = self._take_large(api, context, frame, header.body_position - start)
        else:
            # What follows it is ignored, as Apache Kafka does: librdkafka's Metadata 13 has bytes there.
            request, _ = decode_prefix(request_class(api_key), version, data, header.body_position, end)
            outcome = self._outcome(api, context, request, data, start, end)
        if inspect.iscoroutine(outcome):
            reply = connection.reply_later()
            task = self.loop.create_task(self.finish(context, outcome, reply, started))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            return
        bound_texts(outcome)
        connection.reply_now(encode_response(ApiKey(api_key), version, correlation_id, outcome))
        self.note(api_key, started)

    def _outcome(
        self, api: Api, context: RequestContext, request: Any, data: bytes, start: int, end: int
    ) -> Any:
        """What the handler answers, or a coroutine for that."""
        if api.to_controller and self._belongs_elsewhere(request):
            return self._pass_on(api, context, request, data[start:end])
        return api.handler()(self.broker, context, request)

    async def _take_large(self, api: Api, context: RequestContext, frame: bytes, body: int) -> Any:
        """What the handler answers to a request that is decoded in slices."""
        memory = self.lane.memory
        if memory is not None:
            memory.take(len(frame))
        try:
            cls = request_class(context.api_key)
            work = decode_in_slices(cls, context.api_version, frame, body, len(frame))
            request, _ = await context.turns.finish(work)
            outcome = self._outcome(api, context, request, frame, 0, len(frame))
            response = await outcome if inspect.isawaitable(outcome) else outcome
            await context.turns.finish(let_go_in_slices(request))
        finally:
            if memory is not None:
                memory.release(len(frame))
        return response

    def _belongs_elsewhere(self, request: Any) -> bool:
        """Whether the controller, another broker, has to answer. Levels of loggers are each broker's own."""
        if self.broker.controller.is_active or self.broker.controller_link is None:
            return False
        resources = getattr(request, "resources", ())
        return all(one.resource_type != ResourceType.BROKER_LOGGER for one in resources)

    async def _pass_on(self, api: Api, context: RequestContext, request: Any, data: bytes) -> Any:
        """The controller's answer; where it cannot be had, ours, which says so."""
        link = self.broker.controller_link
        answer = None
        if link is not None:
            answer = await link.forward(bytes(data), context.principal, context.client_address)
        if answer is not None:
            return SIZE.pack(len(answer)) + answer
        outcome = api.handler()(self.broker, context, request)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def finish(self, context: RequestContext, outcome: Any, reply: Reply, started: float) -> None:
        """Waits for a handler and sends what it answers."""
        connection = context.connection
        try:
            response = await outcome
            # What comes as bytes was passed on from the controller.
            parts = [response] if isinstance(response, bytes) else await self._encoded(context, response)
        except asyncio.CancelledError:
            raise
        except ProtocolError as problem:
            connection.close(str(problem))
        except StoreUnavailable as problem:
            # Whoever asked, a controller for instance, asks again over another connection.
            name = ApiKey(context.api_key).name
            log.warning("%s of %s cannot be answered: %s", name, connection.context, problem)
            connection.close_after_replies(str(problem))
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)
        else:
            if not connection.closed:
                reply.complete(parts)
            self.note(context.api_key, started)
        finally:
            context.turns.end()

    async def _encoded(self, context: RequestContext, response: Struct) -> list[bytes]:
        """A response in slices: its parts, and nothing left of it."""
        turns = context.turns
        await turns.finish(bound_texts_in_slices(response))
        parts: list[bytes] = []
        pieces: list[bytes] = []
        work = encode_in_slices(response, context.api_version, pieces)
        while True:
            ended = next(work, ENDED) is ENDED
            if ended or len(pieces) > PIECES_MAX:
                parts.append(b"".join(pieces))
                pieces.clear()
            if ended:
                break
            await turns.step()
        await turns.finish(let_go_in_slices(response))
        key = ApiKey(context.api_key)
        return [response_head(key, context.api_version, context.correlation_id, parts), *parts]

    async def stop(self) -> None:
        """Lets handlers end, and changes that outlived their requests; breaks off those that do not."""
        tasks = [*self.tasks, *going_on()]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=STOP_S_MAX)
        # A handler that is broken off leaves behind what it waited for.
        while late := [task for task in (*self.tasks, *going_on()) if not task.done()]:
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def note(self, api_key: int, started: float) -> None:
        """Counts the time that a request took."""
        found = self.durations.get(api_key)
        if found is None:
            found = self.durations[api_key] = TimeHistogram()
        found.note(time.perf_counter() - started)

    def on_close(self, connection: Connection, reason: str) -> None:
        """Forgets a connection."""
        if self.on_closed is not None:
            self.on_closed(connection, reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """Reports a fault of ours; ``problem`` carries where it came from."""
        if isinstance(problem, KafkaError):
            log.error("a request of %s failed: %s", connection.context, problem, exc_info=problem)
        else:
            log.error("a request of %s broke its handler", connection.context, exc_info=problem)

    def read_ahead(self, connection: Connection, part: FileRange, count: int) -> None:
        """Touches a range of a log file in a thread, so that sending it does not wait for the disk."""
        # What is converted while it is sent has threads of its own, so that it does not hold up the disk's.
        threads = getattr(part.file, "executor", self.readers)
        future = self.loop.run_in_executor(threads, _touch, part.file, part.position, count)
        future.add_done_callback(lambda done: _resume(connection, part, done))


def _touch(file: Any, position: int, count: int) -> None:
    end = position + count
    while position < end:
        read = len(file.read_at(position, min(READ_AHEAD_BYTES, end - position)))
        if read == 0:
            return
        position += read


def _resume(connection: Connection, part: FileRange, done: asyncio.Future[None]) -> None:
    if done.cancelled():
        return
    problem = done.exception()
    if problem is not None:
        connection.read_failed(part, problem)
    else:
        connection.resume_send()
