"""CreatePartitions: adds partitions to topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text, run_within_timeout
from tidemill.broker.request_context import RequestContext
from tidemill.controller.topic_batches import Outcome
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX, Growth
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import create_partitions as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.CreatePartitionsRequest
) -> messages.CreatePartitionsResponse:
    """Returns one result per topic; a duplicate name is refused."""
    slices = context.slices
    counts = await slices.counts(topic.name for topic in request.topics)
    growths: list[Growth] = []
    outcomes: dict[str, Outcome] = {}
    twice = KafkaError("the topic comes twice in this request", ErrorCode.INVALID_REQUEST)
    too_many = KafkaError(
        f"{len(counts)} topics are too many: one request adds at most {PARTITIONS_PER_REQUEST_MAX}"
        " partitions. Add fewer, or in several requests.",
        ErrorCode.POLICY_VIOLATION,
    )
    async for topic in slices.over(request.topics):
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
            grown = await slices.wait_for(run_within_timeout(request.timeout_ms, work))
        except KafkaError as error:
            grown = [Outcome(growth.name, error=error) for growth in growths]
        async for outcome in slices.over(grown):
            outcomes[outcome.name] = outcome
    response = messages.CreatePartitionsResponse(results=[])
    async for name in slices.over(counts):
        response.results.append(_result(name, outcomes[name].error))
    await slices.clear(counts)
    await slices.clear(outcomes)
    return response


API: Final = declare_api(
    ApiKey.CREATE_PARTITIONS, 0, 3, lambda: messages.CreatePartitionsRequest, handle, to_controller=True
)


async def _growth(context: RequestContext, topic: messages.CreatePartitionsTopic) -> Growth:
    placed: list[Sequence[int]] | None = None
    if topic.assignments is not None:
        placed = [assignment.broker_ids async for assignment in context.slices.over(topic.assignments)]
    return Growth(topic.name, topic.count, placed)


async def _grow(
    broker: Broker, context: RequestContext, growths: list[Growth], validate_only: bool
) -> list[Outcome]:
    outcomes = await broker.controller.admin_manager.create_partitions(growths, validate_only=validate_only)
    if not validate_only:
        grown = [outcome.topic for outcome in outcomes if outcome.error is None and outcome.topic is not None]
        await log_changes(context, "partitions added", grown, _grown)
    return outcomes


def _grown(topic: TopicImage) -> str:
    return f"{topic.name} has {len(topic.partitions)} partitions"


def _result(name: str, error: KafkaError | None) -> messages.CreatePartitionsTopicResult:
    if error is None:
        return messages.CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE)
    return messages.CreatePartitionsTopicResult(
        name=name, error_code=error.code, error_message=external_text(error)
    )
