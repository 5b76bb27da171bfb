"""The distrusted data directories of this broker in the coordination store.

A failed disk may reject the mark that makes the next start distrust the directory, and the broker may have no
other disk. See :mod:`tidemill.log.failed_sync_marks`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidemill.coordination.coordination_store import SetData, Store, StoreError, ensure_paths
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import DistrustedNode
from tidemill.log.log_directories import DataDirectories
from tidemill.server.store_retries import retry_until_written

logger = logging.getLogger("tidemill.server")

LAST_S: Final = 5.0
"""The maximum wait for the store at shutdown."""


class DistrustedDirectories:
    """Stores ``distrusted`` of the data directories."""

    def __init__(self, store: Store, broker_id: int, logs: DataDirectories) -> None:
        self._store = store
        self._path = DistrustedNode.path(broker_id)
        self._logs = logs
        self._stored: frozenset[str] | None = frozenset()
        """The content of the store; None if it is unknown after a failed write."""

    async def load(self) -> None:
        """Reads the stored directories; called before logs are opened. Raises StoreError."""
        node = await self._store.get(self._path)
        if node is None:
            return
        try:
            stored = DistrustedNode.decode(self._path, node.data) if node.data else frozenset()
        except NodeFormatError as problem:
            logger.error("%s The marks of failed syncs in it are ignored.", problem)
            return
        self._stored = stored
        self._logs.distrusted |= stored

    async def save(self) -> None:
        """Writes the distrusted directories if they differ from the store. Raises StoreError."""
        wanted = frozenset(self._logs.distrusted)
        if wanted == self._stored:
            return
        await ensure_paths(self._store, [self._path])
        # After a failed write the content is unknown, so that also the former content is written again.
        self._stored = None
        await self._store.transact([SetData(self._path, DistrustedNode.encode(wanted))])
        self._stored = wanted

    async def save_with_retries(self) -> None:
        """Repeats :meth:`save` until the store accepts it."""
        await retry_until_written(self.save, "the failed syncs")

    async def save_at_shutdown(self) -> None:
        """Tries :meth:`save` once, for at most ``LAST_S``; called after the logs are closed."""
        try:
            async with asyncio.timeout(LAST_S):
                await self.save()
        except (StoreError, TimeoutError) as problem:
            logger.error("not all failed syncs of this broker are in the store: %r", problem)
