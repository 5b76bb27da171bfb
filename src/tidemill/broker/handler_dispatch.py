"""Dispatches all requests except Produce and Fetch: decodes them, calls the handler, encodes the response.

A handler is a function or coroutine function of (broker, context, request). Errors that the protocol has
codes for are part of the response. An exception of a handler is logged with its traceback, and closes the
connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeAlias

from tidemill.broker.api_declaration import HandledApi, response_of
from tidemill.broker.api_registry import api_for
from tidemill.broker.error_texts import bound_texts_in_slices
from tidemill.broker.handlers import api_versions
from tidemill.broker.handlers.common import unfinished_work
from tidemill.broker.kafka_apis import ApiRequestHandler
from tidemill.broker.large_requests import LargeRequestQueue
from tidemill.broker.request_context import RequestContext
from tidemill.controller.configuration_control import ResourceType
from tidemill.coordination.coordination_store import StoreUnavailable
from tidemill.model.errors import KafkaError, ProtocolError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.system_interfaces import File
from tidemill.model.task_set import TaskSet, cancel_all
from tidemill.model.time_histogram import TimeHistogram
from tidemill.net.connection import Connection, PendingResponse
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.send_queue import FileRange, ResponsePart
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import decode_in_slices, decode_prefix, encode_in_slices
from tidemill.wire.header import encode_response, parse_request_header, response_head
from tidemill.wire.messages import alter_configs, incremental_alter_configs
from tidemill.wire.schema import Struct, release_in_slices

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel

logger = logging.getLogger("tidemill.broker")

SIZE = struct.Struct(">i")
READ_AHEAD_BYTES = 1024 * 1024
UNSLICED_BYTES_MAX = 4 * 1024
"""Larger requests are decoded in slices. Decoding this size takes half a millisecond."""
PIECES_PER_PART = 2000
"""Encoded pieces of a response that are joined at a time."""
STOP_S_MAX = 5.0
"""How long a stop waits for running handlers, for instance for a change of the cluster."""

ForwardedOutcome: TypeAlias = Struct | Coroutine[object, object, Struct | bytes]
"""The outcome of a handler, or a coroutine that returns the encoded response of the controller."""


class HandlerDispatch(ApiRequestHandler):
    """Calls the handlers of requests, and sends their responses."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        memory: MemoryPool,
    ) -> None:
        self.broker = broker
        self.queue = LargeRequestQueue(memory)
        self.loop = loop
        self.readers = readers
        self.tasks = TaskSet(loop)
        self.durations: dict[int, TimeHistogram] = {}
        """The durations of requests, by API key."""
        self.on_closed: Callable[[Connection, str], None] | None = None
        """Called when a connection has closed, with the reason."""

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
        """Handles one request. Raises ProtocolError, which closes the connection."""
        if api_key == ApiKey.API_VERSIONS and not api_versions.API.has_version(version):
            response = api_versions.unsupported()
            connection.respond_now(encode_response(ApiKey.API_VERSIONS, 0, correlation_id, response))
            return
        api = api_for(api_key, version)
        header = parse_request_header(data, start, end)
        context = RequestContext(connection.peer, header.client_id, api_key, version, correlation_id)
        context.queue = self.queue
        started = time.perf_counter()
        if end - header.body_position > UNSLICED_BYTES_MAX:
            # A copy, so that the task does not keep the whole receive buffer in memory.
            frame = data[start:end]
            outcome: ForwardedOutcome = self._handle_in_slices(
                api, context, frame, header.body_position - start
            )
        else:
            # Bytes behind the request are ignored, as in Apache Kafka: librdkafka's Metadata 13 has some.
            request, _ = decode_prefix(api.request_class(), version, data, header.body_position, end)
            outcome = self._call_handler(api, context, request, data, start, end)
        if not isinstance(outcome, Struct):
            reply = connection.respond_later()
            self.tasks.start(self._respond(context, outcome, reply, started))
            return
        run_at_once(bound_texts_in_slices(outcome))
        connection.respond_now(encode_response(ApiKey(api_key), version, correlation_id, outcome))
        self._record_duration(api_key, started)

    def _call_handler(
        self, api: HandledApi, context: RequestContext, request: Struct, data: bytes, start: int, end: int
    ) -> ForwardedOutcome:
        """Returns the handler's response, or a coroutine that returns it."""
        channel = self._channel_for(request) if api.to_controller else None
        if channel is not None:
            return self._forward(channel, api, context, request, data[start:end])
        return api.handle(self.broker, context, request)

    async def _handle_in_slices(
        self, api: HandledApi, context: RequestContext, frame: bytes, body: int
    ) -> Struct | bytes:
        """Decodes a request in slices, and returns the handler's response."""
        self.queue.memory.reserve(len(frame))
        try:
            work = decode_in_slices(api.request_class(), context.api_version, frame, body, len(frame))
            request, _ = await context.slices.run(work)
            outcome = self._call_handler(api, context, request, frame, 0, len(frame))
            response = outcome if isinstance(outcome, Struct) else await outcome
            await context.slices.run(release_in_slices(request))
        finally:
            self.queue.memory.release(len(frame))
        return response

    def _channel_for(self, request: Struct) -> BrokerToControllerChannel | None:
        """Returns the channel to the controller in another broker; None if this broker handles the request.

        Each broker has loggers of its own.
        """
        if self.broker.controller.is_active or self.broker.cluster is None:
            return None
        if isinstance(
            request,
            alter_configs.AlterConfigsRequest | incremental_alter_configs.IncrementalAlterConfigsRequest,
        ) and any(one.resource_type == ResourceType.BROKER_LOGGER for one in request.resources):
            return None
        return self.broker.cluster.controller_channel

    async def _forward(
        self,
        channel: BrokerToControllerChannel,
        api: HandledApi,
        context: RequestContext,
        request: Struct,
        data: bytes,
    ) -> Struct | bytes:
        """Returns the controller's response, or without one this broker's, which contains the error."""
        response = await channel.forward(bytes(data), context.principal, context.client_address)
        if response is not None:
            return SIZE.pack(len(response)) + response
        return await response_of(api.handle(self.broker, context, request))

    async def _respond(
        self,
        context: RequestContext,
        outcome: Coroutine[object, object, Struct | bytes],
        reply: PendingResponse,
        started: float,
    ) -> None:
        """Waits for a handler, and sends its response."""
        connection = reply.connection
        try:
            response = await outcome
            # The response to a forwarded request arrives as bytes.
            parts: list[ResponsePart] = (
                [response] if isinstance(response, bytes) else await self._encoded(context, response)
            )
        except ProtocolError as problem:
            connection.close(str(problem))
        except StoreUnavailable as problem:
            # The client, for instance a controller, sends the request again over another connection.
            name = ApiKey(context.api_key).name
            logger.warning("%s of %s gets no response: %s", name, connection.peer, problem)
            connection.close_after_responses(str(problem))
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)
        else:
            if not connection.closed:
                reply.complete(parts)
            self._record_duration(context.api_key, started)
        finally:
            context.slices.end()

    async def _encoded(self, context: RequestContext, response: Struct) -> list[ResponsePart]:
        """Encodes a response in slices, and releases it. Returns the parts."""
        slices = context.slices
        await slices.run(bound_texts_in_slices(response))
        parts: list[bytes] = []
        pieces: list[bytes] = []
        for _ in encode_in_slices(response, context.api_version, pieces):
            if len(pieces) > PIECES_PER_PART:
                parts.append(b"".join(pieces))
                pieces.clear()
            await slices.step()
        parts.append(b"".join(pieces))
        await slices.run(release_in_slices(response))
        key = ApiKey(context.api_key)
        return [response_head(key, context.api_version, context.correlation_id, parts), *parts]

    async def stop(self) -> None:
        """Waits for running handlers and for changes that outlive their requests.

        Cancels them after a while.
        """
        tasks = [*self.tasks, *unfinished_work()]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=STOP_S_MAX)
        # A cancelled handler leaves the task for which it has waited.
        while late := [task for task in (*self.tasks, *unfinished_work()) if not task.done()]:
            await cancel_all(late)

    def _record_duration(self, api_key: int, started: float) -> None:
        """Records the duration of a request."""
        found = self.durations.get(api_key)
        if found is None:
            found = self.durations[api_key] = TimeHistogram()
        found.record(time.perf_counter() - started)

    def on_close(self, connection: Connection, reason: str) -> None:
        """Notifies the broker that a connection has closed."""
        if self.on_closed is not None:
            self.on_closed(connection, reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """Logs an exception of a handler."""
        if isinstance(problem, KafkaError):
            logger.error("a request of %s failed: %s", connection.peer, problem, exc_info=problem)
        else:
            logger.error("the handler of a request of %s failed", connection.peer, exc_info=problem)

    def read_ahead(self, connection: Connection, part: FileRange, count: int) -> None:
        """Reads a range of a log file into the page cache in a thread, so that sendfile does not wait."""
        # A converted range has threads of its own, so that the readers of the disk do not wait for
        # conversions.
        threads = part.file.executor or self.readers
        future = self.loop.run_in_executor(threads, _touch, part.file, part.position, count)
        future.add_done_callback(lambda done: _resume(connection, part, done))


def _touch(file: File, position: int, count: int) -> None:
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
