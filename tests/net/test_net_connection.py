"""Framed connections over real sockets: order, bounds, and what a peer may not do to the others."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.log.files import SystemFiles
from tidemill.net.connection import (
    REPLIES_MAX,
    Connection,
    FrameHandler,
    Reply,
)
from tidemill.net.sending import FileRange

FRAME_BYTES_MAX = 1_000_000


class Recorder(FrameHandler):
    """Keeps the frames; ``answer`` says what happens with one."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self.crashes: list[BaseException] = []
        self.read_aheads: list[tuple[FileRange, int]] = []
        self.answer: Callable[[Connection, bytes], bool] = lambda connection, frame: True
        self.end: Callable[[Connection], None] = lambda connection: None

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        frame = data[start:end]
        if not self.answer(connection, frame):
            return False
        self.frames.append(frame)
        return True

    def on_end(self, connection: Connection) -> None:
        self.end(connection)

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        self.crashes.append(problem)

    def read_ahead(self, connection: Connection, part: FileRange, count: int) -> None:
        self.read_aheads.append((part, count))
        connection.loop.call_soon(connection.resume_send)


class Pair:
    """A connection, and the socket of its peer."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.handler = Recorder()
        self.connection = Connection(self.loop, ours, self.handler, FRAME_BYTES_MAX, None)
        self.connection.start()

    def turn(self, until: Callable[[], bool] = lambda: False, turns: int = 20) -> None:
        """Lets the loop go on until something is true, at most some turns."""
        for _ in range(turns):
            if until():
                return
            self.loop.run_until_complete(asyncio.sleep(0.001))

    def receive(self, size: int) -> bytes:
        got = b""
        for _ in range(2000):
            try:
                got += self.peer.recv(1 << 20)
            except BlockingIOError:
                self.turn(turns=1)
            if len(got) >= size:
                break
        return got


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.connection.close("the test is over")
    made.peer.close()
    made.loop.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_frames_of_one_receive_arrive_in_order(pair: Pair) -> None:
    pair.peer.send(framed(b"one") + framed(b"") + framed(b"three"))
    pair.turn(lambda: len(pair.handler.frames) == 3)
    assert pair.handler.frames == [b"one", b"", b"three"]


def test_a_frame_that_comes_byte_by_byte_is_whole(pair: Pair) -> None:
    for byte in framed(b"slowly") + framed(b"next"):
        pair.peer.send(bytes([byte]))
        pair.turn(turns=1)
    pair.turn(lambda: len(pair.handler.frames) == 2)
    assert pair.handler.frames == [b"slowly", b"next"]


def test_a_large_frame_is_joined(pair: Pair) -> None:
    body = bytes(range(256)) * 3000
    data = memoryview(framed(body) + framed(b"after"))
    while data:
        try:
            data = data[pair.peer.send(data) :]
        except BlockingIOError:
            pair.turn(turns=1)
    pair.turn(lambda: len(pair.handler.frames) == 2, turns=200)
    assert pair.handler.frames == [body, b"after"]


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_a_length_that_is_not_allowed_closes_the_connection(pair: Pair, size: int) -> None:
    pair.peer.send(struct.pack(">i", size))
    pair.turn(lambda: bool(pair.handler.closed))
    assert "socket.request.max.bytes" in pair.handler.closed[0]
    assert str(size) in pair.handler.closed[0]


def test_the_end_of_the_peer_in_the_middle_of_a_frame_closes(pair: Pair) -> None:
    pair.peer.send(framed(b"never whole")[:-3])
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.handler.closed == ["closed by the peer"]
    assert pair.handler.frames == []


def test_a_crash_in_the_handler_is_reported_and_closes(pair: Pair) -> None:
    def crash(connection: Connection, frame: bytes) -> bool:
        raise ZeroDivisionError

    pair.handler.answer = crash
    pair.peer.send(framed(b"x"))
    pair.turn(lambda: bool(pair.handler.closed))
    assert isinstance(pair.handler.crashes[0], ZeroDivisionError)


def test_replies_leave_in_the_order_of_their_requests(pair: Pair) -> None:
    later: list[Reply] = []

    def answer(connection: Connection, frame: bytes) -> bool:
        if frame == b"later":
            later.append(connection.reply_later())
        else:
            connection.reply_now(frame)
        return True

    pair.handler.answer = answer
    pair.peer.send(b"".join(framed(one) for one in (b"1", b"later", b"2", b"later", b"3")))
    pair.turn(lambda: len(pair.handler.frames) == 5)
    assert pair.receive(1) == b"1"
    later[1].complete([b"B"])
    pair.turn(turns=3)
    with pytest.raises(BlockingIOError):
        pair.peer.recv(10)
    later[0].complete([b"A"])
    assert pair.receive(4) == b"A2B3"
    with pytest.raises(RuntimeError):
        later[0].complete([b"again"])


def test_a_request_that_must_wait_is_looked_at_again_after_the_reply(pair: Pair) -> None:
    waiting: list[Reply] = []

    def answer(connection: Connection, frame: bytes) -> bool:
        if connection.waiting:
            return False
        if frame == b"wait":
            waiting.append(connection.reply_later())
        else:
            connection.reply_now(frame)
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"wait") + framed(b"held") + framed(b"back"))
    pair.turn(lambda: bool(waiting))
    assert pair.handler.frames == [b"wait"]
    pair.peer.send(framed(b"too"))
    pair.turn(turns=3)
    waiting[0].complete([b"W"])
    assert pair.receive(12) == b"Wheldbacktoo"


def test_a_flood_behind_a_waiting_request_is_not_taken_into_memory(pair: Pair) -> None:
    pair.handler.answer = lambda connection, frame: not connection.waiting and bool(connection.reply_later())
    pair.peer.send(framed(b"wait"))
    pair.turn(turns=3)
    taken = 0
    for _ in range(400):
        try:
            taken += pair.peer.send(framed(b"x" * 10_000))
        except BlockingIOError:
            pair.turn(turns=1)
    assert taken < 4_000_000
    assert pair.connection.held_bytes < 1_000_000


def test_more_waiting_replies_than_allowed_hold_the_rest_back(pair: Pair) -> None:
    replies: list[Reply] = []

    def answer(connection: Connection, frame: bytes) -> bool:
        replies.append(connection.reply_later())
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x") * (REPLIES_MAX + 10))
    pair.turn(turns=5)
    assert len(replies) == REPLIES_MAX
    for reply in list(replies):
        reply.complete([b"."])
    pair.turn(lambda: len(replies) == REPLIES_MAX + 10)
    assert len(replies) == REPLIES_MAX + 10


def test_a_reader_that_does_not_read_stops_being_served(pair: Pair) -> None:
    block = b"z" * 1_000_000

    def answer(connection: Connection, frame: bytes) -> bool:
        connection.reply_now(block)
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x") * 50)
    pair.turn(turns=20)
    assert len(pair.handler.frames) < 10
    assert pair.connection.unsent_bytes < 6_000_000
    assert len(pair.receive(50_000_000)) == 50_000_000
    assert len(pair.handler.frames) == 50


def test_ranges_of_files_go_out_between_bytes(pair: Pair, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    path = tmp_path / "log"
    path.write_bytes(content)
    file = SystemFiles().open(str(path))
    half = len(content) // 2

    def answer(connection: Connection, frame: bytes) -> bool:
        reply = connection.reply_later()
        reply.complete(
            [
                b"<",
                FileRange(file, 0, half, False),
                b"|",
                FileRange(file, half, len(content) - half, True),
                b">",
            ]
        )
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x"))
    received = pair.receive(len(content) + 3)
    assert received == b"<" + content[:half] + b"|" + content[half:] + b">"
    file.close()


def test_a_range_that_is_not_in_memory_is_read_ahead_first(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"q" * 3_000_000)

    files = SystemFiles()
    file = files.open(str(path))
    asked: list[tuple[int, int]] = []

    import tidemill.model.ports as ports

    class NeverCached(ports.File):
        def is_cached(self, position: int, count: int) -> bool:
            asked.append((position, count))
            return False

        def send_to(self, descriptor: int, position: int, count: int) -> int:
            return int(file.send_to(descriptor, position, count))

    def answer(connection: Connection, frame: bytes) -> bool:
        connection.reply_later().complete([FileRange(NeverCached(), 0, 3_000_000, True)])
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x"))
    assert pair.receive(3_000_000) == b"q" * 3_000_000
    assert [count for _, count in pair.handler.read_aheads] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20)]
    file.close()


def test_a_file_that_ended_early_closes_instead_of_hanging(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short")
    file = SystemFiles().open(str(path))

    def answer(connection: Connection, frame: bytes) -> bool:
        connection.reply_later().complete([FileRange(file, 0, 100, False)])
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x"))
    pair.turn(lambda: bool(pair.handler.closed))
    assert "95 bytes before the end" in pair.handler.closed[0]
    file.close()


def test_replies_to_a_closed_connection_go_nowhere(pair: Pair) -> None:
    replies: list[Reply] = []

    def answer(connection: Connection, frame: bytes) -> bool:
        replies.append(connection.reply_later())
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"x"))
    pair.turn(lambda: bool(replies))
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    replies[0].complete([b"nobody"])
    assert pair.handler.closed == ["closed by the peer"]


def test_replies_before_a_bad_frame_are_sent_before_the_end(pair: Pair) -> None:
    def answer(connection: Connection, frame: bytes) -> bool:
        connection.reply_now(frame)
        return True

    pair.handler.answer = answer
    pair.peer.send(framed(b"good") + struct.pack(">i", -1))
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.receive(4) == b"good"
    assert pair.peer.recv(1) == b""


def test_what_a_full_output_held_back_goes_on_although_two_turns_were_needed_to_send_it(pair: Pair) -> None:
    """The socket takes the rest only at the second attempt of the same call: nobody else looks again."""

    class Slow:
        """A socket that is full at every other send."""

        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock
            self.full = True
            self.holds = True

        def send(self, data: bytes, flags: int) -> int:
            if self.holds:
                raise BlockingIOError
            self.full = not self.full
            if not self.full:
                raise BlockingIOError
            return len(data)

        def recv(self, count: int) -> bytes:
            return self.sock.recv(count)

        def close(self) -> None:
            self.sock.close()

    def answer(connection: Connection, frame: bytes) -> bool:
        connection.reply_now(bytes(5_000_000))
        return True

    slow = Slow(pair.connection.sock)
    pair.connection.sock = slow
    pair.handler.answer = answer
    pair.peer.send(framed(b"1") + framed(b"2"))
    pair.turn(lambda: bool(pair.handler.frames))
    assert pair.handler.frames == [b"1"]
    slow.holds = False
    pair.connection.writable()
    assert pair.handler.frames == [b"1", b"2"]


def test_a_peer_that_is_gone_is_let_go_although_its_last_wait_ends_while_its_requests_are_read(
    pair: Pair,
) -> None:
    """The first reply finds nobody; what waits is answered for that, in the middle of the same turn."""
    waiting: list[Reply] = []

    def answer(connection: Connection, frame: bytes) -> bool:
        if frame == b"wait":
            waiting.append(connection.reply_later())
        else:
            connection.reply_now(frame)
        return True

    pair.handler.answer = answer
    pair.handler.end = lambda connection: waiting[0].complete([b"W"])
    pair.peer.send(framed(b"now") + framed(b"wait"))
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.handler.closed == ["send failed: [Errno 32] Broken pipe"]
