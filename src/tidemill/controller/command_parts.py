"""Commands about many topics, carried out a part at a time.

Other work gets the event loop and the controller's lock between two parts. Each topic has a result of its
own, as in Apache Kafka: a command is not atomic, and the result of a part does not depend on the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from tidemill.controller.office import wait_for_others
from tidemill.coordination.image import TopicImage
from tidemill.coordination.port import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.slices import slices_by_weight

logger = logging.getLogger(__name__)

PARTITIONS_A_PART: Final = 100
"""Of the topics of one part: some ten microseconds of work each, at several places."""


class Outcome(NamedTuple):
    """The result of one item of a command: the topic as it then is, or an error."""

    name: str
    topic: TopicImage | None = None
    error: KafkaError | None = None


Item = TypeVar("Item")
Part = tuple[list[Outcome], list[asyncio.Future[None]]]
"""Outcomes, and the other brokers (see :attr:`Delta.others`) that carry the part out."""


async def in_parts(
    items: Sequence[Item],
    weight_of: Callable[[Item], int],
    name_of: Callable[[Item], str],
    carry_out: Callable[[Sequence[Item]], Awaitable[Part]],
) -> list[Outcome]:
    """Has the parts of ``items`` carried out, one after the other; the outcomes of all of them.

    ``weight_of`` an item is the number of its partitions. Raises what ``carry_out`` raises for the first
    part. Where a later one fails, its items and those after it have that as their error.
    """
    outcomes: list[Outcome] = []
    others: list[asyncio.Future[None]] = []
    for part in slices_by_weight(items, weight_of, PARTITIONS_A_PART):
        try:
            done, carrying = await carry_out(part)
        except (KafkaError, StoreError) as problem:
            if not outcomes:
                raise
            logger.warning("of %d topics of a command %d are done: %s", len(items), len(outcomes), problem)
            code = problem.code if isinstance(problem, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            error = KafkaError(str(problem), code)
            outcomes += [Outcome(name_of(one), error=error) for one in items[len(outcomes) :]]
            break
        outcomes += done
        others += carrying
        await asyncio.sleep(0)
    await wait_for_others(others)
    return outcomes
