"""Repeats writes to the coordination store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemill.coordination.coordination_store import StoreError

logger = logging.getLogger("tidemill.server")

RETRY_S = 1.0
"""The pause after a failed write."""


async def retry_until_written(write: Callable[[], Awaitable[object]], description: str) -> None:
    """Repeats ``write`` until it raises no StoreError. ``description`` names the data in log lines.

    Other exceptions of ``write`` are raised.
    """
    while True:
        try:
            await write()
        except StoreError as problem:
            logger.warning(
                "%s could not be written to the store, which is retried in %g s: %s",
                description,
                RETRY_S,
                problem,
            )
            await asyncio.sleep(RETRY_S)
        else:
            return
