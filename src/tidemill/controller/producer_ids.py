"""Producer ids, handed out of blocks of 1000 that brokers take from the store, so that each is given once."""

from __future__ import annotations

import asyncio

from tidemill.coordination.nodes import PRODUCER_ID_BLOCK, ProducerIdBlock, ProducerIdBlockNode
from tidemill.coordination.port import BadVersion, SetData, Store, ensure_paths
from tidemill.model.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1


class ProducerIds:
    """This broker's supply. What is left of a block when the broker stops is never used."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._end = -1
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody had before; the store is asked once for every thousand."""
        async with self._lock:
            if self._next > self._end:
                block = await self._take_block()
                self._next, self._end = block.start, block.end
            producer_id = self._next
            self._next += 1
            return producer_id

    async def _take_block(self) -> ProducerIdBlock:
        while True:
            node = await self._store.get(PRODUCER_ID_BLOCK)
            if node is None:
                await ensure_paths(self._store, [PRODUCER_ID_BLOCK])
                continue
            start = ProducerIdBlockNode.decode(node.data).end + 1 if node.data else 0
            if start > PRODUCER_ID_MAX - BLOCK_SIZE:
                raise KafkaError("all producer ids are used up", ErrorCode.UNKNOWN_SERVER_ERROR)
            block = ProducerIdBlock(self._broker_id, start, start + BLOCK_SIZE - 1)
            data = ProducerIdBlockNode.encode(block)
            try:
                await self._store.transact([SetData(PRODUCER_ID_BLOCK, data, node.version)])
            except BadVersion:
                continue  # Another broker took that block.
            return block
