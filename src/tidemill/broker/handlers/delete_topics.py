"""DeleteTopics: by name, and from version 6 on by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, within
from tidemill.controller.command_parts import Outcome
from tidemill.controller.topics import missing_topic, unknown_topic_id
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

IDS_FROM = 6
DISABLED_FROM = 3
"""Before, INVALID_REQUEST says that topics cannot be deleted."""


async def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """One result a topic; one that is asked for twice is refused."""
    states: Iterable[DeleteTopicState] = request.topics
    if context.api_version < IDS_FROM:
        states = (DeleteTopicState(name=name, topic_id=ZERO_ID) for name in request.topic_names)
    named = []
    ids: dict[str, bytes] = {}
    async for state in context.turns.over(states):
        result = _named(broker, context, state)
        named.append(result)
        if state.topic_id != ZERO_ID and result.name is not None:
            ids[context.internal_name(result.name)] = state.topic_id
    counts = await context.turns.counts(result.name for result in named)
    distinct: dict[tuple[str | None, bytes], DeletableTopicResult] = {}
    async for result in context.turns.over(named):
        distinct[result.name, result.topic_id] = result
    results = list(distinct.values())
    wanted: list[DeletableTopicResult] = []
    async for result in context.turns.over(results):
        if result.error_code == ErrorCode.NONE and counts[result.name] > 1:
            _refuse(result, KafkaError("the topic comes twice in this request", ErrorCode.INVALID_REQUEST))
        elif result.error_code == ErrorCode.NONE:
            wanted.append(result)
    if wanted:
        await _delete(broker, context, request.timeout_ms, wanted, ids)
    await context.turns.let_go(counts)
    await context.turns.let_go(distinct)
    return DeleteTopicsResponse(responses=results)


def _named(broker: Broker, context: RequestContext, state: DeleteTopicState) -> DeletableTopicResult:
    """The result for a topic, with name and id both, as far as they are known."""
    result = DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=ErrorCode.NONE)
    by_id = state.topic_id != ZERO_ID
    if by_id == (state.name is not None):
        _refuse(result, KafkaError("a topic has a name or an id here, not both", ErrorCode.INVALID_REQUEST))
    elif by_id:
        topic = broker.metadata.topic_by_id(state.topic_id)
        if topic is None:
            _refuse(result, unknown_topic_id())
        else:
            result.name = context.external_name(topic.name)
    else:
        topic = broker.metadata.topic(context.internal_name(state.name or ""))
        if topic is None:
            _refuse(result, missing_topic(broker.controller.image, state.name or ""))
        else:
            result.topic_id = topic.topic_id
    return result


async def _delete(
    broker: Broker,
    context: RequestContext,
    timeout_ms: int,
    wanted: list[DeletableTopicResult],
    ids: Mapping[str, bytes],
) -> None:
    """Deletes the topics of these names; of those in ``ids`` only the one that has the id."""
    names = [context.internal_name(result.name or "") for result in wanted]
    try:
        outcomes = await context.turns.rest(within(timeout_ms, _carry_out(broker, context, names, ids)))
    except KafkaError as error:
        if error.code == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < DISABLED_FROM:
            error = KafkaError(str(error), ErrorCode.INVALID_REQUEST)
        outcomes = [Outcome(name, error=error) for name in names]
    async for result, outcome in context.turns.over(zip(wanted, outcomes, strict=True)):
        if outcome.topic is not None:
            result.topic_id = outcome.topic.topic_id
        if outcome.error is not None:
            _refuse(result, outcome.error)


async def _carry_out(
    broker: Broker, context: RequestContext, names: list[str], ids: Mapping[str, bytes]
) -> list[Outcome]:
    outcomes = await broker.controller.delete_topics(names, ids=ids)
    await note_each(context, "topics deleted", [one.name for one in outcomes if one.error is None], str)
    return outcomes


def _refuse(result: DeletableTopicResult, error: KafkaError) -> None:
    result.error_code = error.code
    result.error_message = external_text(error)
