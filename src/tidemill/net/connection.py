"""An accepted connection: receives length-prefixed frames, and sends the responses in order. Compiled.

    frame = size i32, then ``size`` bytes

Reading: one ``recv`` per turn of the event loop. :class:`~tidemill.net.framing.FrameReader` finds the frames.
The handler gets them as positions in the received ``bytes``.

Writing: responses are sent in the order of their requests, whatever the order in which they complete. A
response is a list of ``bytes`` and :class:`FileRange`. ``sendfile`` sends ranges from the page cache.

Closing: after the end of the stream, complete frames are handled and their responses sent; then the
connection closes. If the peer receives nothing more, responses are dropped and frames still handled.

The states of input, output and dispatch, and their transitions, are in :mod:`tidemill.net.connection_state`.
"""

from __future__ import annotations

import errno
from time import perf_counter
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from tidemill.model.errors import ProtocolError
from tidemill.net.connection_state import (
    ALL_SENT,
    BEGIN,
    BOTH_PAUSED,
    BROKEN,
    CLOSE_INPUT,
    CLOSE_OUTPUT,
    DISPATCH,
    DISPATCHING,
    DISPATCHING_SCHEDULED,
    ENDED,
    FILE_READ,
    FILE_READ_AHEAD,
    FINISH,
    FRAMES_HANDLED,
    FRAMES_PAUSED,
    FRAMES_WAIT,
    IDLE,
    INPUT,
    INPUT_CLOSED,
    MEMORY_FREE,
    MEMORY_SHORT,
    NEW,
    OUTPUT,
    PEER_ENDED,
    PEER_GONE,
    READ_FILE,
    READING,
    SCHEDULE,
    SCHEDULED,
    SEND_LATER,
    START,
    TURN,
    WAITING,
    WRITING,
)
from tidemill.net.framing import NEED_DATA, FrameReader
from tidemill.net.memory_pool import (
    EXEMPT_BYTES,
    RECEIVE_BYTES_MAX,
    UNBOUNDED,
    MemoryAccount,
    MemoryHolder,
    MemoryPool,
)
from tidemill.net.peer import Peer
from tidemill.net.send_queue import FileRange, ResponsePart, SendQueue

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

SMALL_RECEIVE_BYTES: Final = 16 * 1024
"""The size of one receive while the peer sends little: a small buffer costs less to allocate."""
OUT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Above this number of unsent bytes no further request is handled."""
OUT_PARTS_MAX: Final = 4096
"""Above this number of unsent parts no further request is handled: file ranges keep their segments open."""
PENDING_RESPONSES_MAX: Final = 64
"""The limit for pending responses of one connection."""
FRAMES_PER_TURN: Final = 500
"""Frames handled per turn of the event loop. One receive may contain 20,000 small frames."""
TURN_SECONDS_MAX: Final = 0.01
"""After this time the next frame waits for the next turn, so that other connections wait little."""

FILE_ERRORS: Final = frozenset({errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO})
"""Errors of ``sendfile`` that are caused by the file."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """Handles the frames of connections."""

    def on_frame(self, connection: Connection, data: bytes, start: i64, end: i64) -> bool:
        """Handles the frame ``data[start:end]``. Returns False if it has to wait for earlier responses.

        A ProtocolError closes the connection. Any other exception closes it as well, and is reported.
        """
        raise NotImplementedError

    def on_end(self, connection: Connection) -> None:
        """Called when the peer sends, or receives, nothing more. Completes delayed operations."""

    def on_close(self, connection: Connection, reason: str) -> None:
        """Called after the connection is closed. Later responses are dropped."""
        raise NotImplementedError

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """Called with an unexpected exception of a request."""
        raise NotImplementedError

    def read_ahead(self, connection: Connection, part: FileRange, count: i64) -> None:
        """Reads ``count`` bytes of ``part`` into the page cache in a thread, then calls ``resume_send()``.

        Calls ``connection.read_failed(part, problem)`` if they cannot be read.
        """
        raise NotImplementedError


class Stopwatch:
    """Passes the seconds from ``started`` until a response is complete to ``record``."""

    __slots__ = ("record", "started")

    def __init__(self, record: Callable[[float], None], started: float) -> None:
        self.record = record
        self.started: float = started

    def stop(self) -> None:
        """Called when the response is complete."""
        self.record(perf_counter() - self.started)


class PendingResponse:
    """A response in the order of the requests."""

    __slots__ = ("blocks_requests", "connection", "done", "parts", "stopwatch")

    def __init__(self, connection: Connection, blocks_requests: bool) -> None:
        self.connection = connection
        self.parts: list[ResponsePart] = []
        self.done = False
        self.blocks_requests = blocks_requests
        """Whether later requests wait for the response, until :meth:`unblock_requests` is called."""
        self.stopwatch: Stopwatch | None = None

    def complete(self, parts: list[ResponsePart]) -> None:
        """Completes the response, which is sent after all earlier ones. An empty list sends nothing."""
        if self.done:
            raise RuntimeError("a response was completed twice")
        self.parts = parts
        self.done = True
        self.connection.count_response(parts)
        stopwatch = self.stopwatch
        if stopwatch is not None:
            stopwatch.stop()
        self.connection.send_ready_responses()

    def unblock_requests(self) -> None:
        """Lets the connection handle later requests, from the next turn of the loop on."""
        if self.blocks_requests:
            self.blocks_requests = False
            self.connection.resume_frames()


class _NoOwner(MemoryHolder):
    """Replaces the owner of a closed connection's account, so that the account keeps no connection."""


_NO_OWNER: Final = _NoOwner()


class Connection(MemoryHolder):
    """One accepted socket, driven by an asyncio loop's readiness callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: FrameHandler,
        frame_bytes_max: i64,
        peer: Peer,
        memory: MemoryPool | None = None,
    ) -> None:
        self.loop = loop
        self.sock = sock
        self.descriptor: int = sock.fileno()
        self.handler = handler
        self.peer = peer
        self.memory: MemoryPool = MemoryPool(loop, UNBOUNDED) if memory is None else memory
        self.account = MemoryAccount(self)
        self.account.last_use = self.memory.uses
        self.frames = FrameReader(0, frame_bytes_max, "a frame", "socket.request.max.bytes")
        self.output = SendQueue(sock, self.memory, self.account)
        self._input: i64 = NEW
        self._output: i64 = IDLE
        self._dispatch: i64 = WAITING
        self._receive_bytes: i64 = SMALL_RECEIVE_BYTES
        self._end_reason = ""
        self._responses: list[PendingResponse] = []
        self._ready_bytes: i64 = 0
        """The bytes of complete responses that wait for an earlier response."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._input == INPUT_CLOSED

    @property
    def ended(self) -> bool:
        """Whether the peer sends nothing more: the connection closes after its responses."""
        return self._input >= ENDED

    @property
    def is_output_broken(self) -> bool:
        """Whether the peer receives nothing more."""
        return self._output >= BROKEN

    @property
    def bytes_in(self) -> i64:
        """Bytes received."""
        return self.account.bytes_in

    @property
    def bytes_out(self) -> i64:
        """Bytes sent."""
        return self.account.bytes_out

    @property
    def last_use(self) -> i64:
        """The time of the last received or sent bytes, in units of :attr:`MemoryPool.uses`."""
        return self.account.last_use

    def last_pending_response(self) -> PendingResponse | None:
        """The response to the newest request; None if it is complete."""
        if not self._responses:
            return None
        last = self._responses[len(self._responses) - 1]
        return None if last.done else last

    def start(self) -> None:
        """Starts reading."""
        self._set_input(START)

    @property
    def has_pending_responses(self) -> bool:
        """Whether a response to an earlier request is not complete, or waits for an earlier response."""
        return len(self._responses) > 0

    @property
    def is_blocked(self) -> bool:
        """Whether the response to the newest request blocks later requests."""
        last = self.last_pending_response()
        return last is not None and last.blocks_requests

    def _is_open(self) -> bool:
        """Whether the connection is open. A method: mypy narrows the property ``closed`` across calls."""
        return self._input != INPUT_CLOSED

    # Transitions.

    def _set_input(self, event: i64) -> None:
        """Changes the state of the input. The event loop watches the socket for reading only in READING."""
        before: i64 = self._input
        following: i64 = INPUT.after(before, event)
        if following != before:
            self._input = following
            if following == READING:
                self.loop.add_reader(self.descriptor, self.readable)
            elif before == READING:
                self.loop.remove_reader(self.descriptor)

    def _set_output(self, event: i64) -> None:
        """Changes the state of the output. The event loop watches the socket for writing only in WRITING."""
        before: i64 = self._output
        following: i64 = OUTPUT.after(before, event)
        if following != before:
            self._output = following
            if following == WRITING:
                self.loop.add_writer(self.descriptor, self.writable)
            elif before == WRITING:
                self.loop.remove_writer(self.descriptor)

    def _set_dispatch(self, event: i64) -> None:
        self._dispatch = DISPATCH.after(self._dispatch, event)

    @property
    def _is_dispatching(self) -> bool:
        return self._dispatch == DISPATCHING or self._dispatch == DISPATCHING_SCHEDULED

    @property
    def _is_scheduled(self) -> bool:
        return self._dispatch >= SCHEDULED

    # Reading.

    def readable(self) -> None:
        """Called when the socket has bytes, an error, or the end of the stream."""
        if self.memory.is_reading_stopped:
            self.memory.pause(self.account)
            return
        try:
            data: bytes = self.sock.recv(self._receive_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._break_output()
            self._end(f"receive failed: {problem}")
            return
        count: i64 = len(data)
        if count == 0:
            self._end("closed by the peer")
            return
        self._receive_bytes = RECEIVE_BYTES_MAX if count >= SMALL_RECEIVE_BYTES else SMALL_RECEIVE_BYTES
        account = self.account
        self.memory.uses += 1
        account.last_use = self.memory.uses
        account.bytes_in += count
        frames = self.frames
        waiting: i64 = frames.unread_bytes
        frames.receive(data)
        if waiting > 0 and waiting + count > RECEIVE_BYTES_MAX:
            # Complete frames wait for an earlier response: at most one further receive is held.
            self._set_input(FRAMES_WAIT)
        if frames.unread_bytes > 0:
            self._handle_frames()
        else:
            self._count()

    def _count(self) -> None:
        """Reports changed byte counts to the memory pool."""
        if self.closed:
            return
        unsent: i64 = self.output.memory_bytes + self._ready_bytes
        held: i64 = self.frames.held_bytes + unsent
        account = self.account
        if held != account.held_bytes:
            self.memory.set_held(account, held)
        if unsent != account.unsent_bytes and not self.closed:
            self.memory.set_unsent(account, unsent)

    def missing_bytes(self) -> i64:
        """Returns the number of bytes that the partial frame lacks; 0 without a partial frame."""
        return self.frames.missing_bytes if self.frames.has_partial else 0

    def pause_reading(self) -> None:
        """Stops reading until :meth:`resume_reading`. Arriving bytes stay in the buffers of the system."""
        self._set_input(MEMORY_SHORT)

    def resume_reading(self) -> None:
        """Reads again, unless complete frames wait."""
        self._set_input(MEMORY_FREE)

    def _handle_frames(self) -> None:
        """Handles complete frames and sends their responses, until a frame has to wait."""
        if self._is_dispatching:
            return
        self._set_dispatch(BEGIN)
        frames = self.frames
        while self._is_open():
            before = frames.position
            blocked = self._try_frames()
            if not self._is_open():
                break
            if not blocked:
                if self.ended:
                    frames.clear()
                elif self._input >= FRAMES_PAUSED and self._input <= BOTH_PAUSED:
                    self._set_input(FRAMES_HANDLED)
            had_output = len(self.output.parts) > 0
            if had_output:
                self._flush()
            # The next request may have waited for the sent bytes: no later event handles it.
            if (
                not blocked
                or self.output.parts
                or self._is_scheduled
                or (frames.position == before and not had_output)
            ):
                break
        self._set_dispatch(FINISH)
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Closes the connection if its peer has ended and all responses are sent. Counts the held bytes."""
        if (
            self.ended
            and not self._responses
            and not self.output.parts
            and not self._is_dispatching
            and self.frames.unread_bytes <= 0
        ):
            self.close(self._end_reason)
        self._count()

    def _try_frames(self) -> bool:
        try:
            return self._next_frames()
        except ProtocolError as problem:
            self.close_after_responses(str(problem))
        except Exception as problem:  # noqa: BLE001 - a failed request must not affect other connections
            self.crash(problem)
        return True

    def _next_frames(self) -> bool:
        """Handles frames. Returns False if no complete frame is left, True if the next frame has to wait."""
        frames = self.frames
        output = self.output
        handled: i64 = 0
        turn_end_s: float = self.loop.time() + TURN_SECONDS_MAX
        start: i64 = frames.next_frame()
        while start != NEED_DATA:
            unsent: i64 = output.memory_bytes + self._ready_bytes
            if (
                len(self._responses) >= PENDING_RESPONSES_MAX
                or unsent > OUT_BYTES_MAX
                or (unsent > EXEMPT_BYTES and self.memory.is_short)
                or len(output.parts) > OUT_PARTS_MAX
            ):
                return True
            if handled > 0 and (handled == FRAMES_PER_TURN or self.loop.time() > turn_end_s):
                self.resume_frames()
                return True
            handled += 1
            if not self.handler.on_frame(self, frames.data, start, frames.end):
                return True
            frames.consume()
            start = frames.next_frame()
            if self.closed:
                return True
        return False

    def _take_turn(self) -> None:
        self._set_dispatch(TURN)
        if not self.closed:
            self._continue()

    # Responses.

    def respond_now(self, part: bytes) -> None:
        """Sends the complete response to the request that is being handled."""
        if self._responses:
            response = PendingResponse(self, False)
            response.parts = [part]
            response.done = True
            self._ready_bytes += len(part)
            self._responses.append(response)
        elif not self.closed:
            self.output.append(part)

    def respond_later(self, blocks_requests: bool = True) -> PendingResponse:
        """Returns the response to the request that is being handled, to be completed later.

        ``blocks_requests``: no later request overtakes this one (:meth:`PendingResponse.unblock_requests`).
        """
        response = PendingResponse(self, blocks_requests)
        self._responses.append(response)
        return response

    def count_response(self, parts: list[ResponsePart]) -> None:
        """Counts the bytes of a completed response until they are sent."""
        for part in parts:
            if isinstance(part, bytes):
                self._ready_bytes += len(part)

    def send_ready_responses(self) -> None:
        """Moves complete responses to the output, up to the first pending one."""
        if self.closed:
            self._responses = []
            return
        ready: i64 = 0
        is_sent = not self.is_output_broken
        for response in self._responses:
            if not response.done:
                break
            ready += 1
            for part in response.parts:
                if isinstance(part, bytes):
                    self._ready_bytes -= len(part)
                if is_sent:
                    self.output.append_part(part)
        if ready == 0:
            self._count()
            return
        self._responses = self._responses[ready:]
        if self._is_dispatching:
            return
        if self.output.parts:
            self._flush()
        self._continue()

    def resume_frames(self) -> None:
        """Handles further frames in the next turn of the loop."""
        if not self._is_scheduled and not self.closed:
            self._set_dispatch(SCHEDULE)
            self.loop.call_soon(self._take_turn)

    def _continue(self) -> None:
        """Handles the waiting frames, or closes the connection if it is done."""
        if not self.closed and self.frames.unread_bytes > 0:
            self._handle_frames()
        else:
            self._close_if_done()

    # Sending.

    def writable(self) -> None:
        """Called when the socket accepts bytes again."""
        self._flush()
        self._continue()

    def resume_send(self) -> None:
        """Called when the range that was read ahead is in memory."""
        self._set_output(FILE_READ)
        if not self.closed:
            self._flush()
            self._continue()

    def _flush(self) -> None:
        """Sends as much as the socket accepts."""
        if self._output == FILE_READ_AHEAD:
            return
        if self.is_output_broken:
            self.output.clear()
            return
        event: i64 = SEND_LATER
        try:
            event = self.output.send()
        except (BlockingIOError, InterruptedError):
            pass
        except (ConnectionError, TimeoutError) as problem:
            # The bytes that the peer sent before are still read.
            if not self._end_reason:
                self._end_reason = f"send failed: {problem}"
            self._break_output()
            if self._responses:
                self.handler.on_end(self)
            return
        except OSError as problem:
            part = self.output.first
            if isinstance(part, FileRange) and problem.errno in FILE_ERRORS:
                self.read_failed(part, problem)
            else:
                self.close(f"send failed: {problem}")
            return
        if event != ALL_SENT or self._output != IDLE:
            self._set_output(event)
        if event == READ_FILE:
            cold = self.output.cold_range
            self.output.cold_range = None
            if cold is not None:
                self.handler.read_ahead(self, cold, self.output.cold_bytes)

    def _break_output(self) -> None:
        """Drops the output, as the peer receives nothing more."""
        self.output.clear()
        self._set_output(PEER_GONE)

    def read_failed(self, part: FileRange, problem: BaseException) -> None:
        """Closes the connection after a failed read of a file: the rest of its response cannot be sent."""
        if part.owner is not None and isinstance(problem, OSError):
            part.owner.on_read_failed(part.file, problem)
        self.close(f"{part.count} bytes of a file could not be sent: {problem}")

    # Closing.

    def _end(self, reason: str) -> None:
        """Handles the end of the stream: the peer sends nothing more."""
        self._set_input(PEER_ENDED)
        if not self._end_reason:
            self._end_reason = reason
        self.frames.drop_partial()
        if self._responses:
            self.handler.on_end(self)
        self._close_if_done()

    def crash(self, problem: BaseException) -> None:
        """Reports an exception of the handler, and closes the connection."""
        self.handler.on_crash(self, problem)
        self.close_after_responses("a request failed unexpectedly")

    def close_after_responses(self, reason: str) -> None:
        """Sends as much of the complete responses as the socket accepts, and closes the connection.

        The requests before an invalid one were handled: the client gets their responses.
        """
        if self.output.parts:
            self._flush()
        self.close(reason)

    def close(self, reason: str) -> None:
        """Closes the connection at once. Further calls do nothing.

        The handler logs the reason before the socket is closed. A peer that sees the end finds it in the log.
        """
        if self.closed:
            return
        self._set_input(CLOSE_INPUT)
        self._set_output(CLOSE_OUTPUT)
        self._responses = []
        self.output.clear()
        self.frames.clear()
        self.memory.remove(self.account)
        self.account.owner = _NO_OWNER
        try:
            self.handler.on_close(self, reason)
        finally:
            self.sock.close()
