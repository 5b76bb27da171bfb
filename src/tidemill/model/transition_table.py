"""A transition table of a state machine. Compiled."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

NONE: Final[i64] = -1
"""In a table: the state has no transition for the event."""


class TransitionTable:
    """The state that follows each state by each event."""

    def __init__(self, name: str, states: list[str], events: list[str], rows: list[list[i64]]) -> None:
        """``rows`` has a row for each state and a column for each event. The names are for error texts."""
        self.name = name
        self.states = states
        self.events = events
        self.rows: list[list[i64]] = rows

    def after(self, state: i64, event: i64) -> i64:
        """Returns the state that follows ``state`` by ``event``. Raises RuntimeError if there is none."""
        following: i64 = self.rows[state][event]
        if following < 0:
            raise RuntimeError(f"{self.name} state {self.states[state]} cannot handle {self.events[event]}")
        return following
