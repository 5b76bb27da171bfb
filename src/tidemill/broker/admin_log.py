"""Logs the changes of administrators at INFO, each with its requester, after it has taken effect.

The logger is ``tidemill.admin``. A failed change is reported in its response only. The controller logs
changes that are written to ZooKeeper; their requester is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.event_loop_slices import slices_of
from tidemill.model.log_lines import cut_short, in_lines

if TYPE_CHECKING:
    from tidemill.broker.request_context import RequestContext

logger = logging.getLogger("tidemill.admin")

Item = TypeVar("Item")

CLIENT_ID_CHARACTERS_MAX: Final = 100


def log_change(context: RequestContext, action: str, items: Iterable[str]) -> None:
    """Logs ``action`` with ``items``. Logs nothing without items."""
    for line in in_lines(items):
        logger.info("%s: %s (by %s)", action, line, requester(context))


async def log_changes(
    context: RequestContext, action: str, items: Sequence[Item], text_of: Callable[[Item], str]
) -> None:
    """Logs ``action`` with many items, in slices: the event loop does other work between two slices."""
    for some in slices_of(items):
        log_change(context, action, map(text_of, some))
        await asyncio.sleep(0)


def requester(context: RequestContext) -> str:
    """Returns the principal, client id and address of a request."""
    client_id = cut_short(context.client_id or "", CLIENT_ID_CHARACTERS_MAX)
    return f"{context.principal}, client {client_id!r}, from {context.client_address}"
