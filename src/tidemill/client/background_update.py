"""Runs the updates of a client in a helper thread, one at a time: its metadata and its producer id.

For threads that serve several brokers and must not block on one of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidemill.model.errors import TidemillError

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""The timeout of an update."""


class BackgroundUpdate:
    """An update that is in progress or not."""

    def __init__(self, retry_backoff_s: float) -> None:
        self._retry_backoff_s = retry_backoff_s
        self._lock = threading.Lock()
        self._is_running = False

    def start(
        self,
        update: Callable[[float], None],
        failed: Callable[[TidemillError], None],
        done: Callable[[], None],
    ) -> None:
        """Calls ``update(deadline)`` in a separate thread, then ``done``; no-op during another update.

        ``failed`` receives the error of the update. The pause of ``retry.backoff.ms`` follows every failure,
        an unexpected one as well, since the caller may start the next update at once.
        """

        def run() -> None:
            pause_s = self._retry_backoff_s
            try:
                update(time.monotonic() + TIMEOUT_S)
                pause_s = 0.0
            except TidemillError as problem:
                logger.debug("metadata or producer id: %s", problem)
                failed(problem)
            finally:
                time.sleep(pause_s)
                with self._lock:
                    self._is_running = False
                done()

        with self._lock:
            if not self._is_running:
                threading.Thread(target=run, name="tidemill-metadata", daemon=True).start()
                self._is_running = True
