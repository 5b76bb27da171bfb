"""Logs the changes of administrators at INFO, each with its requester, once it has taken effect.

Its logger is ``tidemill.admin``. Changes that fail are answered, and not logged. What is changed in ZooKeeper
is logged by the controller, which cannot know who wrote it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.log_lines import cut_short, in_lines
from tidemill.model.slices import slices_of

if TYPE_CHECKING:
    from tidemill.broker.context import RequestContext

log = logging.getLogger("tidemill.admin")

Item = TypeVar("Item")

CLIENT_ID_CHARACTERS_MAX: Final = 100


def note(context: RequestContext, action: str, items: Iterable[str]) -> None:
    """Logs that ``action`` was done to each of ``items``; nothing where there are none."""
    for line in in_lines(items):
        log.info("%s: %s (by %s)", action, line, requester(context))


async def note_each(
    context: RequestContext, action: str, items: Sequence[Item], text_of: Callable[[Item], str]
) -> None:
    """As :func:`note`, of items that may be many: the loop does its other work in between."""
    for some in slices_of(items):
        note(context, action, map(text_of, some))
        await asyncio.sleep(0)


def requester(context: RequestContext) -> str:
    """Principal, client id and address of a request."""
    client_id = cut_short(context.client_id or "", CLIENT_ID_CHARACTERS_MAX)
    return f"{context.principal}, client {client_id!r}, from {context.client_address}"
