"""Allocates blocks of producer ids from the store, so that every id is assigned once."""

from __future__ import annotations

import logging

from tidemill.coordination.coordination_store import BadVersion, SetData, Store, StoreError, ensure_paths
from tidemill.coordination.nodes import PRODUCER_ID_BLOCK, ProducerIdBlock, ProducerIdBlockNode
from tidemill.coordination.store_error_codes import PRODUCER_ID_CODES, wire_error
from tidemill.model.errors import KafkaError

logger = logging.getLogger("tidemill.controller")

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1
ASSIGNED_ID_MAX = PRODUCER_ID_MAX // 2
"""No store has assigned a larger id: a client that sends one has made it up."""
SKIPPED_IDS = 1_000_000
"""Ids that a lost store may have assigned to producers that no log knows."""


async def claim_block(store: Store, broker_id: int, used: int = -1) -> tuple[int, int]:
    """Allocates a block of producer ids. Returns its first id and its size.

    ``used`` is the largest id in the logs of this broker. A store that has not assigned that id was recreated
    or is an older copy. It then skips this id and the following ids, which producers may have: to a log, a
    batch with the id of another producer may look like a duplicate.

    Raises KafkaError (COORDINATOR_NOT_AVAILABLE, which clients retry) if the store is unavailable.
    """
    while True:
        try:
            node = await store.get(PRODUCER_ID_BLOCK)
            if node is None:
                await ensure_paths(store, [PRODUCER_ID_BLOCK])
                continue
            start = ProducerIdBlockNode.decode(node.data).end + 1 if node.data else 0
            if start <= used <= ASSIGNED_ID_MAX:
                logger.warning(
                    "the store assigns producer ids from %d on, but the logs contain id %d: it was recreated"
                    " or is an older copy. Assigning ids from %d on",
                    start,
                    used,
                    used + 1 + SKIPPED_IDS,
                )
                start = used + 1 + SKIPPED_IDS
            if start > PRODUCER_ID_MAX - BLOCK_SIZE:
                raise KafkaError(
                    f"no producer ids are left: the next is {start}. Check {PRODUCER_ID_BLOCK} in the store."
                )
            block = ProducerIdBlock(broker_id, start, start + BLOCK_SIZE - 1)
            data = ProducerIdBlockNode.encode(block)
            await store.transact([SetData(PRODUCER_ID_BLOCK, data, node.version)])
        except BadVersion:
            continue  # Another broker allocated that block.
        except StoreError as error:
            raise wire_error(error, PRODUCER_ID_CODES) from error
        return start, BLOCK_SIZE
