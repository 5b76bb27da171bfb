"""Repeats writes to the coordination store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tidemill.coordination.coordination_store import StoreError
from tidemill.model.backoff import Backoff, retry

logger = logging.getLogger("tidemill.server")

RETRY_S = 1.0
"""The pause after a failed write."""


async def retry_until_written(write: Callable[[], Awaitable[object]], description: str) -> None:
    """Repeats ``write`` until it raises no StoreError. ``description`` names the data in log lines.

    Other exceptions of ``write`` are raised.
    """

    def failed(problem: StoreError, pause_s: float) -> None:
        logger.warning(
            "%s could not be written to the store, which is retried in %g s: %s",
            description,
            pause_s,
            problem,
        )

    await retry(write, StoreError, Backoff(RETRY_S, RETRY_S), failed)
