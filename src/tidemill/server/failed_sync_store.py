"""The directories of this broker in which a sync failed, as the coordination store knows them.

The disk that failed may not take the mark that keeps the next start from trusting it, and a broker may have
no other. See :mod:`tidemill.log.failed_sync_marks`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.failed_sync_node import DistrustedNode
from tidemill.coordination.port import SetData, Store, StoreError, ensure_paths
from tidemill.log.directories import DataDirectories

log = logging.getLogger("tidemill.server")

AGAIN_S: Final = 1.0
LAST_S: Final = 5.0
"""How long the end of a broker waits for the store."""


class DistrustedDirectories:
    """Keeps ``distrusted`` of ``logs`` in the store."""

    def __init__(self, store: Store, broker_id: int, logs: DataDirectories) -> None:
        self._store = store
        self._path = DistrustedNode.path(broker_id)
        self._logs = logs
        self._stored: frozenset[str] | None = frozenset()
        """What the store has; None where a write was not answered."""

    async def load(self) -> None:
        """Takes over what the store knows, before logs are opened. Raises StoreError."""
        node = await self._store.get(self._path)
        if node is None:
            return
        try:
            stored = DistrustedNode.decode(self._path, node.data) if node.data else frozenset()
        except NodeFormatError as problem:
            log.error("%s Its marks of failed syncs are ignored.", problem)
            return
        self._stored = stored
        self._logs.distrusted |= stored

    async def save(self) -> None:
        """Writes what holds now, if that is something else. Raises StoreError."""
        wanted = frozenset(self._logs.distrusted)
        if wanted == self._stored:
            return
        await ensure_paths(self._store, [self._path])
        # Without an answer the store may have either, also where ``wanted`` is what it had before again.
        self._stored = None
        await self._store.transact([SetData(self._path, DistrustedNode.encode(wanted))])
        self._stored = wanted

    async def save_for_sure(self) -> None:
        """As :meth:`save`, until the store takes it."""
        while True:
            try:
                await self.save()
            except StoreError as problem:
                log.warning("the store does not have the failed syncs of this broker yet: %s", problem)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def save_last(self) -> None:
        """As :meth:`save`, once the logs are closed; it may not succeed."""
        try:
            async with asyncio.timeout(LAST_S):
                await self.save()
        except (StoreError, TimeoutError) as problem:
            log.error("the failed syncs of this broker are not all in the store: %r", problem)
