"""Tracks how long this broker has been disconnected from the coordination store."""

from __future__ import annotations

from tidemill.coordination.registration_listener import RegistrationListener
from tidemill.model.system_interfaces import Clock

DISCONNECTED_MS_MIN = 1
"""The value right after a disconnection, because 0 means that the broker is connected."""


class StoreConnectivity(RegistrationListener):
    """Updated by the events of the session. ``/healthz``, the metrics and DescribeCluster read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._disconnected_since_ms: int | None = None
        self.disconnections = 0
        """The number of disconnections."""
        self.expirations = 0
        """The number of expired sessions."""

    @property
    def disconnected_ms(self) -> int:
        """The time since the disconnection; 0 while connected."""
        since_ms = self._disconnected_since_ms
        if since_ms is None:
            return 0
        return max(DISCONNECTED_MS_MIN, int(self._clock.monotonic_ms()) - since_ms)

    def store_disconnected(self) -> None:
        """The store does not respond."""
        if self._disconnected_since_ms is None:
            self._disconnected_since_ms = int(self._clock.monotonic_ms())
            self.disconnections += 1

    def session_expired(self) -> None:
        """The session has expired."""
        self.expirations += 1
        self.store_disconnected()

    def store_reconnected(self) -> None:
        """The store responds again."""
        self._disconnected_since_ms = None
