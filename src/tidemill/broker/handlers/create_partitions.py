"""CreatePartitions: makes topics grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, within
from tidemill.controller.command_parts import Outcome
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX, Growth
from tidemill.coordination.image import TopicImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """One result a topic; a name that comes twice is refused."""
    turns = context.turns
    counts = await turns.counts(topic.name for topic in request.topics)
    growths: list[Growth] = []
    outcomes: dict[str, Outcome] = {}
    twice = KafkaError("the topic comes twice in this request", ErrorCode.INVALID_REQUEST)
    too_many = KafkaError(
        f"{len(counts)} topics are too many: one request adds at most {PARTITIONS_PER_REQUEST_MAX}"
        " partitions. Add fewer, or in several requests.",
        ErrorCode.POLICY_VIOLATION,
    )
    async for topic in turns.over(request.topics):
        if counts[topic.name] > 1:
            outcomes[topic.name] = Outcome(topic.name, error=twice)
        elif len(counts) > PARTITIONS_PER_REQUEST_MAX:
            outcomes[topic.name] = Outcome(topic.name, error=too_many)
        elif len(topic.assignments or ()) > PARTITIONS_PER_REQUEST_MAX:
            error = KafkaError(
                f"{len(topic.assignments or ())} partitions are too many: one request adds at most"
                f" {PARTITIONS_PER_REQUEST_MAX}. Add fewer, or in several requests.",
                ErrorCode.POLICY_VIOLATION,
            )
            outcomes[topic.name] = Outcome(topic.name, error=error)
        else:
            growths.append(await _growth(context, topic))
    if growths:
        try:
            work = _grow(broker, context, growths, request.validate_only)
            grown = await turns.rest(within(request.timeout_ms, work))
        except KafkaError as error:
            grown = [Outcome(growth.name, error=error) for growth in growths]
        async for outcome in turns.over(grown):
            outcomes[context.external_name(outcome.name)] = outcome
    response = CreatePartitionsResponse(results=[])
    async for name in turns.over(counts):
        response.results.append(_result(name, outcomes[name].error))
    await turns.let_go(counts)
    await turns.let_go(outcomes)
    return response


async def _growth(context: RequestContext, topic: CreatePartitionsTopic) -> Growth:
    placed: list[Sequence[int]] | None = None
    if topic.assignments is not None:
        placed = [one.broker_ids async for one in context.turns.over(topic.assignments)]
    return Growth(context.internal_name(topic.name), topic.count, placed)


async def _grow(
    broker: Broker, context: RequestContext, growths: list[Growth], validate_only: bool
) -> list[Outcome]:
    outcomes = await broker.controller.create_partitions(growths, validate_only=validate_only)
    if not validate_only:
        grown = [one.topic for one in outcomes if one.error is None and one.topic is not None]
        await note_each(context, "partitions added", grown, _grown)
    return outcomes


def _grown(topic: TopicImage) -> str:
    return f"{topic.name} has {len(topic.partitions)} partitions"


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=external_text(error))
