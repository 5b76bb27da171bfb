"""DeleteTopics: by name, and from version 6 on by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text, run_within_timeout
from tidemill.broker.request_context import RequestContext
from tidemill.controller.topic_batches import Outcome
from tidemill.controller.topics import missing_topic, unknown_topic_id
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import delete_topics as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

IDS_FROM = 6
DISABLED_FROM = 3
"""In earlier versions, INVALID_REQUEST reports that topics cannot be deleted."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.DeleteTopicsRequest
) -> messages.DeleteTopicsResponse:
    """Returns one result per topic; a duplicate topic is refused."""
    states: Iterable[messages.DeleteTopicState] = request.topics
    if context.api_version < IDS_FROM:
        states = (messages.DeleteTopicState(name=name, topic_id=ZERO_ID) for name in request.topic_names)
    named = []
    ids: dict[str, bytes] = {}
    async for state in context.slices.over(states):
        result = _named(broker, state)
        named.append(result)
        if state.topic_id != ZERO_ID and result.name is not None:
            ids[result.name] = state.topic_id
    counts = await context.slices.counts(result.name for result in named)
    distinct: dict[tuple[str | None, bytes], messages.DeletableTopicResult] = {}
    async for result in context.slices.over(named):
        distinct[result.name, result.topic_id] = result
    results = list(distinct.values())
    wanted: list[messages.DeletableTopicResult] = []
    async for result in context.slices.over(results):
        if result.error_code == ErrorCode.NONE and counts[result.name] > 1:
            _refuse(result, KafkaError("the topic comes twice in this request", ErrorCode.INVALID_REQUEST))
        elif result.error_code == ErrorCode.NONE:
            wanted.append(result)
    if wanted:
        await _delete(broker, context, request.timeout_ms, wanted, ids)
    await context.slices.clear(counts)
    await context.slices.clear(distinct)
    return messages.DeleteTopicsResponse(responses=results)


API: Final = declare_api(
    ApiKey.DELETE_TOPICS, 0, 6, lambda: messages.DeleteTopicsRequest, handle, to_controller=True
)


def _named(broker: Broker, state: messages.DeleteTopicState) -> messages.DeletableTopicResult:
    """Returns the result for a topic, with its name and its id. An unknown one is empty."""
    result = messages.DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=ErrorCode.NONE
    )
    by_id = state.topic_id != ZERO_ID
    if by_id == (state.name is not None):
        _refuse(result, KafkaError("give a topic's name or its id, not both", ErrorCode.INVALID_REQUEST))
    elif by_id:
        topic = broker.metadata_cache.topic_by_id(state.topic_id)
        if topic is None:
            _refuse(result, unknown_topic_id())
        else:
            result.name = topic.name
    else:
        topic = broker.metadata_cache.topic(state.name or "")
        if topic is None:
            _refuse(result, missing_topic(broker.controller.image, state.name or ""))
        else:
            result.topic_id = topic.topic_id
    return result


async def _delete(
    broker: Broker,
    context: RequestContext,
    timeout_ms: int,
    wanted: list[messages.DeletableTopicResult],
    ids: Mapping[str, bytes],
) -> None:
    """Deletes the topics of these names; a topic in ``ids`` only if it has that id."""
    names = [result.name or "" for result in wanted]
    try:
        outcomes = await context.slices.wait_for(
            run_within_timeout(timeout_ms, _apply(broker, context, names, ids))
        )
    except KafkaError as error:
        if error.code == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < DISABLED_FROM:
            error = KafkaError(str(error), ErrorCode.INVALID_REQUEST)
        outcomes = [Outcome(name, error=error) for name in names]
    async for result, outcome in context.slices.over(zip(wanted, outcomes, strict=True)):
        if outcome.topic is not None:
            result.topic_id = outcome.topic.topic_id
        if outcome.error is not None:
            _refuse(result, outcome.error)


async def _apply(
    broker: Broker, context: RequestContext, names: list[str], ids: Mapping[str, bytes]
) -> list[Outcome]:
    outcomes = await broker.controller.admin_manager.delete_topics(names, ids=ids)
    await log_changes(
        context, "topics deleted", [outcome.name for outcome in outcomes if outcome.error is None], str
    )
    return outcomes


def _refuse(result: messages.DeletableTopicResult, error: KafkaError) -> None:
    result.error_code = error.code
    result.error_message = external_text(error)
