"""The stopping broker's side of a controlled shutdown: it asks the controller to move its leaderships."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidemill.broker.broker import Broker
from tidemill.broker.handlers import controlled_shutdown as handler
from tidemill.coordination.coordination_store import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse

logger = logging.getLogger("tidemill.broker")

RETRY_S = 0.2
"""The pause before the request is sent again within one attempt, if the controller does not respond."""


async def request_controlled_shutdown(
    broker: Broker, epoch: Callable[[], int], stop_fetchers: Callable[[], Awaitable[None]]
) -> None:
    """Sends ControlledShutdown to the controller until no partition is left that another broker could lead.

    ``stop_fetchers`` stops the replica fetchers. The new leaders would add a follower that still fetches to
    the ISR again, and would wait for it after this broker has stopped.

    ``epoch`` returns the broker epoch, which changes with a new session. After
    ``controlled.shutdown.max.retries`` attempts this broker stops. The remaining partitions have no leader
    until an in-sync replica is online again.
    """
    config = broker.config
    if not config.bool("controlled.shutdown.enable") or _is_only_broker(broker):
        return
    await stop_fetchers()
    backoff_s = config.seconds("controlled.shutdown.retry.backoff.ms")
    for attempts_left in reversed(range(max(1, config.int("controlled.shutdown.max.retries")))):
        try:
            remaining = await _send_with_retries(broker, epoch, backoff_s)
        except (KafkaError, StoreError) as problem:
            logger.warning("the controlled shutdown failed: %s", problem)
        else:
            if not remaining:
                logger.info("other brokers lead all partitions that this broker led")
                return
            logger.warning(
                "%d partitions have no other in-sync replica, %s-%d for instance",
                len(remaining),
                *remaining[0],
            )
            if not await _wait_while_movable(broker, remaining, backoff_s if attempts_left else 0.0):
                logger.info("no other live broker has a replica of them: this broker does not wait for them")
                return
            continue
        if not attempts_left or _is_only_broker(broker):
            return
        await asyncio.sleep(backoff_s)


async def _wait_while_movable(broker: Broker, remaining: Sequence[TopicPartition], backoff_s: float) -> bool:
    """Waits for ``backoff_s``.

    Returns False as soon as no other live broker has a replica of ``remaining``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + backoff_s
    while any(_has_other_live_replica(broker, one) for one in remaining):
        left_s = deadline - loop.time()
        if left_s <= 0:
            return True
        await asyncio.sleep(min(RETRY_S, left_s))
    return False


def _has_other_live_replica(broker: Broker, key: TopicPartition) -> bool:
    """Whether another live broker has an online replica."""
    image = broker.metadata_cache.image
    topic = image.topics.get(key.topic)
    partition = topic.partition(key.partition) if topic is not None else None
    return partition is None or any(
        one != broker.node_id and one in image.brokers and one not in partition.offline
        for one in partition.replicas
    )


def _is_only_broker(broker: Broker) -> bool:
    return set(broker.metadata_cache.image.brokers) <= {broker.node_id}


async def _send_with_retries(
    broker: Broker, epoch: Callable[[], int], timeout_s: float
) -> Sequence[TopicPartition]:
    """Returns the remaining partitions of the response. One attempt outlasts the election of a controller."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    is_logged = False
    while True:
        try:
            return await _send_request(broker, epoch())
        except (KafkaError, StoreError) as problem:
            if loop.time() >= deadline:
                raise
            if not is_logged:
                logger.info("ControlledShutdown is sent again: %s", problem)
            is_logged = True
        await asyncio.sleep(RETRY_S)


async def _send_request(broker: Broker, epoch: int) -> Sequence[TopicPartition]:
    if broker.controller.is_active:
        return await broker.controller.leader_elections.handle_controlled_shutdown(
            broker.node_id, broker_epoch=epoch
        )
    request = ControlledShutdownRequest(broker_id=broker.node_id, broker_epoch=epoch)
    if broker.cluster is None:
        return []
    response = await broker.cluster.controller_channel.send_request(
        handler.API, request, ControlledShutdownResponse
    )
    if response.error_code != 0:
        code = ErrorCode.of(response.error_code)
        raise KafkaError(f"the controller returns error {response.error_code} ({code.name})", code)
    return [TopicPartition(one.topic_name, one.partition_index) for one in response.remaining_partitions]
