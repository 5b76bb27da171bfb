"""Creates missing topics on request of a client, through the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.handlers import create_topics
from tidemill.controller.auto_created_topics import automatic_topic
from tidemill.controller.topics import NewTopic
from tidemill.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel

TIMEOUT_MS = 10_000
METADATA_WAIT_S_MAX = 2.0
"""How long this broker waits for the metadata of the created topics."""
METADATA_POLL_S = 0.01


class CreationResult(NamedTuple):
    """The result of a creation. A topic that exists already, or is being deleted, is in neither field."""

    created: list[str]
    """The topics that this request has created."""
    errors: dict[str, KafkaError]
    """The errors, by topic."""


async def create_missing_topics(broker: Broker, names: Sequence[str]) -> CreationResult:
    """Creates the missing topics. Raises KafkaError if the creation fails for all of them.

    When it returns, this broker has their metadata, unless that takes longer than ``METADATA_WAIT_S_MAX``.
    """
    # A standalone broker limits the replication factor to 1. In a cluster, missing brokers may be starting.
    replicas_max = len(broker.metadata_cache.brokers) if broker.config.store() == "embedded" else None
    topics = [automatic_topic(broker.config, name, replicas_max) for name in names]
    if broker.controller.is_active or broker.cluster is None:
        outcomes = await broker.controller.admin_manager.create_topics(topics)
        errors = {outcome.name: outcome.error for outcome in outcomes if outcome.error is not None}
    else:
        errors = await _send_create_topics(broker.cluster.controller_channel, topics)
    created = [name for name in names if name not in errors]
    errors = {name: one for name, one in errors.items() if one.code != ErrorCode.TOPIC_ALREADY_EXISTS}
    await _wait_for_metadata(broker, [name for name in names if name not in errors])
    return CreationResult(created, errors)


async def _wait_for_metadata(broker: Broker, names: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + METADATA_WAIT_S_MAX
    for name in names:
        while name not in broker.metadata_cache.topics and loop.time() < deadline:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(METADATA_POLL_S)


async def _send_create_topics(
    channel: BrokerToControllerChannel, topics: Sequence[NewTopic]
) -> dict[str, KafkaError]:
    from tidemill.wire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
        CreateTopicsResponse,
    )

    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partition_count,
                replication_factor=topic.replication_factor,
                assignments=[],
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.config.items()],
            )
            for topic in topics
        ],
        timeout_ms=TIMEOUT_MS,
    )
    response = await channel.send_request(create_topics.API, request, CreateTopicsResponse)
    return {
        one.name: KafkaError(one.error_message or "", ErrorCode.of(one.error_code))
        for one in response.topics
        if one.error_code != 0
    }
