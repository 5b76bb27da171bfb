"""Topics that are made because somebody asked for them, by whichever broker is the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemill.controller.automatic import automatic_topic
from tidemill.controller.topics import NewTopic
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.controller_link import ControllerLink

VERSIONS = (7, 7)
TIMEOUT_MS = 10_000
HEARD_S = 2.0
"""How long this broker waits to hear of what the controller has made."""
LOOK_S = 0.01


class Made(NamedTuple):
    """The result of a request for topics. One that exists already, or is being deleted, is in neither."""

    created: list[str]
    """Topics that did not exist before this request."""
    errors: dict[str, KafkaError]
    """By topic."""


async def make_topics(broker: Broker, names: Sequence[str]) -> Made:
    """Creates the topics that are missing. Raises KafkaError for all of them.

    When it returns, this broker knows them, unless the controller is late with its news.
    """
    # Alone a broker has no more replicas to give; in a cluster the others may only be late.
    replicas_max = len(broker.metadata.brokers) if broker.config.store() == "embedded" else None
    topics = [automatic_topic(broker.config, name, replicas_max) for name in names]
    if broker.controller.is_active or broker.controller_link is None:
        outcomes = await broker.controller.create_topics(topics)
        errors = {outcome.name: outcome.error for outcome in outcomes if outcome.error is not None}
    else:
        errors = await _ask(broker.controller_link, topics)
    created = [name for name in names if name not in errors]
    errors = {name: one for name, one in errors.items() if one.code != ErrorCode.TOPIC_ALREADY_EXISTS}
    await _hear(broker, [name for name in names if name not in errors])
    return Made(created, errors)


async def _hear(broker: Broker, names: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEARD_S
    for name in names:
        while name not in broker.metadata.topics and loop.time() < deadline:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)


async def _ask(link: ControllerLink, topics: Sequence[NewTopic]) -> dict[str, KafkaError]:
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
    answer: CreateTopicsResponse = await link.ask(ApiKey.CREATE_TOPICS, VERSIONS, request)
    return {
        one.name: KafkaError(one.error_message or "", ErrorCode(one.error_code))
        for one in answer.topics
        if one.error_code != 0
    }
