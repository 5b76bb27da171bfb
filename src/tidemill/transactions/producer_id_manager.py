"""Producer ids: assigned one by one from blocks that the coordination store allocates to this broker.

An id is never assigned twice, not by another broker and not after a restart: a block belongs to one broker
from the moment of its allocation in the store, and ids that remain at a stop are never used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tidemill.model.errors import KafkaError

IDS_LEFT_MIN = 100
"""With fewer ids left than this, another block is allocated in advance."""


class ProducerIdManager:
    """The ids of this broker's current block, and perhaps the next block.

    ``allocate_block`` allocates the next block and returns (first id, number of ids).
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._ahead: tuple[int, int] | None = None
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """Returns an unused id. Raises the store's error when a new block cannot be allocated."""
        async with self._lock:
            if self._next >= self._end:
                block, self._ahead = self._ahead, None
                first, count = block if block is not None else await self._allocate_block()
                self._next, self._end = first, first + count
            producer_id = self._next
            self._next += 1
            return producer_id

    async def prepare(self) -> None:
        """Allocates a block in advance when few ids are left, for the time when the store is unavailable."""
        if self._ahead is None and self._end - self._next < IDS_LEFT_MIN:
            with contextlib.suppress(KafkaError):  # The next call retries.
                self._ahead = await self._allocate_block()
