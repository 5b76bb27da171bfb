"""A connection that carries length-prefixed frames: bytes in, frames out to a handler, replies back in order.

    frame = size i32, then ``size`` bytes

Reading: one ``recv`` a turn of the loop. Frames are handed on as positions in the ``bytes`` that were
received; only a frame that spans several receives is joined, once. What a frame claims to be is never
allocated, only what has arrived.

Writing: replies leave in the order of their requests, however late one of them is decided. A reply is a
list of ``bytes`` and :class:`FileRange`; ranges go from the page cache to the socket by ``sendfile``.

Ending: when the peer sends nothing more, whole frames that came before its end are still handed on, and the
replies sent as far as it takes them; then the connection closes. A peer that takes none any more has them
dropped, and its frames handed on all the same.
"""

from __future__ import annotations

import errno
from time import perf_counter
from typing import Any, Final

from librt.strings import read_i32_be
from mypy_extensions import i64, mypyc_attr

from tidemill.model.errors import ProtocolError
from tidemill.model.ports import File
from tidemill.net.memory import FREE_BYTES, RECEIVE_BYTES, UNBOUNDED, Memory
from tidemill.net.sending import FileRange, Sender

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

    def on_read_failed(self, connection: Connection, file: File, problem: BaseException) -> None:
        """``file`` could not be read, with OSError or whatever else it raised."""


class Stopwatch:
    """Tells ``note`` the seconds from ``started`` until a reply is there."""

    __slots__ = ("note", "started")

    def __init__(self, note: Any, started: float) -> None:
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
        self.parts: list[Any] = []
        self.done = False
        self.stopwatch: Stopwatch | None = None

    def complete(self, parts: list[Any]) -> None:
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


class Connection(Sender):
    """One accepted socket, driven by an asyncio loop's readiness callbacks."""

    def __init__(
        self,
        loop: Any,
        sock: Any,
        handler: FrameHandler,
        frame_bytes_max: i64,
        context: Any,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(sock, Memory(loop, UNBOUNDED) if memory is None else memory)
        self.loop = loop
        self.handler = handler
        self.frame_bytes_max: i64 = frame_bytes_max
        self.context = context
        self.state: Any = None
        """What the handler keeps for this connection."""
        self.closed = False
        self.ended = False
        """The peer sends nothing more: the connection closes when what it sent is done with."""
        self._data: bytes = b""
        self._position: i64 = 0
        self._chunks: list[bytes] = []
        self._chunk_bytes: i64 = 0
        self._needed: i64 = 4
        self._receive_bytes: i64 = SMALL_RECEIVE_BYTES
        self._parsing = False
        self._reading = False
        self._held_up = False
        """Enough whole frames wait for their turn: no more is taken in."""
        self._next_turn = False
        """The rest of the frames is looked at in the loop's next turn."""
        self._writing = False
        self.deaf = False
        """The peer takes no bytes any more."""
        self._end_reason = ""
        self._replies: list[Reply] = []
        self._ready_bytes: i64 = 0
        """Of replies that are there, and wait for one before them."""

    def last_reply(self) -> Reply | None:
        """The place of the newest request, when there is one and it is not filled yet."""
        if not self._replies:
            return None
        last = self._replies[len(self._replies) - 1]
        return None if last.done else last

    def start(self) -> None:
        """Begins to read."""
        self._reading = True
        self.loop.add_reader(self.descriptor, self.readable)

    @property
    def waiting(self) -> bool:
        """Whether a reply to an earlier request is still to come."""
        return len(self._replies) > 0

    # Reading.

    def readable(self) -> None:
        """The socket has bytes, or has ended."""
        if self.memory.full:
            self.memory.hold_up(self)
            return
        try:
            data: bytes = self.sock.recv(self._receive_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._stop_sending()
            self._end(f"receive failed: {problem}")
            return
        count: i64 = len(data)
        if count == 0:
            self._end("closed by the peer")
            return
        self._receive_bytes = RECEIVE_BYTES if count >= SMALL_RECEIVE_BYTES else SMALL_RECEIVE_BYTES
        self.memory.uses += 1
        self.last_use = self.memory.uses
        self.bytes_in += count
        held: i64 = len(self._data) - self._position
        if held > 0:
            # Complete frames wait behind a pending reply: take in no more than one receive beside them.
            self._data = self._data[self._position :] + data
            self._position = 0
            if held + count > RECEIVE_BYTES:
                self._held_up = True
                self.pause_reading()
            self._parse()
            return
        if self._chunk_bytes > 0:
            self._chunks.append(data)
            self._chunk_bytes += count
            if self._chunk_bytes < self._needed:
                if len(self._chunks) > 64 + (self._chunk_bytes >> 14):
                    self._chunks = [b"".join(self._chunks)]
                self._count()
                return
            data = b"".join(self._chunks)
            self._chunks = []
            self._chunk_bytes = 0
        self._data = data
        self._position = 0
        self._parse()

    def _count(self) -> None:
        """Tells the common bound what is held here, when that has changed."""
        # All of the data, also what was consumed of it: it is let go as a whole.
        unsent: i64 = self._out_bytes + self._ready_bytes
        held: i64 = len(self._data) + self._chunk_bytes + unsent
        if self.closed:
            return
        if held != self.held_bytes:
            self.memory.change(self, held)
        if unsent != self.unsent_bytes and not self.closed:
            self.memory.note_unsent(self, unsent)

    def missing_bytes(self) -> i64:
        """What the partial frame that is held still misses; 0 when there is none."""
        return self._needed - self._chunk_bytes if self._chunk_bytes > 0 else 0

    def pause_reading(self) -> None:
        """Leaves what comes to the system's buffers."""
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self.descriptor)

    def resume_reading(self) -> None:
        """Reads again, unless something else speaks against it."""
        if not (self._reading or self._held_up or self.paused or self.ended or self.closed):
            self._reading = True
            self.loop.add_reader(self.descriptor, self.readable)

    def _parse(self) -> None:
        """Hands on the whole frames that are held, and sends what they brought about, until one must wait."""
        if self._parsing:
            return
        self._parsing = True
        while self._is_open():
            before = self._position
            blocked = self._try_frames()
            if not self._is_open():
                break
            if not blocked:
                self._keep_rest()
            had_output = len(self._out) > 0
            if had_output:
                self._flush()
            # What went out may have been what the next request waited for: then nobody else looks again.
            if not blocked or self._out or self._next_turn or (self._position == before and not had_output):
                break
        self._parsing = False
        self._settle()

    def _is_open(self) -> bool:
        return not self.closed

    def _settle(self) -> None:
        """Closes when the peer has ended and everything is done; counts what is held otherwise."""
        if (
            self.ended
            and not self._replies
            and not self._out
            and not self._parsing
            and self._position >= len(self._data)
        ):
            self.close(self._end_reason)
        self._count()

    def _try_frames(self) -> bool:
        try:
            return self._parse_frames()
        except ProtocolError as problem:
            self.close_after_replies(str(problem))
        except Exception as problem:  # noqa: BLE001 - one broken request must not end the loop for all others
            self.crash(problem)
        return True

    def _parse_frames(self) -> bool:
        data = self._data
        end: i64 = len(data)
        position = self._position
        frames: i64 = 0
        while end - position >= 4:
            size: i64 = i64(read_i32_be(data, position))
            if size < 0 or size > self.frame_bytes_max:
                raise ProtocolError(
                    f"a frame of {size} bytes was announced, 0 to {self.frame_bytes_max} are allowed"
                    " (socket.request.max.bytes)"
                )
            if end - position - 4 < size:
                break
            if (
                len(self._replies) >= REPLIES_MAX
                or self._out_bytes + self._ready_bytes > OUT_BYTES_MAX
                or (self._out_bytes + self._ready_bytes > FREE_BYTES and self.memory.is_short)
                or len(self._out) > OUT_PARTS_MAX
            ):
                return True
            if frames == FRAMES_A_TURN:
                if not self._next_turn:
                    self._next_turn = True
                    self.loop.call_soon(self._take_turn)
                return True
            frames += 1
            if not self.handler.on_frame(self, data, position + 4, position + 4 + size):
                return True
            position += 4 + size
            self._position = position
            if not self._is_open():
                return True
        return False

    def _take_turn(self) -> None:
        self._next_turn = False
        if not self.closed:
            self._go_on()

    def _keep_rest(self) -> None:
        """Moves a last partial frame into the chunks, and forgets what was consumed."""
        data = self._data
        rest: i64 = 0 if self.ended else len(data) - self._position
        if rest > 0:
            self._needed = 4
            if rest >= 4:
                self._needed = 4 + i64(read_i32_be(data, self._position))
            self._chunks = [data[self._position :] if self._position > 0 else data]
            self._chunk_bytes = rest
        self._data = b""
        self._position = 0
        if self._held_up:
            self._held_up = False
            self.resume_reading()

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
            self._out.append(part)
            self._out_bytes += len(part)

    def reply_later(self) -> Reply:
        """A place in the order for the request that is being handled."""
        reply = Reply(self)
        self._replies.append(reply)
        return reply

    def reply_done(self, parts: list[Any]) -> None:
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
        for reply in self._replies:
            if not reply.done:
                break
            ready += 1
            for part in reply.parts:
                size: i64 = len(part) if isinstance(part, bytes) else 0
                self._ready_bytes -= size
                if not self.deaf:
                    self._out.append(part)
                    self._out_bytes += size
        if ready == 0:
            self._count()
            return
        self._replies = self._replies[ready:]
        if self._parsing:
            return
        if self._out:
            self._flush()
        self._go_on()

    def resume_frames(self) -> None:
        """There is room for the reply of a request that was held up: the next turn of the loop takes it."""
        if not self._next_turn and not self.closed:
            self._next_turn = True
            self.loop.call_soon(self._take_turn)

    def _go_on(self) -> None:
        """Looks at the requests that were held back."""
        if self._is_open() and self._position < len(self._data):
            self._parse()
        else:
            self._settle()

    # Sending.

    def writable(self) -> None:
        """The socket takes bytes again."""
        self._flush()
        self._go_on()

    def resume_send(self) -> None:
        """What was read ahead is in memory now."""
        self._reading_ahead = False
        if not self.closed:
            self._flush()
            self._go_on()

    def _flush(self) -> None:
        if self.closed or self._reading_ahead:
            return
        if self.deaf:
            self._drop_output()
            return
        finished = False
        try:
            finished = self._send_all()
        except (BlockingIOError, InterruptedError):
            pass
        except (ConnectionError, TimeoutError) as problem:
            # What the peer had sent before it went is still read, to its end.
            if not self._end_reason:
                self._end_reason = f"send failed: {problem}"
            self._stop_sending()
            if self._replies:
                self.handler.on_end(self)
            return
        except OSError as problem:
            part = self._out[self._out_head]
            if isinstance(part, FileRange) and problem.errno in FILE_ERRORS:
                self.read_failed(part, problem)
            else:
                self.close(f"send failed: {problem}")
            return
        if finished:
            self._out.clear()
            self._out_head = 0
            self._out_bytes = 0
            if self._writing:
                self._writing = False
                self.loop.remove_writer(self.descriptor)
        elif self._writing == self._reading_ahead:
            self._writing = not self._reading_ahead
            if self._writing:
                self.loop.add_writer(self.descriptor, self.writable)
            else:
                self.loop.remove_writer(self.descriptor)

    def _stop_sending(self) -> None:
        self.deaf = True
        self._drop_output()
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self.descriptor)

    def read_ahead(self, part: FileRange, count: i64) -> None:
        """Has the handler do it."""
        self.handler.read_ahead(self, part, count)

    def read_failed(self, part: FileRange, problem: BaseException) -> None:
        """A file that was to be sent cannot be read: the reply cannot be finished, nor followed by others."""
        self.handler.on_read_failed(self, part.file, problem)
        self.close(f"{part.count} bytes of a file could not be sent: {problem}")

    # Ending.

    def _end(self, reason: str) -> None:
        """The peer sends nothing more."""
        self.ended = True
        if not self._end_reason:
            self._end_reason = reason
        self.pause_reading()
        self._chunks = []
        self._chunk_bytes = 0
        if self._replies:
            self.handler.on_end(self)
        self._settle()

    def crash(self, problem: BaseException) -> None:
        """A request of this connection broke its handler: that is reported, and the connection ended."""
        self.handler.on_crash(self, problem)
        self.close_after_replies("a request failed unexpectedly")

    def close_after_replies(self, reason: str) -> None:
        """Ends the connection, once the replies that are ready were given to the socket, as far as it takes
        them: the requests before a bad one were carried out, and their client should know."""
        if self._out:
            self._flush()
        self.close(reason)

    def close(self, reason: str) -> None:
        """Ends the connection at once. Calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self.descriptor)
        self.loop.remove_writer(self.descriptor)
        self.sock.close()
        self._replies = []
        self._out = []
        self._data = b""
        self._position = 0
        self._chunks = []
        self.memory.forget(self)
        self.handler.on_close(self, reason)
