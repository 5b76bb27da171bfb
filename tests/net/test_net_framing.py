"""Frames are found for any split of their bytes; an invalid size allocates no memory."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net_stage import framed

from tidemill.model.transition_table import TransitionTable
from tidemill.net.connection_state import DISPATCH, INPUT, OUTPUT
from tidemill.net.framing import (
    JOINED_BYTES_MAX,
    NEED_DATA,
    PIECE_BYTES_MIN,
    FrameReader,
    FrameSizeError,
)


def frames_of(reader: FrameReader) -> list[bytes]:
    """Consumes the complete frames."""
    found = []
    start = reader.next_frame()
    while start != NEED_DATA:
        assert reader.next_frame() == start, "a repeated call returns the same frame"
        found.append(reader.data[start : reader.end])
        reader.consume()
        start = reader.next_frame()
    assert reader.unread_bytes == 0
    return found


@given(
    frames=st.lists(st.binary(max_size=40), max_size=12),
    rest=st.binary(max_size=3),
    pieces=st.lists(st.integers(1, 30), min_size=1),
    preallocated_max=st.sampled_from([0, 20, 1000]),
)
def test_frames_are_found_for_any_split_of_their_bytes(
    frames: list[bytes], rest: bytes, pieces: list[int], preallocated_max: int
) -> None:
    data = framed(*frames) + rest
    reader = FrameReader(0, 1000, "a frame", preallocated_max=preallocated_max)
    found: list[bytes] = []
    position = 0
    while position < len(data):
        size = pieces[position % len(pieces)]
        reader.receive(data[position : position + size])
        position += size
        found += frames_of(reader)
    assert found == frames
    assert reader.held_bytes == len(rest)
    assert reader.has_partial == bool(rest)


@pytest.mark.parametrize(
    ("size", "preallocated_max", "allocated"),
    [(10_000_000, 10_000_000, 10_000_000), (10_000_000, 9_999_999, 0), (10_000_000, 0, 0)],
)
def test_only_a_trusted_size_allocates_the_memory_of_a_frame(
    size: int, preallocated_max: int, allocated: int
) -> None:
    reader = FrameReader(0, size, "a frame", preallocated_max=preallocated_max)
    reader.receive(struct.pack(">i", size))
    assert reader.next_frame() == NEED_DATA
    tracemalloc.start()
    try:
        reader.receive(bytes(100))
        assert reader.next_frame() == NEED_DATA
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert allocated <= held < allocated + 20_000
    assert reader.missing_bytes == size - 100


@pytest.mark.parametrize("size", [3 * PIECE_BYTES_MIN, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1])
@pytest.mark.parametrize("piece", [PIECE_BYTES_MIN - 1, 100_000])
def test_short_and_long_frames_are_assembled_from_pieces(size: int, piece: int) -> None:
    frame = random.Random(size).randbytes(size)
    reader = FrameReader(0, size, "a frame")
    data = framed(b"first", frame, b"last")
    found: list[bytes] = []
    for position in range(0, len(data), piece):
        reader.receive(data[position : position + piece])
        found += frames_of(reader)
    assert found == [b"first", frame, b"last"]
    assert reader.held_bytes == 0


def test_a_long_frame_takes_its_memory_once() -> None:
    size = 3 * JOINED_BYTES_MAX
    reader = FrameReader(0, size, "a frame")
    data = framed(bytes(size))
    tracemalloc.start()
    try:
        for position in range(0, len(data), 100_000):
            reader.receive(data[position : position + 100_000])
            reader.next_frame()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.unread_bytes == size
    assert peak < 1.5 * size


def test_single_bytes_of_a_frame_take_little_more_memory_than_the_frame() -> None:
    size = 20 * PIECE_BYTES_MIN
    reader = FrameReader(0, size, "a frame")
    data = framed(bytes(size))
    tracemalloc.start()
    try:
        for position in range(len(data) - 1):
            reader.receive(data[position : position + 1])
            assert reader.next_frame() == NEED_DATA
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < size + 10_000


@given(frames=st.lists(st.binary(max_size=40), min_size=1, max_size=12), handled=st.integers(0, 12))
def test_pending_frames_are_kept_with_the_following_bytes(frames: list[bytes], handled: int) -> None:
    reader = FrameReader(0, 1000, "a frame")
    data = framed(*frames)
    reader.receive(data)
    found = []
    for _ in range(min(handled, len(frames))):
        found.append(reader.data[reader.next_frame() : reader.end])
        reader.consume()
    reader.receive(framed(b"later"))
    assert found + frames_of(reader) == [*frames, b"later"]


def test_a_completely_received_frame_is_not_copied() -> None:
    reader = FrameReader(4, 1000, "a response")
    body = b"x" * 500
    reader.receive(struct.pack(">i", 500))
    assert reader.next_frame() == NEED_DATA
    assert reader.missing_bytes == 500
    reader.receive(body)
    assert reader.next_frame() == 0
    assert reader.data is body


def test_a_consumed_frame_is_released_with_its_data() -> None:
    reader = FrameReader(0, 1000, "a frame")
    reader.receive(framed(b"first", b"second"))
    reader.next_frame()
    reader.consume()
    assert reader.held_bytes == len(framed(b"first", b"second"))
    reader.next_frame()
    reader.consume()
    assert reader.held_bytes == 0


@pytest.mark.parametrize("size", [-1, 3, 1001, 0x7FFFFFFF])
def test_an_error_names_the_invalid_size(size: int) -> None:
    reader = FrameReader(4, 1000, "a response", "response.bytes.max")
    reader.receive(struct.pack(">i", size))
    with pytest.raises(FrameSizeError) as raised:
        reader.next_frame()
    assert raised.value.size == size
    assert str(raised.value) == (
        f"a response of {size} bytes was announced, 4 to 1000 are allowed (response.bytes.max)"
    )


@pytest.mark.parametrize(
    ("received", "protocol"),
    [
        (bytes.fromhex("160301010001"), "; these are the first bytes of a TLS handshake"),
        (b"GET / HTTP/1.1", "; these are the first bytes of an HTTP request"),
        (b"\x7f\xff\xff\xff", ""),
        (b"\xff\xff\xff\xff", ""),
    ],
)
def test_an_error_names_another_protocol(received: bytes, protocol: str) -> None:
    reader = FrameReader(0, 100_000_000, "a request", "socket.request.max.bytes")
    reader.receive(received)
    with pytest.raises(FrameSizeError) as raised:
        reader.next_frame()
    size = int.from_bytes(received[:4], "big", signed=True)
    assert str(raised.value) == (
        f"a request of {size} bytes was announced, 0 to 100000000 are allowed (socket.request.max.bytes)"
        + protocol
    )


def test_an_announced_size_allocates_no_memory() -> None:
    reader = FrameReader(0, 1 << 30, "a frame")
    reader.receive(struct.pack(">i", 1 << 30) + b"begin")
    assert frames_of(reader) == []
    assert reader.held_bytes == 5
    assert reader.missing_bytes == (1 << 30) - 5


@pytest.mark.parametrize("table", [INPUT, OUTPUT, DISPATCH])
def test_every_state_has_a_row_and_every_event_a_column(table: TransitionTable) -> None:
    states = len(table.states)
    assert [len(row) for row in table.rows] == [len(table.events)] * states
    assert all(-1 <= following < states for row in table.rows for following in row)
    reached = {0} | {following for row in table.rows for following in row if following >= 0}
    assert reached == set(range(states))


@pytest.mark.parametrize("table", [INPUT, OUTPUT, DISPATCH])
def test_an_undefined_transition_raises_an_error(table: TransitionTable) -> None:
    missing = [(s, e) for s, row in enumerate(table.rows) for e, following in enumerate(row) if following < 0]
    assert missing
    for state, event in missing:
        text = f"{table.name} state {table.states[state]} cannot handle {table.events[event]}"
        with pytest.raises(RuntimeError, match=text):
            table.after(state, event)
