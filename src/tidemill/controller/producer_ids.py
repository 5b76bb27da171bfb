"""Blocks of producer ids: brokers take a thousand at a time from the store, so that each id is given once."""

from __future__ import annotations

from tidemill.coordination.nodes import PRODUCER_ID_BLOCK, ProducerIdBlock, ProducerIdBlockNode
from tidemill.coordination.port import BadVersion, SetData, Store, StoreError, ensure_paths
from tidemill.model.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1


async def claim_block(store: Store, broker_id: int) -> tuple[int, int]:
    """The first of a thousand ids that nobody had before, and their number.

    Raises KafkaError (COORDINATOR_NOT_AVAILABLE, after which clients try again) when the store does not
    answer.
    """
    while True:
        try:
            node = await store.get(PRODUCER_ID_BLOCK)
            if node is None:
                await ensure_paths(store, [PRODUCER_ID_BLOCK])
                continue
            start = ProducerIdBlockNode.decode(node.data).end + 1 if node.data else 0
            if start > PRODUCER_ID_MAX - BLOCK_SIZE:
                raise KafkaError("all producer ids are used up")
            block = ProducerIdBlock(broker_id, start, start + BLOCK_SIZE - 1)
            data = ProducerIdBlockNode.encode(block)
            await store.transact([SetData(PRODUCER_ID_BLOCK, data, node.version)])
        except BadVersion:
            continue  # Another broker took that block.
        except StoreError as error:
            raise KafkaError(str(error), ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        return start, BLOCK_SIZE
