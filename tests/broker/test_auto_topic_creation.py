"""Topics that a broker creates on request of a client, through a controller in another broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidemill.broker.api_declaration import HandledApi
from tidemill.broker.auto_topic_creation import create_missing_topics
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

RESULTS = {
    "new": ErrorCode.NONE,
    "there": ErrorCode.TOPIC_ALREADY_EXISTS,
    "refused": ErrorCode.POLICY_VIOLATION,
}


class Controller:
    """Responds to CreateTopics with :data:`RESULTS`."""

    def __init__(self) -> None:
        self.requests: list[CreateTopicsRequest] = []

    async def send_request(
        self, api: HandledApi, request: CreateTopicsRequest, response_type: type[CreateTopicsResponse]
    ) -> CreateTopicsResponse:
        assert (api.key, response_type) == (ApiKey.CREATE_TOPICS, CreateTopicsResponse)
        self.requests.append(request)
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=one.name, error_code=RESULTS[one.name], error_message="a text")
                for one in request.topics
            ]
        )


def test_only_new_topics_are_created_and_only_refused_ones_have_errors() -> None:
    channel = Controller()
    broker: Any = SimpleNamespace(
        config=BrokerConfig.of(zookeeper_connect="localhost:2181"),
        metadata_cache=SimpleNamespace(brokers={1: None, 2: None}, topics={"new": None, "there": None}),
        controller=SimpleNamespace(is_active=False),
        cluster=SimpleNamespace(controller_channel=channel),
    )
    result = asyncio.run(create_missing_topics(broker, list(RESULTS)))
    assert result.created == ["new"]
    assert {name: (one.code, str(one)) for name, one in result.errors.items()} == {
        "refused": (ErrorCode.POLICY_VIOLATION, "a text")
    }
    (request,) = channel.requests
    assert [one.name for one in request.topics] == list(RESULTS)
