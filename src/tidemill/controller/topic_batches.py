"""Runs commands on many topics in parts.

Between two parts, other work gets the event loop and the controller's lock. Each topic has its own result, as
in Apache Kafka: a command is not atomic, and the result of a part does not depend on the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from tidemill.controller.controller_context import wait_for_others
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.errors import KafkaError
from tidemill.model.event_loop_slices import slices_by_weight

logger = logging.getLogger(__name__)

PARTITIONS_A_PART: Final = 100
"""Partitions of the topics of one part, at some ten microseconds of work each, in several places."""


class Outcome(NamedTuple):
    """The result of one item of a command: the new topic, or an error."""

    name: str
    topic: TopicImage | None = None
    error: KafkaError | None = None


Item = TypeVar("Item")
Part = tuple[list[Outcome], Sequence[asyncio.Future[None]]]
"""Outcomes, and the other brokers that apply the part (see :attr:`Announcement.others`)."""


async def run_in_parts(
    items: Sequence[Item],
    weight_of: Callable[[Item], int],
    name_of: Callable[[Item], str],
    run_part: Callable[[Sequence[Item]], Awaitable[Part]],
) -> list[Outcome]:
    """Runs ``run_part`` for parts of ``items``, one after another. Returns all outcomes.

    ``weight_of`` returns the number of partitions of an item. Raises the errors of ``run_part`` for the
    first part. If a later part fails, its items and all following ones get that error.
    """
    outcomes: list[Outcome] = []
    others: list[asyncio.Future[None]] = []
    for part in slices_by_weight(items, weight_of, PARTITIONS_A_PART):
        try:
            done, part_others = await run_part(part)
        except (KafkaError, StoreError) as problem:
            if not outcomes:
                raise
            logger.warning(
                "a command on %d topics failed after %d of them: %s", len(items), len(outcomes), problem
            )
            error = wire_error(problem).as_result()
            outcomes += [Outcome(name_of(item), error=error) for item in items[len(outcomes) :]]
            break
        outcomes += done
        others += part_others
        await asyncio.sleep(0)
    await wait_for_others(others)
    return outcomes
