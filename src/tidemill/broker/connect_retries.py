"""Connects to another broker with retries, and detects from the errors that its process has ended.

If the broker refuses several connections in a row, its process has ended. This is known long before its
session with the store expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemill.net.link import Link, LinkBroken, LinkError, LinkRefused

logger = logging.getLogger("tidemill.broker")

REFUSALS_OF_ENDED_BROKER = 3
REFUSED_RETRY_S = 0.1
"""The process of a broker has ended if it refuses this number of connections, at this interval."""
RETRY_S = 0.5


async def connect_with_retries(
    connect: Callable[[], Awaitable[Link]],
    on_ended: Callable[[], None],
    is_stopping: Callable[[], bool],
    refused: int = 0,
) -> Link:
    """Connects until it succeeds, and returns the connection.

    ``on_ended``: called when the process of the broker has ended. The attempts continue.
    ``is_stopping``: whether the broker has announced its stop. Its errors are then logged at INFO.
    ``refused``: the number of connections that the broker has refused just before.
    """
    was_broken = False
    while True:
        pause_s = RETRY_S
        try:
            return await connect()
        except LinkRefused:
            refused += 1
            if refused == REFUSALS_OF_ENDED_BROKER:
                on_ended()
            pause_s = REFUSED_RETRY_S if refused < REFUSALS_OF_ENDED_BROKER else RETRY_S
        except LinkError as problem:
            logger.log(logging.INFO if is_stopping() else logging.WARNING, "%s; trying again", problem)
            refused = 0
            if isinstance(problem, LinkBroken) and not was_broken:
                # The process is ending: the system closes its listening socket just after its connections.
                was_broken = True
                pause_s = REFUSED_RETRY_S
        except Exception:
            logger.exception("connecting to a broker failed; trying again")
            refused = 0
        await asyncio.sleep(pause_s)
