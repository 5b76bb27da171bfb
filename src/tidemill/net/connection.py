"""A connection that carries length-prefixed frames: bytes in, frames out to a handler, replies back in order.

    frame = size i32, then ``size`` bytes

Reading: one ``recv`` a turn of the loop. :class:`~tidemill.net.framing.FrameReader` finds the frames, which
are handed to the handler as positions in the ``bytes`` that were received.

Writing: replies leave in the order of their requests, however late one of them is decided. A reply is a
list of ``bytes`` and :class:`FileRange`; ranges go from the page cache to the socket by ``sendfile``.

Ending: when the peer sends nothing more, whole frames that came before its end are still handed on, and the
replies sent as far as it takes them; then the connection closes. A peer that takes none any more has them
dropped, and its frames handed on all the same.

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
    SOCKET_FULL,
    START,
    TURN,
    WAITING,
    after,
)
from tidemill.net.framing import NEED_DATA, FrameReader
from tidemill.net.memory_pool import (
    FREE_BYTES,
    RECEIVE_BYTES,
    UNBOUNDED,
    MemoryAccount,
    MemoryHolder,
    MemoryPool,
)
from tidemill.net.peer import Peer
from tidemill.net.send_queue import FileRange, ReplyPart, SendQueue

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

SMALL_RECEIVE_BYTES: Final = 16 * 1024
"""The buffer of a connection that sends little at a time: allocating it costs less."""
OUT_BYTES_MAX: Final = 4 * 1024 * 1024
"""With more than this unsent, no further request of the connection is looked at."""
OUT_PARTS_MAX: Final = 4096
"""The same bound for ranges of files, which hold their segments open."""
REPLIES_MAX: Final = 64
"""Requests of one connection that may wait for their replies together."""
FRAMES_A_TURN: Final = 500
"""After so many frames of one connection, one after the other, it is the turn of the others: of small ones,
one receive may have twenty thousand."""


FILE_ERRORS: Final = frozenset({errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO})
"""What ``sendfile`` answers because of the file, and never because of the socket."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameHandler:
    """What a connection hands its frames to."""

    def on_frame(self, connection: Connection, data: bytes, start: i64, end: i64) -> bool:
        """Takes the frame ``data[start:end]``. False leaves it for when the earlier replies have left.

        ProtocolError closes the connection; any other exception does too, and is reported.
        """
        raise NotImplementedError

    def on_end(self, connection: Connection) -> None:
        """The peer sends nothing more, or takes nothing more: what waits for its sake need not."""

    def on_close(self, connection: Connection, reason: str) -> None:
        """The connection is gone; replies to it go nowhere."""
        raise NotImplementedError

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        """``on_frame`` raised what it should not have."""
        raise NotImplementedError

    def read_ahead(self, connection: Connection, part: FileRange, count: i64) -> None:
        """Brings ``count`` bytes of ``part`` into memory in a thread; then ``connection.resume_send()``.

        When they cannot be read: ``connection.read_failed(part, problem)``.
        """
        raise NotImplementedError


class Stopwatch:
    """Tells ``note`` the seconds from ``started`` until a reply is there."""

    __slots__ = ("note", "started")

    def __init__(self, note: Callable[[float], None], started: float) -> None:
        self.note = note
        self.started: float = started

    def stop(self) -> None:
        """The reply is there."""
        self.note(perf_counter() - self.started)


class Reply:
    """A place in the connection's order of replies, filled now or later."""

    __slots__ = ("connection", "done", "parts", "stopwatch")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[ReplyPart] = []
        self.done = False
        self.stopwatch: Stopwatch | None = None

    def complete(self, parts: list[ReplyPart]) -> None:
        """Fills the place; it leaves once all earlier ones have. An empty list sends nothing."""
        if self.done:
            raise RuntimeError("a reply was completed twice")
        self.parts = parts
        self.done = True
        self.connection.reply_done(parts)
        stopwatch = self.stopwatch
        if stopwatch is not None:
            stopwatch.stop()
        self.connection.replies_ready()


class _NoOwner(MemoryHolder):
    """The owner of a closed connection's account, which so refers to no connection."""


_NO_OWNER: Final = _NoOwner()


class Connection(MemoryHolder):
    """One accepted socket, driven by an asyncio loop's readiness callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: FrameHandler,
        frame_bytes_max: i64,
        context: Peer,
        memory: MemoryPool | None = None,
    ) -> None:
        self.loop = loop
        self.sock = sock
        self.descriptor: int = sock.fileno()
        self.handler = handler
        self.context = context
        self.state: object = None
        """The state that the handler keeps for this connection."""
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
        self._replies: list[Reply] = []
        self._ready_bytes: i64 = 0
        """Of replies that are complete, and wait for an earlier one."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._input == INPUT_CLOSED

    @property
    def ended(self) -> bool:
        """Whether the peer sends nothing more: the connection closes once its requests are answered."""
        return self._input >= ENDED

    @property
    def deaf(self) -> bool:
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
        """When bytes arrived or left last, as :attr:`MemoryPool.uses` counts time."""
        return self.account.last_use

    def last_reply(self) -> Reply | None:
        """The place of the newest request, when there is one and it is not filled yet."""
        if not self._replies:
            return None
        last = self._replies[len(self._replies) - 1]
        return None if last.done else last

    def start(self) -> None:
        """Begins to read."""
        self._set_input(START)

    @property
    def waiting(self) -> bool:
        """Whether a reply to an earlier request is still to come."""
        return len(self._replies) > 0

    def _is_open(self) -> bool:
        """As ``not closed``, for where a call in between may close the connection."""
        return self._input != INPUT_CLOSED

    # Transitions.

    def _set_input(self, event: i64) -> None:
        """Changes the input's state; the loop watches the socket in READING alone."""
        before: i64 = self._input
        following: i64 = after(INPUT, before, event)
        if following != before:
            self._input = following
            if following == READING:
                self.loop.add_reader(self.descriptor, self.readable)
            elif before == READING:
                self.loop.remove_reader(self.descriptor)

    def _set_output(self, event: i64) -> None:
        """Changes the output's state; the loop watches the socket for writing in SOCKET_FULL alone."""
        before: i64 = self._output
        following: i64 = after(OUTPUT, before, event)
        if following != before:
            self._output = following
            if following == SOCKET_FULL:
                self.loop.add_writer(self.descriptor, self.writable)
            elif before == SOCKET_FULL:
                self.loop.remove_writer(self.descriptor)

    def _set_dispatch(self, event: i64) -> None:
        self._dispatch = after(DISPATCH, self._dispatch, event)

    @property
    def _is_dispatching(self) -> bool:
        return self._dispatch == DISPATCHING or self._dispatch == DISPATCHING_SCHEDULED

    @property
    def _is_scheduled(self) -> bool:
        return self._dispatch >= SCHEDULED

    # Reading.

    def readable(self) -> None:
        """The socket has bytes, or has ended."""
        if self.memory.full:
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
        self._receive_bytes = RECEIVE_BYTES if count >= SMALL_RECEIVE_BYTES else SMALL_RECEIVE_BYTES
        account = self.account
        self.memory.uses += 1
        account.last_use = self.memory.uses
        account.bytes_in += count
        frames = self.frames
        waiting: i64 = frames.unread_bytes
        frames.receive(data)
        if waiting > 0 and waiting + count > RECEIVE_BYTES:
            # Complete frames wait for an earlier response: no more than one receive is held beside them.
            self._set_input(FRAMES_WAIT)
        if frames.unread_bytes > 0:
            self._handle_frames()
        else:
            self._count()

    def _count(self) -> None:
        """Reports to the common bound how much is held here, when that has changed."""
        if self.closed:
            return
        unsent: i64 = self.output.memory_bytes + self._ready_bytes
        held: i64 = self.frames.held_bytes + unsent
        account = self.account
        if held != account.held_bytes:
            self.memory.change(account, held)
        if unsent != account.unsent_bytes and not self.closed:
            self.memory.set_unsent(account, unsent)

    def missing_bytes(self) -> i64:
        """The bytes that the partial frame misses which is held; 0 when there is none."""
        return self.frames.missing_bytes if self.frames.has_partial else 0

    def pause_reading(self) -> None:
        """Leaves what arrives to the system's buffers, until :meth:`resume_reading`."""
        self._set_input(MEMORY_SHORT)

    def resume_reading(self) -> None:
        """Reads again, unless the connection itself waits."""
        self._set_input(MEMORY_FREE)

    def _handle_frames(self) -> None:
        """Hands on the complete frames, and sends what they caused, until one has to wait."""
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
            # The next request may have waited for what was sent: then nothing else handles it.
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
        """Closes when the peer has ended and everything is done; counts what is held otherwise."""
        if (
            self.ended
            and not self._replies
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
            self.close_after_replies(str(problem))
        except Exception as problem:  # noqa: BLE001 - one broken request must not end the loop for all others
            self.crash(problem)
        return True

    def _next_frames(self) -> bool:
        """Hands on frames; False when no complete frame is left, True when the next one has to wait."""
        frames = self.frames
        output = self.output
        handled: i64 = 0
        start: i64 = frames.next_frame()
        while start != NEED_DATA:
            unsent: i64 = output.memory_bytes + self._ready_bytes
            if (
                len(self._replies) >= REPLIES_MAX
                or unsent > OUT_BYTES_MAX
                or (unsent > FREE_BYTES and self.memory.is_short)
                or len(output.parts) > OUT_PARTS_MAX
            ):
                return True
            if handled == FRAMES_A_TURN:
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
            self._go_on()

    # Replying.

    def reply_now(self, part: bytes) -> None:
        """The whole reply to the request that is being handled."""
        if self._replies:
            reply = Reply(self)
            reply.parts = [part]
            reply.done = True
            self._ready_bytes += len(part)
            self._replies.append(reply)
        elif not self.closed:
            self.output.append(part)

    def reply_later(self) -> Reply:
        """A place in the order for the request that is being handled."""
        reply = Reply(self)
        self._replies.append(reply)
        return reply

    def reply_done(self, parts: list[ReplyPart]) -> None:
        """One of the replies has its bytes, which are counted until they are sent."""
        for part in parts:
            if isinstance(part, bytes):
                self._ready_bytes += len(part)

    def replies_ready(self) -> None:
        """Moves finished replies from the head of the order to the output."""
        if self.closed:
            self._replies = []
            return
        ready: i64 = 0
        is_sent = not self.deaf
        for reply in self._replies:
            if not reply.done:
                break
            ready += 1
            for part in reply.parts:
                if isinstance(part, bytes):
                    self._ready_bytes -= len(part)
                if is_sent:
                    self.output.append_part(part)
        if ready == 0:
            self._count()
            return
        self._replies = self._replies[ready:]
        if self._is_dispatching:
            return
        if self.output.parts:
            self._flush()
        self._go_on()

    def resume_frames(self) -> None:
        """Handles further frames in the next turn of the loop."""
        if not self._is_scheduled and not self.closed:
            self._set_dispatch(SCHEDULE)
            self.loop.call_soon(self._take_turn)

    def _go_on(self) -> None:
        """Handles the requests that had to wait."""
        if not self.closed and self.frames.unread_bytes > 0:
            self._handle_frames()
        else:
            self._close_if_done()

    # Sending.

    def writable(self) -> None:
        """The socket takes bytes again."""
        self._flush()
        self._go_on()

    def resume_send(self) -> None:
        """The range that was read ahead is in memory now."""
        self._set_output(FILE_READ)
        if not self.closed:
            self._flush()
            self._go_on()

    def _flush(self) -> None:
        """Sends as much as the socket takes."""
        if self._output == FILE_READ_AHEAD:
            return
        if self.deaf:
            self.output.clear()
            return
        event: i64 = SEND_LATER
        try:
            event = self.output.send()
        except (BlockingIOError, InterruptedError):
            pass
        except (ConnectionError, TimeoutError) as problem:
            # What the peer had sent before it went is still read, to its end.
            if not self._end_reason:
                self._end_reason = f"send failed: {problem}"
            self._break_output()
            if self._replies:
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
        """The peer receives nothing more."""
        self.output.clear()
        self._set_output(PEER_GONE)

    def read_failed(self, part: FileRange, problem: BaseException) -> None:
        """A file that was to be sent cannot be read: the reply cannot be finished, nor followed by others."""
        if part.owner is not None and isinstance(problem, OSError):
            part.owner.on_read_failed(part.file, problem)
        self.close(f"{part.count} bytes of a file could not be sent: {problem}")

    # Ending.

    def _end(self, reason: str) -> None:
        """The peer sends nothing more."""
        self._set_input(PEER_ENDED)
        if not self._end_reason:
            self._end_reason = reason
        self.frames.drop_partial()
        if self._replies:
            self.handler.on_end(self)
        self._close_if_done()

    def crash(self, problem: BaseException) -> None:
        """A request of this connection broke its handler: that is reported, and the connection ended."""
        self.handler.on_crash(self, problem)
        self.close_after_replies("a request failed unexpectedly")

    def close_after_replies(self, reason: str) -> None:
        """Ends the connection, once the replies that are ready were given to the socket, as far as it takes
        them: the requests before a bad one were carried out, and their client should know."""
        if self.output.parts:
            self._flush()
        self.close(reason)

    def close(self, reason: str) -> None:
        """Ends the connection at once. Calling it again does nothing."""
        if self.closed:
            return
        self._set_input(CLOSE_INPUT)
        self._set_output(CLOSE_OUTPUT)
        self.sock.close()
        self._replies = []
        self.output.clear()
        self.frames.clear()
        self.memory.forget(self.account)
        self.account.owner = _NO_OWNER
        self.handler.on_close(self, reason)
