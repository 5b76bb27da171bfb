"""The states of an accepted connection, as transition tables. Compiled.

A connection has three parts that change state on their own:

- input: whether the socket is read, and what keeps it from being read;
- output: whether bytes wait to be sent, and for what;
- dispatch: whether the received frames are being handed to the handler.

A transition that is not in its table raises RuntimeError.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# -- input

NEW: Final[i64] = 0
"""Not read yet."""
READING: Final[i64] = 1
"""The event loop watches the socket for reading. In no other state it does."""
MEMORY_PAUSED: Final[i64] = 2
"""The limit for all connections (:mod:`tidemill.net.memory_pool`) is reached."""
FRAMES_PAUSED: Final[i64] = 3
"""Enough complete frames wait for their turn."""
BOTH_PAUSED: Final[i64] = 4
ENDED: Final[i64] = 5
"""The peer sends nothing more."""
INPUT_CLOSED: Final[i64] = 6

START: Final[i64] = 0
MEMORY_SHORT: Final[i64] = 1
MEMORY_FREE: Final[i64] = 2
FRAMES_WAIT: Final[i64] = 3
FRAMES_HANDLED: Final[i64] = 4
PEER_ENDED: Final[i64] = 5
CLOSE_INPUT: Final[i64] = 6

_NONE: Final[i64] = -1

INPUT: Final[list[list[i64]]] = [
    # START, MEMORY_SHORT, MEMORY_FREE, FRAMES_WAIT, FRAMES_HANDLED, PEER_ENDED, CLOSE_INPUT
    [READING, NEW, NEW, NEW, NEW, ENDED, INPUT_CLOSED],  # NEW
    [_NONE, MEMORY_PAUSED, READING, FRAMES_PAUSED, READING, ENDED, INPUT_CLOSED],  # READING
    [_NONE, MEMORY_PAUSED, READING, BOTH_PAUSED, MEMORY_PAUSED, ENDED, INPUT_CLOSED],  # MEMORY_PAUSED
    [_NONE, BOTH_PAUSED, FRAMES_PAUSED, FRAMES_PAUSED, READING, ENDED, INPUT_CLOSED],  # FRAMES_PAUSED
    [_NONE, BOTH_PAUSED, FRAMES_PAUSED, BOTH_PAUSED, MEMORY_PAUSED, ENDED, INPUT_CLOSED],  # BOTH_PAUSED
    [_NONE, ENDED, ENDED, ENDED, ENDED, ENDED, INPUT_CLOSED],  # ENDED
    [_NONE, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED],
]

# -- output

IDLE: Final[i64] = 0
"""All bytes were sent."""
SOCKET_FULL: Final[i64] = 1
"""The event loop watches the socket for writing. In no other state it does."""
FILE_READ_AHEAD: Final[i64] = 2
"""A thread reads a range of a file into memory; then sending continues."""
BROKEN: Final[i64] = 3
"""The peer receives nothing any more: output is dropped."""
OUTPUT_CLOSED: Final[i64] = 4

ALL_SENT: Final[i64] = 0
SEND_LATER: Final[i64] = 1
"""The socket takes no more bytes, or the other connections have their turn first."""
READ_FILE: Final[i64] = 2
FILE_READ: Final[i64] = 3
PEER_GONE: Final[i64] = 4
CLOSE_OUTPUT: Final[i64] = 5

OUTPUT: Final[list[list[i64]]] = [
    # ALL_SENT, SEND_LATER, READ_FILE, FILE_READ, PEER_GONE, CLOSE_OUTPUT
    [IDLE, SOCKET_FULL, FILE_READ_AHEAD, _NONE, BROKEN, OUTPUT_CLOSED],  # IDLE
    [IDLE, SOCKET_FULL, FILE_READ_AHEAD, _NONE, BROKEN, OUTPUT_CLOSED],  # SOCKET_FULL
    [_NONE, _NONE, _NONE, IDLE, BROKEN, OUTPUT_CLOSED],  # FILE_READ_AHEAD
    [_NONE, _NONE, _NONE, BROKEN, BROKEN, OUTPUT_CLOSED],  # BROKEN
    [_NONE, _NONE, _NONE, OUTPUT_CLOSED, OUTPUT_CLOSED, OUTPUT_CLOSED],  # OUTPUT_CLOSED
]

# -- dispatch

WAITING: Final[i64] = 0
"""For more bytes, or for a response before the next request is handled."""
DISPATCHING: Final[i64] = 1
SCHEDULED: Final[i64] = 2
"""The next turn of the loop dispatches."""
DISPATCHING_SCHEDULED: Final[i64] = 3

BEGIN: Final[i64] = 0
FINISH: Final[i64] = 1
SCHEDULE: Final[i64] = 2
TURN: Final[i64] = 3

DISPATCH: Final[list[list[i64]]] = [
    # BEGIN, FINISH, SCHEDULE, TURN
    [DISPATCHING, _NONE, SCHEDULED, _NONE],  # WAITING
    [_NONE, WAITING, DISPATCHING_SCHEDULED, _NONE],  # DISPATCHING
    [DISPATCHING_SCHEDULED, _NONE, _NONE, WAITING],  # SCHEDULED
    [_NONE, SCHEDULED, _NONE, _NONE],  # DISPATCHING_SCHEDULED
]


def after(table: list[list[i64]], state: i64, event: i64) -> i64:
    """Returns the state that follows ``state`` by ``event``. Raises RuntimeError when there is none."""
    following: i64 = table[state][event]
    if following < 0:
        raise RuntimeError(f"a connection in state {state} cannot handle event {event}")
    return following
