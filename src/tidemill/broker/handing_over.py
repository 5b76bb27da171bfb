"""Before this broker stops: what it leads goes to others first, so that clients hardly notice the stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidemill.broker.broker import Broker
from tidemill.coordination.port import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse

log = logging.getLogger("tidemill.broker")

VERSIONS = (3, 3)
AGAIN_S = 0.2
"""Before a controller that cannot be asked just now is asked again, within the time of one attempt."""


async def hand_over(
    broker: Broker, epoch: Callable[[], int], follow_nobody: Callable[[], Awaitable[None]]
) -> None:
    """Asks the controller, here or elsewhere, until nothing is left that another broker could lead.

    ``follow_nobody`` ends what this broker follows: what it still fetched of the new leaders, they would take
    for a return into the in-sync sets, and wait for it after its end.

    ``epoch`` gives that of this broker's registration, which a session that ends meanwhile changes. After
    ``controlled.shutdown.max.retries`` attempts the rest is given up: it is led
    again when one of its replicas in sync is back.
    """
    config = broker.config
    if not config.bool("controlled.shutdown.enable") or _is_alone(broker):
        return
    await follow_nobody()
    rest_s = config.int("controlled.shutdown.retry.backoff.ms") / 1000
    for attempts_left in reversed(range(max(1, config.int("controlled.shutdown.max.retries")))):
        try:
            remaining = await _answer(broker, epoch, rest_s)
        except (KafkaError, StoreError) as problem:
            log.warning("leaderships cannot be handed over: %s", problem)
        else:
            if not remaining:
                log.info("what this broker led is led by others")
                return
            log.warning(
                "%d partitions have no other replica in sync, %s-%d for instance",
                len(remaining),
                *remaining[0],
            )
            if not await _may_move(broker, remaining, rest_s if attempts_left else 0.0):
                log.info("no other broker that runs has a replica of them: they are not waited for")
                return
            continue
        if not attempts_left or _is_alone(broker):
            return
        await asyncio.sleep(rest_s)


async def _may_move(broker: Broker, remaining: Sequence[TopicPartition], rest_s: float) -> bool:
    """Waits for so long; False as soon as no other broker that lives has a replica of ``remaining``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + rest_s
    while any(_has_others(broker, one) for one in remaining):
        left_s = deadline - loop.time()
        if left_s <= 0:
            return True
        await asyncio.sleep(min(AGAIN_S, left_s))
    return False


def _has_others(broker: Broker, key: TopicPartition) -> bool:
    """Whether another broker that lives has a replica which it can read and write."""
    image = broker.metadata.image
    topic = image.topics.get(key.topic)
    partition = topic.partition(key.partition) if topic is not None else None
    return partition is None or any(
        one != broker.node_id and one in image.brokers and one not in partition.offline
        for one in partition.replicas
    )


def _is_alone(broker: Broker) -> bool:
    return set(broker.metadata.image.brokers) <= {broker.node_id}


async def _answer(broker: Broker, epoch: Callable[[], int], patience_s: float) -> Sequence[TopicPartition]:
    """What is left, once the controller says so. An election of another one takes less than an attempt."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    told = False
    while True:
        try:
            return await _ask(broker, epoch())
        except (KafkaError, StoreError) as problem:
            if loop.time() >= deadline:
                raise
            if not told:
                log.info("leaderships are handed over a little later: %s", problem)
            told = True
        await asyncio.sleep(AGAIN_S)


async def _ask(broker: Broker, epoch: int) -> Sequence[TopicPartition]:
    if broker.controller.is_active:
        return await broker.controller.leading.shut_down(broker.node_id, epoch)
    request = ControlledShutdownRequest(broker_id=broker.node_id, broker_epoch=epoch)
    link = broker.controller_link
    if link is None:
        return []
    answer: ControlledShutdownResponse = await link.ask(ApiKey.CONTROLLED_SHUTDOWN, VERSIONS, request)
    if answer.error_code != 0:
        known = answer.error_code in set(ErrorCode)
        code = ErrorCode(answer.error_code) if known else ErrorCode.UNKNOWN_SERVER_ERROR
        raise KafkaError(f"the controller answers with error {answer.error_code} ({code.name})", code)
    return [TopicPartition(one.topic_name, one.partition_index) for one in answer.remaining_partitions]
