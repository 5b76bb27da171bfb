"""CreateTopics: responds once this broker's partitions of the new topics are writable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import (
    check_setting_count,
    external_text,
    run_within_timeout,
    shown_topic_keys,
)
from tidemill.broker.request_context import RequestContext
from tidemill.controller.topic_batches import Outcome
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX, NewTopic
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.configs import BrokerConfig, TopicConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import create_topics as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.CreateTopicsRequest
) -> messages.CreateTopicsResponse:
    """Returns one result per topic; a duplicate name is refused each time."""
    counts = await context.slices.counts(topic.name for topic in request.topics)
    outcomes: dict[str, Outcome] = {}
    wanted = []
    async for topic in context.slices.over(request.topics):
        try:
            if len(counts) > PARTITIONS_PER_REQUEST_MAX:
                raise KafkaError(
                    f"{len(counts)} topics are too many: one request creates at most"
                    f" {PARTITIONS_PER_REQUEST_MAX} partitions. Create fewer, or in several requests.",
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
            made = await context.slices.wait_for(run_within_timeout(request.timeout_ms, work))
        except KafkaError as error:
            made = [Outcome(topic.name, error=error) for topic in wanted]
        async for outcome in context.slices.over(made):
            outcomes[outcome.name] = outcome
    shown = EffectiveSettings(broker.config)
    response = messages.CreateTopicsResponse()
    async for name in context.slices.over(counts):
        response.topics.append(_result(shown, name, outcomes[name], request.validate_only))
    await context.slices.clear(counts)
    await context.slices.clear(outcomes)
    return response


API: Final = declare_api(
    ApiKey.CREATE_TOPICS, 0, 7, lambda: messages.CreateTopicsRequest, handle, to_controller=True
)


async def _create(
    broker: Broker, context: RequestContext, wanted: list[NewTopic], validate_only: bool
) -> list[Outcome]:
    outcomes = await broker.controller.admin_manager.create_topics(wanted, validate_only=validate_only)
    if not validate_only:
        made = [outcome.topic for outcome in outcomes if outcome.topic is not None]
        await log_changes(context, "topics created", made, described)
    return outcomes


def described(topic: TopicImage) -> str:
    """Describes a new topic, for the log of administrative changes."""
    settings = "".join(f", {key}={value}" for key, value in topic.config.items())
    replicas = len(topic.partitions[0].replicas)
    return f"{topic.name} with {len(topic.partitions)} partitions of {replicas} replicas{settings}"


async def _wanted(context: RequestContext, topic: messages.CreatableTopic) -> NewTopic:
    check_setting_count(len(topic.configs))
    if len(topic.assignments) > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            f"{len(topic.assignments)} partitions are too many: one request creates at most"
            f" {PARTITIONS_PER_REQUEST_MAX}. Assign fewer, or add partitions in another request.",
            ErrorCode.POLICY_VIOLATION,
        )
    assignments: dict[int, list[int]] = {}
    async for assignment in context.slices.over(topic.assignments):
        if assignment.partition_index in assignments:
            raise KafkaError(
                f"partition {assignment.partition_index} is assigned twice",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        {config.name: config.value for config in topic.configs},
    )


class EffectiveSettings:
    """The settings of topics, as a response contains them; those of topics without their own, only once."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._defaults: list[messages.CreatableTopicConfigs] | None = None

    def of(self, topic: TopicImage) -> list[messages.CreatableTopicConfigs]:
        """Returns all effective settings of ``topic``."""
        if topic.config:
            return self._shown(topic.config)
        if self._defaults is None:
            self._defaults = self._shown({})
        return self._defaults

    def _shown(self, overrides: Mapping[str, str]) -> list[messages.CreatableTopicConfigs]:
        config = TopicConfig(self._config, overrides)
        return [
            messages.CreatableTopicConfigs(
                name=key.name,
                value=config.rendered(key.name),
                read_only=False,
                config_source=config.source(key.name),
                is_sensitive=key.sensitive,
            )
            for key in shown_topic_keys(config)
        ]


def _result(
    shown: EffectiveSettings, name: str, outcome: Outcome, validate_only: bool
) -> messages.CreatableTopicResult:
    topic = outcome.topic
    if outcome.error is not None or topic is None:
        error = outcome.error or KafkaError()
        text = external_text(error)
        if topic is not None:
            text = f"the topic was created, but {text}"
        return messages.CreatableTopicResult(name=name, error_code=error.code, error_message=text, configs=[])
    return messages.CreatableTopicResult(
        name=name,
        topic_id=ZERO_ID if validate_only else topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=shown.of(topic),
    )
