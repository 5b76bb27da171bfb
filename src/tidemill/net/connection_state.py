"""The states of an accepted connection, as transition tables. Compiled.

A connection has three parts that change state on their own:

- input: whether the socket is read, and the reason if it is not;
- output: whether bytes wait to be sent, and the event that they wait for;
- dispatch: whether the received frames are being handed to the handler.

The numbers of the states are ordered, and connections compare them:

- input: no bytes arrive from ENDED on; the states from FRAMES_PAUSED to BOTH_PAUSED wait for frames;
- output: nothing is sent from BROKEN on;
- dispatch: the next turn of the loop dispatches from SCHEDULED on.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.model.transition_table import NONE, TransitionTable

# -- input

NEW: Final[i64] = 0
"""Not read yet."""
READING: Final[i64] = 1
"""The event loop watches the socket for reading, in no other state."""
MEMORY_PAUSED: Final[i64] = 2
"""The limit for all connections (:mod:`tidemill.net.memory_pool`) is reached."""
FRAMES_PAUSED: Final[i64] = 3
"""Enough complete frames wait for their turn."""
BOTH_PAUSED: Final[i64] = 4
ENDED: Final[i64] = 5
"""The peer sends nothing more. The connection closes after the responses."""
INPUT_CLOSED: Final[i64] = 6

START: Final[i64] = 0
MEMORY_SHORT: Final[i64] = 1
MEMORY_FREE: Final[i64] = 2
FRAMES_WAIT: Final[i64] = 3
FRAMES_HANDLED: Final[i64] = 4
PEER_ENDED: Final[i64] = 5
CLOSE_INPUT: Final[i64] = 6

INPUT: Final = TransitionTable(
    "input",
    ["NEW", "READING", "MEMORY_PAUSED", "FRAMES_PAUSED", "BOTH_PAUSED", "ENDED", "INPUT_CLOSED"],
    ["START", "MEMORY_SHORT", "MEMORY_FREE", "FRAMES_WAIT", "FRAMES_HANDLED", "PEER_ENDED", "CLOSE_INPUT"],
    [
        [READING, NEW, NEW, NEW, NEW, ENDED, INPUT_CLOSED],  # NEW
        [NONE, MEMORY_PAUSED, READING, FRAMES_PAUSED, READING, ENDED, INPUT_CLOSED],  # READING
        [NONE, MEMORY_PAUSED, READING, BOTH_PAUSED, MEMORY_PAUSED, ENDED, INPUT_CLOSED],  # MEMORY_PAUSED
        [NONE, BOTH_PAUSED, FRAMES_PAUSED, FRAMES_PAUSED, READING, ENDED, INPUT_CLOSED],  # FRAMES_PAUSED
        [
            NONE,
            BOTH_PAUSED,
            FRAMES_PAUSED,
            BOTH_PAUSED,
            MEMORY_PAUSED,
            ENDED,
            INPUT_CLOSED,
        ],  # BOTH_PAUSED
        [NONE, ENDED, ENDED, ENDED, ENDED, ENDED, INPUT_CLOSED],  # ENDED
        [NONE, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED, INPUT_CLOSED],
    ],
)

# -- output

IDLE: Final[i64] = 0
"""No bytes wait, or sending continues in the same call of the event loop."""
WRITING: Final[i64] = 1
"""Bytes wait. The event loop watches the socket for writing, in no other state."""
FILE_READ_AHEAD: Final[i64] = 2
"""A thread reads a range of a file into memory; then sending continues."""
BROKEN: Final[i64] = 3
"""The peer receives nothing more: output is dropped."""
OUTPUT_CLOSED: Final[i64] = 4

ALL_SENT: Final[i64] = 0
SEND_LATER: Final[i64] = 1
"""The socket accepts no more bytes, or the turn of this connection is over."""
READ_FILE: Final[i64] = 2
FILE_READ: Final[i64] = 3
PEER_GONE: Final[i64] = 4
CLOSE_OUTPUT: Final[i64] = 5

OUTPUT: Final = TransitionTable(
    "output",
    ["IDLE", "WRITING", "FILE_READ_AHEAD", "BROKEN", "OUTPUT_CLOSED"],
    ["ALL_SENT", "SEND_LATER", "READ_FILE", "FILE_READ", "PEER_GONE", "CLOSE_OUTPUT"],
    [
        [IDLE, WRITING, FILE_READ_AHEAD, NONE, BROKEN, OUTPUT_CLOSED],  # IDLE
        [IDLE, WRITING, FILE_READ_AHEAD, NONE, BROKEN, OUTPUT_CLOSED],  # WRITING
        [NONE, NONE, NONE, IDLE, BROKEN, OUTPUT_CLOSED],  # FILE_READ_AHEAD
        [NONE, NONE, NONE, BROKEN, BROKEN, OUTPUT_CLOSED],  # BROKEN
        [NONE, NONE, NONE, OUTPUT_CLOSED, OUTPUT_CLOSED, OUTPUT_CLOSED],  # OUTPUT_CLOSED
    ],
)

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

DISPATCH: Final = TransitionTable(
    "dispatch",
    ["WAITING", "DISPATCHING", "SCHEDULED", "DISPATCHING_SCHEDULED"],
    ["BEGIN", "FINISH", "SCHEDULE", "TURN"],
    [
        [DISPATCHING, NONE, SCHEDULED, NONE],  # WAITING
        [NONE, WAITING, DISPATCHING_SCHEDULED, NONE],  # DISPATCHING
        [DISPATCHING_SCHEDULED, NONE, NONE, WAITING],  # SCHEDULED
        [NONE, SCHEDULED, NONE, NONE],  # DISPATCHING_SCHEDULED
    ],
)
