"""The states of a session with ZooKeeper, as a transition table.

The states up to CONNECTED are those before :meth:`ZooKeeperStore.open` returns. RESTORING and RENEWING last
from a reconnect until all watches are set again.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.coordination.coordination_store import SessionState
from tidemill.model.transition_table import NONE, TransitionTable

OPENING: Final[i64] = 0
"""No connection yet."""
CONNECTED: Final[i64] = 1
"""Connected; the chroot is not known to exist."""
USABLE: Final[i64] = 2
"""Calls are accepted and events are delivered, in no other state."""
SUSPENDED: Final[i64] = 3
"""The connection was lost. The session may survive."""
RESTORING: Final[i64] = 4
"""Connected again, in the same session."""
EXPIRED: Final[i64] = 5
"""The session has ended, and there is no next one."""
RENEWING: Final[i64] = 6
"""Connected, in the next session."""
CLOSED: Final[i64] = 7

CONNECT: Final[i64] = 0
RESUME: Final[i64] = 1
LOSE: Final[i64] = 2
EXPIRE: Final[i64] = 3
CLOSE: Final[i64] = 4

TRANSITIONS: Final = TransitionTable(
    "ZooKeeper session",
    ["OPENING", "CONNECTED", "USABLE", "SUSPENDED", "RESTORING", "EXPIRED", "RENEWING", "CLOSED"],
    ["CONNECT", "RESUME", "LOSE", "EXPIRE", "CLOSE"],
    [
        [CONNECTED, NONE, OPENING, OPENING, CLOSED],  # OPENING
        [NONE, USABLE, OPENING, OPENING, CLOSED],  # CONNECTED
        [NONE, NONE, SUSPENDED, EXPIRED, CLOSED],  # USABLE
        [RESTORING, NONE, SUSPENDED, EXPIRED, CLOSED],  # SUSPENDED
        [NONE, USABLE, SUSPENDED, EXPIRED, CLOSED],  # RESTORING
        [RENEWING, NONE, EXPIRED, EXPIRED, CLOSED],  # EXPIRED
        [NONE, USABLE, EXPIRED, EXPIRED, CLOSED],  # RENEWING
        [NONE, NONE, NONE, NONE, NONE],  # CLOSED
    ],
)

_CONNECTED_STATES: Final = frozenset({CONNECTED, USABLE, RESTORING, RENEWING})
_REPORTED: Final = {
    USABLE: SessionState.CONNECTED,
    SUSPENDED: SessionState.SUSPENDED,
    RESTORING: SessionState.SUSPENDED,
    EXPIRED: SessionState.EXPIRED,
    RENEWING: SessionState.EXPIRED,
}


class Session:
    """The state of one session, and of those that follow it after an expiration."""

    def __init__(self) -> None:
        self.state: i64 = OPENING

    def handle(self, event: i64) -> None:
        """Changes the state. Raises RuntimeError if the state has no transition for the event."""
        self.state = TRANSITIONS.after(self.state, event)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self.state in _CONNECTED_STATES

    @property
    def is_usable(self) -> bool:
        """Whether calls are accepted and events are delivered."""
        return self.state == USABLE

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed."""
        return self.state == CLOSED

    @property
    def reported_state(self) -> SessionState | None:
        """The state for session listeners; None before the session is usable and after its close."""
        return _REPORTED.get(self.state)
