"""CreateTopics: answered once this broker's partitions of the new topics can be written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import check_setting_count, external_text, shown_topic_keys, within
from tidemill.controller.command_parts import Outcome
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX, NewTopic
from tidemill.coordination.image import TopicImage
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """One result a topic; a name that comes twice is refused each time."""
    counts = await context.turns.counts(topic.name for topic in request.topics)
    outcomes: dict[str, Outcome] = {}
    wanted = []
    async for topic in context.turns.over(request.topics):
        try:
            if len(counts) > PARTITIONS_PER_REQUEST_MAX:
                raise KafkaError(
                    f"{len(counts)} topics are too many: one request makes at most"
                    f" {PARTITIONS_PER_REQUEST_MAX} partitions. Ask for fewer, or in several requests.",
                    ErrorCode.POLICY_VIOLATION,
                )
            if counts[topic.name] > 1:
                raise KafkaError(f"{topic.name!r} comes twice in this request", ErrorCode.INVALID_REQUEST)
            wanted.append(await _wanted(context, topic))
        except KafkaError as error:
            outcomes[topic.name] = Outcome(topic.name, error=error.as_result())
    if wanted:
        try:
            work = _create(broker, context, wanted, request.validate_only)
            made = await context.turns.rest(within(request.timeout_ms, work))
        except KafkaError as error:
            made = [Outcome(topic.name, error=error) for topic in wanted]
        async for outcome in context.turns.over(made):
            outcomes[context.external_name(outcome.name)] = outcome
    shown = Shown(broker.config)
    response = CreateTopicsResponse()
    async for name in context.turns.over(counts):
        response.topics.append(_result(shown, name, outcomes[name], request.validate_only))
    await context.turns.let_go(counts)
    await context.turns.let_go(outcomes)
    return response


async def _create(
    broker: Broker, context: RequestContext, wanted: list[NewTopic], validate_only: bool
) -> list[Outcome]:
    outcomes = await broker.controller.create_topics(wanted, validate_only=validate_only)
    if not validate_only:
        made = [one.topic for one in outcomes if one.topic is not None]
        await note_each(context, "topics created", made, described)
    return outcomes


def described(topic: TopicImage) -> str:
    """A new topic, for the log of what administrators do."""
    settings = "".join(f", {key}={value}" for key, value in topic.config.items())
    replicas = len(topic.partitions[0].replicas)
    return f"{topic.name} with {len(topic.partitions)} partitions of {replicas} replicas{settings}"


async def _wanted(context: RequestContext, topic: CreatableTopic) -> NewTopic:
    check_setting_count(len(topic.configs))
    if len(topic.assignments) > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            f"{len(topic.assignments)} partitions are too many: one request makes at most"
            f" {PARTITIONS_PER_REQUEST_MAX}. Assign fewer, or grow the topic by another request.",
            ErrorCode.POLICY_VIOLATION,
        )
    assignments: dict[int, list[int]] = {}
    async for assignment in context.turns.over(topic.assignments):
        if assignment.partition_index in assignments:
            raise KafkaError(
                f"partition {assignment.partition_index} is assigned twice",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    return NewTopic(
        context.internal_name(topic.name),
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        {config.name: config.value for config in topic.configs},
    )


class Shown:
    """The settings of topics as an answer has them; those of topics that have none of their own, once."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._defaults: list[CreatableTopicConfigs] | None = None

    def of(self, topic: TopicImage) -> list[CreatableTopicConfigs]:
        """All that hold for ``topic``."""
        if topic.config:
            return self._shown(topic.config)
        if self._defaults is None:
            self._defaults = self._shown({})
        return self._defaults

    def _shown(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        config = self._config.topic_config(overrides)
        return [
            CreatableTopicConfigs(
                name=key.name,
                value=config.rendered(key.name),
                read_only=False,
                config_source=config.source(key.name),
                is_sensitive=key.sensitive,
            )
            for key in shown_topic_keys(config)
        ]


def _result(shown: Shown, name: str, outcome: Outcome, validate_only: bool) -> CreatableTopicResult:
    topic = outcome.topic
    if outcome.error is not None or topic is None:
        error = outcome.error or KafkaError()
        text = external_text(error)
        if topic is not None:
            text = f"the topic is there now, but {text}"
        return CreatableTopicResult(name=name, error_code=error.code, error_message=text, configs=[])
    return CreatableTopicResult(
        name=name,
        topic_id=ZERO_ID if validate_only else topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=shown.of(topic),
    )
