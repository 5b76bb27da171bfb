"""CreatePartitions: makes topics grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, within
from tidemill.controller.shell import Outcome
from tidemill.controller.topics import Growth
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """One result a topic; a name that comes twice is refused."""
    counts = await context.turns.counts(topic.name for topic in request.topics)
    growths = [
        Growth(
            context.internal_name(topic.name),
            topic.count,
            None if topic.assignments is None else [placed.broker_ids for placed in topic.assignments],
        )
        for topic in request.topics
        if counts[topic.name] == 1
    ]
    outcomes = {
        name: Outcome(
            name, error=KafkaError("the topic comes twice in this request", ErrorCode.INVALID_REQUEST)
        )
        for name, count in counts.items()
        if count > 1
    }
    if growths:
        try:
            work = _grow(broker, context, growths, request.validate_only)
            grown = await context.turns.rest(within(request.timeout_ms, work))
        except KafkaError as error:
            grown = [Outcome(growth.name, error=error) for growth in growths]
        for outcome in grown:
            outcomes[context.external_name(outcome.name)] = outcome
    return CreatePartitionsResponse(results=[_result(name, outcomes[name].error) for name in counts])


async def _grow(
    broker: Broker, context: RequestContext, growths: list[Growth], validate_only: bool
) -> list[Outcome]:
    outcomes = await broker.controller.create_partitions(growths, validate_only=validate_only)
    if not validate_only:
        grown = [one.topic for one in outcomes if one.error is None and one.topic is not None]
        texts = [f"{topic.name} has {len(topic.partitions)} partitions" for topic in grown]
        note(context, "partitions added", texts)
    return outcomes


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=external_text(error))
