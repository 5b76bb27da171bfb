"""Warns when a coordinator is unavailable for some seconds, while the client retries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tidemill.client.errors import ClientError
from tidemill.client.wait_reasons import Kind, Wait

logger = logging.getLogger(__name__)

WARN_AFTER_S: Final = 3.0
WARN_AGAIN_S: Final = 60.0


class CoordinatorWarnings:
    """Tracks how long a client's requests to coordinators have failed."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._since: float | None = None
        self._warned: float | None = None
        """When the last warning was logged."""
        self.current: Wait | None = None
        """The group or the transactional id that waits now."""

    def failed(self, name: str, problem: ClientError, kind: Kind = Kind.GROUP) -> None:
        """Records a failed attempt that is retried. Warns once a minute while the failures last."""
        with self._lock:
            now = self._now()
            if self._since is None:
                self._since = now
            seconds = now - self._since
            self.current = Wait(kind, name, str(problem), self._since)
            if seconds < WARN_AFTER_S or (self._warned is not None and now - self._warned < WARN_AGAIN_S):
                return
            self._warned = now
        logger.warning("%s %s waits for its coordinator for %.0f s: %s", kind.value, name, seconds, problem)

    def ended(self, name: str, kind: Kind = Kind.GROUP) -> None:
        """Records that the coordinator has answered."""
        with self._lock:
            had_warned, self._since, self._warned = self._warned is not None, None, None
            self.current = None
        if had_warned:
            logger.warning("the coordinator of %s %s answers again", kind.value, name)
