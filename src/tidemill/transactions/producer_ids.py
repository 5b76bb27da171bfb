"""Producer ids: given out one by one from blocks that the coordination store hands to this broker.

An id is never given out twice, not by another broker and not after a restart: a block belongs to one
broker from the moment that the store says so, and what is left of it at a stop is never used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tidemill.model.errors import KafkaError

LEAST = 100
"""With fewer ids than this, another block is claimed ahead."""


class ProducerIds:
    """The ids of this broker's current block, and perhaps a block to go on with.

    ``allocate_block`` claims the next block and returns (first id, number of ids).
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._ahead: tuple[int, int] | None = None
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody has had. Raises what the store raises when a new block cannot be claimed."""
        async with self._lock:
            if self._next >= self._end:
                block, self._ahead = self._ahead, None
                first, count = block if block is not None else await self._allocate_block()
                self._next, self._end = first, first + count
            producer_id = self._next
            self._next += 1
            return producer_id

    async def prepare(self) -> None:
        """Claims a block ahead where few ids are left: producers also come while the store is silent."""
        if self._ahead is None and self._end - self._next < LEAST:
            with contextlib.suppress(KafkaError):  # The next call tries again.
                self._ahead = await self._allocate_block()
