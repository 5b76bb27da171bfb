"""Logs that the coordinator of a group cannot be used, once that has lasted: the client asks on and on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tidemill.client.errors import ClientError

LOG = logging.getLogger(__name__)

TOLD_AFTER_S: Final = 3.0
TOLD_AGAIN_S: Final = 60.0


class CoordinatorTrouble:
    """For how long the requests of a client to coordinators of groups have failed."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told: float | None = None

    def failed(self, group: str, problem: ClientError) -> None:
        """Takes note of an attempt that failed, and is made again; a WARNING of what lasts, once a minute."""
        with self._lock:
            now = self._now()
            if self._since is None:
                self._since = now
            seconds = now - self._since
            if seconds < TOLD_AFTER_S or (self._told is not None and now - self._told < TOLD_AGAIN_S):
                return
            self._told = now
        LOG.warning("group %s waits for its coordinator for %.0f s: %s", group, seconds, problem)

    def ended(self, group: str) -> None:
        """Takes note that the coordinator has answered."""
        with self._lock:
            was_told, self._since, self._told = self._told is not None, None, None
        if was_told:
            LOG.warning("the coordinator of group %s answers again", group)
