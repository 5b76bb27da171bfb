"""Reaching another broker, however long it takes; and telling one that has ended from one that is slow.

A connection that breaks is a sign: where nobody listens any more, several times in a row, there the process
has ended, long before its session with the store does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemill.net.link import Link, LinkBroken, LinkError, LinkRefused

log = logging.getLogger("tidemill.broker")

REFUSED_TIMES = 3
REFUSED_EVERY_S = 0.1
"""A broker that refuses connections so often, at this distance, has ended."""
RETRY_S = 0.5


async def reach(
    connect: Callable[[], Awaitable[Link]],
    dead: Callable[[], None],
    is_stopping: Callable[[], bool] = lambda: False,
    refused: int = 0,
) -> Link:
    """A connection. ``dead`` is called when the broker is found to have ended; it is tried all the same.

    ``is_stopping``: whether the broker has announced its stop. A failure is then logged at INFO.
    ``refused``: how often the broker has refused connections just before.
    """
    was_broken = False
    while True:
        try:
            return await connect()
        except LinkRefused:
            refused += 1
            if refused == REFUSED_TIMES:
                dead()
            await asyncio.sleep(REFUSED_EVERY_S if refused < REFUSED_TIMES else RETRY_S)
            continue
        except LinkError as problem:
            log.log(logging.INFO if is_stopping() else logging.WARNING, "%s; it is tried again", problem)
            if isinstance(problem, LinkBroken) and not was_broken:
                # A process that is ending: its listening socket was closed a moment after the connections.
                was_broken = True
                refused = 0
                await asyncio.sleep(REFUSED_EVERY_S)
                continue
        except Exception:
            log.exception("a broker cannot be reached; it is tried again")
        refused = 0
        await asyncio.sleep(RETRY_S)
