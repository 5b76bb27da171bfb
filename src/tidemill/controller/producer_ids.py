"""Blocks of producer ids: brokers take a thousand at a time from the store, so that each id is given once."""

from __future__ import annotations

import logging

from tidemill.coordination.nodes import PRODUCER_ID_BLOCK, ProducerIdBlock, ProducerIdBlockNode
from tidemill.coordination.port import BadVersion, SetData, Store, StoreError, ensure_paths
from tidemill.model.errors import ErrorCode, KafkaError

log = logging.getLogger("tidemill.controller")

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1
GIVEN_MAX = PRODUCER_ID_MAX // 2
"""No store has given out a larger id: a client that writes one has made it up."""
UNSEEN = 1_000_000
"""Ids that a lost store may have given to producers of which no log knows."""


async def claim_block(store: Store, broker_id: int, used: int = -1) -> tuple[int, int]:
    """The first of a thousand ids that nobody had before, and their number.

    ``used`` is the largest id in the logs of the broker. A store that has not given it out was made anew, or
    is an older copy. It leaves that id out, and those after it which producers may have. To a log, what a
    producer sends with the id of another may be a repetition of what that one has sent.

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
            if start <= used <= GIVEN_MAX:
                log.warning(
                    "the store gives out producer ids from %d on, and the logs know id %d: it was made anew,"
                    " or is an older copy. Ids from %d on are given out",
                    start,
                    used,
                    used + 1 + UNSEEN,
                )
                start = used + 1 + UNSEEN
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
