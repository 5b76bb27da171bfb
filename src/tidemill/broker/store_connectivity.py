"""Tracks how long the coordination store has not answered this broker."""

from __future__ import annotations

from tidemill.model.ports import Clock

MILLISECONDS_LEAST = 1
"""A store that has just gone has been silent for longer than 0 ms, which means that it answers."""


class StoreConnectivity:
    """Kept up to date by the session's events; read by ``/healthz``, the metrics and DescribeCluster."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_since_ms: int | None = None
        self.interruptions = 0
        """How often the store stopped answering."""
        self.expirations = 0
        """How often the session ended."""

    @property
    def silent_ms(self) -> int:
        """For how long the store has not answered; 0 while it answers."""
        since_ms = self._silent_since_ms
        if since_ms is None:
            return 0
        return max(MILLISECONDS_LEAST, int(self._clock.monotonic_ms()) - since_ms)

    def silent(self) -> None:
        """The store does not answer."""
        if self._silent_since_ms is None:
            self._silent_since_ms = int(self._clock.monotonic_ms())
            self.interruptions += 1

    def expired(self) -> None:
        """The session has ended."""
        self.expirations += 1
        self.silent()

    def back(self) -> None:
        """The store answers."""
        self._silent_since_ms = None
